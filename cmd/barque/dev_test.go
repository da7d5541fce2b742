package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestDevCommandLine: what is proposed to be typed works as it stands, from where the user is.
func TestDevCommandLine(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	program := os.Args[0]
	for dir, want := range map[string]string{
		filepath.Join(here, defaultDevDir): program + " dev kill s1",
		filepath.Join(here, "x", "c"):      program + " dev kill s1 --dir x/c",
		filepath.Dir(here) + "/elsewhere":  program + " dev kill s1 --dir " + filepath.Dir(here) + "/elsewhere",
	} {
		if got := devCommandLine(dir, "kill", "s1"); got != want {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
}

// TestGiveToSudoer: after sudo, the user can read the kubeconfig; without sudo, nothing changes.
func TestGiveToSudoer(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
		fail bool
	}{
		"root":     {nil, "", false},
		"sudo":     {map[string]string{"SUDO_UID": "1000", "SUDO_GID": "100"}, "f 1000 100", false},
		"no group": {map[string]string{"SUDO_UID": "1000"}, "", true},
	} {
		got := ""
		err := giveToSudoer("f", func(key string) string { return c.env[key] }, func(path string, uid, gid int) error {
			got = fmt.Sprint(path, " ", uid, " ", gid)
			return nil
		})
		if got != c.want || (err != nil) != c.fail {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
