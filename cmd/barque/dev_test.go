package main

import (
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
