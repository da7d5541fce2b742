package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The flags of the two files, and contents of each that mean something else.
var (
	accessFlags = []string{"--authentication-config", "--authorization-config"}
	accessFiles = map[string][2]string{
		"--authentication-config": {
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /readyz}, {path: /version}]}\n",
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /readyz}, {path: /version}, {path: /livez}]}\n",
		},
		"--authorization-config": {
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]\n",
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}, {type: Node, name: node}]\n",
		},
	}
)

// writeAccess writes the files into a directory, and returns the arguments of a server with them.
func writeAccess(t testing.TB, dir string, which int) (args []string) {
	t.Helper()
	for _, flag := range accessFlags {
		path := filepath.Join(dir, strings.TrimLeft(flag, "-")+".yaml")
		if err := os.WriteFile(path, []byte(accessFiles[flag][which]), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, flag+"="+path)
	}
	return args
}

// serverArgs replaces the arguments of servers that are started from now on.
func (c *Cluster) serverArgs(t testing.TB, args []string) {
	t.Helper()
	path, plan := filepath.Join(c.Dir, "dev.json"), map[string]any{}
	if err := json.Unmarshal(read(t, path), &plan); err != nil {
		t.Fatal(err)
	}
	plan["serverArgs"] = args
	data, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// differing is nil if the status says of these flags, and of no others, that s3 has another content
// than s1 and s2.
func (c *Cluster) differing(ctx context.Context, flags ...string) error {
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	var said []string
	for _, w := range s.Warnings {
		for _, flag := range accessFlags {
			if strings.HasPrefix(w.Text, flag+" differs between servers: s1, s2 | s3.") &&
				strings.Contains(w.Mend, "sha256sum") {
				said = append(said, flag)
			} else if strings.Contains(w.Text, flag) {
				return fmt.Errorf("a warning: %+v", w)
			}
		}
	}
	if slices.Sort(said); !slices.Equal(said, flags) {
		return fmt.Errorf("the status says of %q that they differ, and not of %q: %+v", said, flags, s.Warnings)
	}
	return nil
}

// TestServersWithOtherFiles: the status says which server decides by another file of authentication
// or authorization than the others, and stops to say it when the contents are the same again. No
// server is restarted for that.
func TestServersWithOtherFiles(t *testing.T) {
	t.Parallel()
	common, own := t.TempDir(), t.TempDir()
	c := Start(t, Options{Servers: 3, ServerArgs: writeAccess(t, common, 0)})
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	c.serverArgs(t, writeAccess(t, own, 0))
	c.Dev(t, "kill", "s3")
	if err := c.StartNode(t.Context(), "s3"); err != nil {
		t.Fatal(err)
	}
	Eventually(t, deadline, "a whole cluster, with s3 and files of its own", c.Healthy)
	Eventually(t, deadline, "no warning of equal contents in other files",
		func(ctx context.Context) error { return c.differing(ctx) })

	writeAccess(t, own, 1)
	Eventually(t, deadline, "warnings of s3",
		func(ctx context.Context) error { return c.differing(ctx, accessFlags...) })
	if err := os.WriteFile(filepath.Join(own, "authentication-config.yaml"),
		[]byte(accessFiles["--authentication-config"][0]), 0o600); err != nil {
		t.Fatal(err)
	}
	Eventually(t, deadline, "one warning when one file is the same again",
		func(ctx context.Context) error { return c.differing(ctx, "--authorization-config") })
	writeAccess(t, common, 1)
	writeAccess(t, own, 1)
	Eventually(t, deadline, "no warning when all have the other content",
		func(ctx context.Context) error { return c.differing(ctx) })
}
