package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/cmd/barque/settings"
)

// TestGiven: a service has another working directory than the shell, a token goes into a file, and
// a flag that is done once is refused.
func TestGiven(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	secret, open := filepath.Join(dir, "secret"), filepath.Join(dir, "open")
	for path, mode := range map[string]os.FileMode{secret: 0o600, open: 0o644} {
		if err := os.WriteFile(path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line, token string
		want        []settings.Setting
		err         string
	}{
		{line: "--no-start --yes --init systemd --wait 1m"},
		{line: "--zone a --audit-log-path - --tls-san a,b", want: []settings.Setting{
			{Name: "audit-log-path", Values: []string{"-"}},
			{Name: "tls-san", Values: []string{"a", "b"}, List: true}, {Name: "zone", Values: []string{"a"}}}},
		{line: "--data-dir data --kubelet-config k.yaml", want: []settings.Setting{
			{Name: "data-dir", Values: []string{dir + "/data"}},
			{Name: "kubelet-config", Values: []string{dir + "/k.yaml"}}}},
		{line: "--token T --join https://a:6443", token: "T", want: []settings.Setting{
			{Name: "join", Values: []string{"https://a:6443"}},
			{Name: "token-file", Values: []string{"/etc/barque/token"}}}},
		{line: "--token-file secret", want: []settings.Setting{{Name: "token-file", Values: []string{secret}}}},
		{line: "--token-file open", err: "chmod 600 " + open},
		{line: "--token T --token-file secret", err: "not both"},
		{line: "--wipe", err: "run `barque server --wipe …` once"},
	} {
		cmd := installRoleCommand(roleServer)
		i := &installing{role: roleServer}
		if err := cmd.ParseFlags(strings.Fields(c.line)); err != nil {
			t.Fatal(err)
		}
		got, token, err := i.given(cmd)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", c.line, err)
			}
			continue
		}
		same := slices.EqualFunc(got, c.want, func(a, b settings.Setting) bool {
			return a.Name == b.Name && a.List == b.List && slices.Equal(a.Values, b.Values)
		})
		if err != nil || token != c.token || !same {
			t.Errorf("%s: %+v %q %v, want %+v", c.line, got, token, err, c.want)
		}
	}
}

// TestPathFlags: each flag that names a file or a directory is known as one.
func TestPathFlags(t *testing.T) {
	for _, role := range []string{roleServer, roleAgent} {
		cmd := &cobra.Command{}
		addRoleFlags(cmd, role)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			usage := strings.Fields(f.Usage)
			names := slices.Contains([]string{"file", "directory", "kubeconfig", "where", "certificates"}, usage[0]) &&
				f.Value.Type() == "string" && f.Name != "cgroup-root"
			if names && !isPath(f.Name) {
				t.Errorf("--%s of a %s names a file: %s", f.Name, role, f.Usage)
			}
		})
	}
}

// TestInstallFlags: no setting of a node has the name of a flag of the command.
func TestInstallFlags(t *testing.T) {
	for _, role := range []string{roleServer, roleAgent} {
		for _, name := range installFlags {
			if isSettingOf(role, name) {
				t.Errorf("--%s is a setting of a %s", name, role)
			}
			if installRoleCommand(role).Flags().Lookup(name) == nil {
				t.Errorf("there is no --%s", name)
			}
		}
	}
}
