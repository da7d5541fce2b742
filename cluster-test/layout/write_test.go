package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// maxWriteFiles is how many files of Barque a write may pass on the leader, from the API's storage
// adapter to the published event. The search for a slow or a lost write reads all of them.
const maxWriteFiles = 10

// writeStep is a row of the table in docs/design.md.
var writeStep = regexp.MustCompile("^\\| `([a-z/_]+\\.go)` \\| `([A-Za-z]+)` \\| (?:`([A-Za-z]+)`)?")

// The way of one write is as docs/design.md draws it: each file has the function that takes the
// write, and calls the one that hands it on.
func TestWayOfOneWrite(t *testing.T) {
	const root = "../../"
	page, err := os.ReadFile(root + "docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for line := range strings.Lines(string(page)) {
		row := writeStep.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		files++
		path, takes, hands := row[1], row[2], row[3]
		declared, called := functions(t, root+path)
		if !declared[takes] {
			t.Errorf("docs/design.md: %s has no function %s, which takes the write", path, takes)
		}
		if hands != "" && !called[hands] {
			t.Errorf("docs/design.md: %s does not call %s, which hands the write on", path, hands)
		}
	}
	if files == 0 || files > maxWriteFiles {
		t.Errorf("docs/design.md: a write passes %d files, and there should be 1 to %d", files, maxWriteFiles)
	}
}

// functions returns the names of the functions that a file declares, and of those that it calls.
func functions(t *testing.T, path string) (declared, called map[string]bool) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	declared, called = map[string]bool{}, map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			declared[n.Name.Name] = true
		case *ast.CallExpr:
			switch f := n.Fun.(type) {
			case *ast.Ident:
				called[f.Name] = true
			case *ast.SelectorExpr:
				called[f.Sel.Name] = true
			}
		}
		return true
	})
	return declared, called
}
