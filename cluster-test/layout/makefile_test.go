package layout

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// On a fresh machine `go list -m` prints an empty directory for a module that was not downloaded
// yet, and the recipe reads below the root. Listing a package of the module downloads it.
func TestRecipesDownloadTheModulesThatTheyRead(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(string(text), "\n") {
		if readsModuleUnseen.MatchString(line) {
			t.Errorf("Makefile:%d: take the directory from a package: go list -f '{{.Module.Dir}}' PACKAGE\n%s", n+1, line)
		}
	}
}

var readsModuleUnseen = regexp.MustCompile(`\blist\b.* -m\b.*\{\{\.Dir\}\}`)

func TestRecipesThatReadModulesUnseenAreFound(t *testing.T) {
	if line := "gzip < $$($(GO) list -m -f '{{.Dir}}' example.org/a)/b"; !readsModuleUnseen.MatchString(line) {
		t.Errorf("not found: %s", line)
	}
}
