package layout

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// On a fresh machine `go list -m` prints an empty directory for a module that was not downloaded
// yet, and the recipe reads below the root. A build before it downloads the module, and so does
// listing one of its packages.
func TestRecipesDownloadTheModulesThatTheyRead(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range readUnseen(string(text)) {
		t.Errorf("Makefile: take the directory from a package: go list -f '{{.Module.Dir}}' PACKAGE\n%s", line)
	}
}

var moduleIsRead = regexp.MustCompile(`\blist\b.* -m\b.*\{\{\.Dir\}\}`)

// readUnseen returns the lines that read a module before anything in their recipe has built.
func readUnseen(makefile string) (found []string) {
	built := false
	for line := range strings.SplitSeq(makefile, "\n") {
		if !strings.HasPrefix(line, "\t") {
			built = false
		}
		if moduleIsRead.MatchString(line) && !built {
			found = append(found, line)
		}
		built = built || strings.Contains(line, "$(GO) build")
	}
	return found
}

func TestModulesThatAreReadUnseenAreFound(t *testing.T) {
	const read = "\tgzip < $$($(GO) list -m -f '{{.Dir}}' example.org/a)/b"
	for makefile, want := range map[string][]string{
		"a:\n" + read:                                 {read},
		"a:\n\t$(GO) build ./x\n" + read:              nil,
		"a:\n\t$(GO) build ./x\nb:\n" + read:          {read},
		"a:\n\tgzip $$($(GO) list -f '{{.Dir}}' a/b)": nil,
	} {
		if got := readUnseen(makefile); !slices.Equal(got, want) {
			t.Errorf("%q: found %q, want %q", makefile, got, want)
		}
	}
}
