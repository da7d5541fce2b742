package devcluster

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopyIsRenewedOnce: the kubeconfig of a dev cluster is fetched from a server once. Another
// file is left alone. The report of a failure names the remedy.
func TestCopyIsRenewedOnce(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	dir := t.TempDir()
	plan, err := json.Marshal(
		Plan{Name: "x", Dir: dir, APIPort: 7443, Complete: true, Nodes: []Node{{Name: "s1", Role: Server}}})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "dev.json"), plan, 0o600),
		os.WriteFile(kubeconfig, []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var said string
	tell := func(text string) { said += text }
	if c := CopyAt(filepath.Join(dir, "other"), tell); c.Renew() || c.Afterwards() != "" {
		t.Error("what is no kubeconfig of the cluster is taken for one")
	}
	failing := CopyAt(kubeconfig, tell)
	for range 2 {
		if failing.Renew() {
			t.Error("renewed from a server that has none")
		}
	}
	if _, renewed := failing.Renewed(); renewed || strings.Count(said, "is not renewed") != 1 ||
		!strings.Contains(said, " dev up") {
		t.Errorf("it says %q", said)
	}
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443'}}]\n" +
		"users: [{name: u, user: {token: fresh}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "s1"), 0o755),
		os.WriteFile(filepath.Join(dir, "s1", "admin.kubeconfig"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	c := CopyAt(kubeconfig, tell)
	if !c.Renew() || c.Renew() {
		t.Error("it is not renewed, or twice")
	}
	now, err := os.ReadFile(kubeconfig)
	if path, renewed := c.Renewed(); err != nil || !renewed || !strings.HasSuffix(path, "kubeconfig") ||
		!strings.Contains(string(now), "token: fresh") || !strings.Contains(string(now), "127.0.0.1:7443") {
		t.Errorf("%q, renewed %t, %v: %s", path, renewed, err, now)
	}
	if !strings.Contains(c.Afterwards(), " dev up") {
		t.Errorf("afterwards: %q", c.Afterwards())
	}
}
