package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// On a fresh machine `go list -m` prints an empty directory for a module that was not downloaded
// yet, and the recipe reads below the root. A build before it downloads the module, and so does
// listing one of its packages.
func TestRecipesDownloadTheModulesThatTheyRead(t *testing.T) {
	for name, text := range makefiles(t) {
		for _, line := range readUnseen(text) {
			t.Errorf("%s: take the directory from a package: go list -f '{{.Module.Dir}}' PACKAGE\n%s", name, line)
		}
	}
}

// makefiles returns the texts of the Makefile and its parts.
func makefiles(t *testing.T) map[string]string {
	parts, err := filepath.Glob("../../make/*.mk")
	if err != nil || len(parts) < 5 {
		t.Fatalf("the parts of the Makefile are not in make/: %q, %v", parts, err)
	}
	texts := map[string]string{}
	for _, path := range append(parts, "../../Makefile") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimPrefix(path, "../../")] = string(text)
	}
	return texts
}

// A target is declared phony, explained to `make help`, and its part is included. A file that has
// the name of a target would otherwise stand in its way.
func TestTargetsAreExplained(t *testing.T) {
	texts := makefiles(t)
	for name, text := range texts {
		if name != "Makefile" && !strings.Contains(texts["Makefile"], name) {
			t.Errorf("the Makefile does not include %s", name)
		}
		phony := map[string]bool{}
		for _, line := range phonies.FindAllStringSubmatch(text, -1) {
			for target := range strings.FieldsSeq(line[1]) {
				phony[target] = true
			}
		}
		for _, target := range explained.FindAllStringSubmatch(text, -1) {
			if !phony[target[1]] {
				t.Errorf("%s: %s is explained, and not declared .PHONY", name, target[1])
			}
			delete(phony, target[1])
		}
		for target := range phony {
			if !strings.HasPrefix(target, "unit-") { // halves of test-unit
				t.Errorf("%s: %s has no explanation: add ## and a line for make help", name, target)
			}
		}
	}
}

var (
	phonies   = regexp.MustCompile(`(?m)^\.PHONY: (.*)$`)
	explained = regexp.MustCompile(`(?m)^([a-z0-9-]+):.* ## .`)
)

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
