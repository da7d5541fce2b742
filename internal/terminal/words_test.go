package terminal

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestCommand: a shell splits the line into the same words.
func TestCommand(t *testing.T) {
	words := []string{"", "/var/lib/barque/node.json", "/tmp/my files/$HOME", "it's", `"`, "*", "a;b", "…"}
	got, err := exec.Command("sh", "-c", "printf '%s\\n' "+Command(words...)).Output()
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSuffix(string(got), "\n"), "\n"); !slices.Equal(lines, words) {
		t.Errorf("%q, want %q", lines, words)
	}
	if line := Command("chmod", "600", "/d/node.json"); line != "chmod 600 /d/node.json" {
		t.Error(line)
	}
}
