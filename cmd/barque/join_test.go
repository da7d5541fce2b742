package main

import (
	"os"
	"strings"
	"testing"
)

// TestUnitIsTheExample: who copies the example gets what `cluster join` writes.
func TestUnitIsTheExample(t *testing.T) {
	for _, role := range []string{"server", "agent"} {
		example, err := os.ReadFile("../../examples/barque-" + role + ".service")
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(string(example), "[Unit]")
		if got, want := unitText(role, "/usr/local/bin/barque", "/etc/barque/"+role+".env"), "[Unit]"+text; got != want {
			t.Errorf("%s:\n%s\nwant\n%s", role, got, want)
		}
	}
}

// TestShellLine: what is to be pasted means to a shell what was given.
func TestShellLine(t *testing.T) {
	got := shellLine([]string{"--name=a", "--eviction-hard=memory.available<1Gi", "--allowed-unsafe-sysctls=kernel.msg*", "--zone=it's"})
	if want := `--name=a '--eviction-hard=memory.available<1Gi' '--allowed-unsafe-sysctls=kernel.msg*' '--zone=it'\''s'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
