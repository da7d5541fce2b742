package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/internal/version"
)

// TestKubectlKnowsItsVersion: kubectl has the servers' version also in a build without the
// Makefile's linker flags, as this one is. So it warns of no difference between them.
func TestKubectlKnowsItsVersion(t *testing.T) {
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	stdout := os.Stdout
	os.Stdout = said
	err = kubectl([]string{"version", "--client"})
	os.Stdout = stdout
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(said.Name())
	if err != nil || !strings.Contains(string(out), "Client Version: "+version.String()+"\n") {
		t.Errorf("%v: %s", err, out)
	}
}
