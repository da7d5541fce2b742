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

// way is a drawn way through the code: a table of files in a section of a page. A search for a
// fault on the way reads all of them.
type way struct {
	page, section string
	// files is the ceiling of the table. aim is the ceiling that the way should have; 0 is files. A
	// way above its aim waits for a rebuilding: its ceiling is the present number, and only falls.
	files, aim int
}

var ways = map[string]way{
	"write":            {page: "docs/design.md", section: "## 2. The way of one write", files: 10},
	"join":             {page: "docs/ways.md", section: "## A server joins", files: 12},
	"pod to container": {page: "docs/ways.md", section: "## A pod becomes a container", files: 22, aim: 18},
	"service":          {page: "docs/ways.md", section: "## A Service reaches the kernel", files: 9},
}

// step is a row of a way's table: a file, the function that takes the work, and the call that hands
// it on, if any.
type step struct{ file, takes, hands string }

var stepRow = regexp.MustCompile("^\\| `([a-z/_]+\\.go)` \\| `([A-Za-z]+)` \\| (?:`([A-Za-z]+)`)?")

// Each file of a way has the function that takes the work, and calls the one that hands it on. Each
// function but the first is named by a file of the way, so that no row stands apart.
func TestWays(t *testing.T) {
	const root = "../../"
	for name, w := range ways {
		t.Run(name, func(t *testing.T) {
			steps := stepsOf(t, root+w.page, w.section)
			if len(steps) != w.files {
				t.Errorf("%s, %q: %d files, and the ceiling is %d; a ceiling only falls, to %d", w.page, w.section,
					len(steps), w.files, max(w.aim, 1))
			}
			seen, named := map[string]bool{}, map[string]bool{}
			sources := make([]functions, len(steps))
			for i, s := range steps {
				if seen[s.file] {
					t.Errorf("%s: %s stands twice", w.page, s.file)
				}
				seen[s.file] = true
				sources[i] = readFunctions(t, root+s.file)
				for n := range sources[i].named {
					named[n] = true
				}
			}
			for i, s := range steps {
				if !sources[i].declared[s.takes] {
					t.Errorf("%s: %s has no function %s, which takes the work", w.page, s.file, s.takes)
				}
				if s.hands != "" && !sources[i].named[s.hands] {
					t.Errorf("%s: %s does not call %s, which hands the work on", w.page, s.file, s.hands)
				}
				if i > 0 && !named[s.takes] {
					t.Errorf("%s: no file of the way calls %s of %s", w.page, s.takes, s.file)
				}
			}
		})
	}
}

// stepsOf returns the rows of the table in a section of a page.
func stepsOf(t *testing.T, path, section string) (steps []step) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n"+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", path, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for line := range strings.Lines(text) {
		if row := stepRow.FindStringSubmatch(line); row != nil {
			steps = append(steps, step{file: row[1], takes: row[2], hands: row[3]})
		}
	}
	return steps
}

// functions are names in a file: those of functions that it declares, and all that it uses.
type functions struct{ declared, named map[string]bool }

func readFunctions(t *testing.T, path string) functions {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	f := functions{declared: map[string]bool{}, named: map[string]bool{}}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f.declared[n.Name.Name] = true
		case *ast.CallExpr:
			f.use(n.Fun)
			for _, argument := range n.Args {
				f.use(argument) // a function that is handed over, to a server of requests for example
			}
		case *ast.KeyValueExpr:
			f.use(n.Value)
		}
		return true
	})
	return f
}

// use notes the name of a function that an expression is.
func (f functions) use(e ast.Expr) {
	switch e := e.(type) {
	case *ast.Ident:
		f.named[e.Name] = true
	case *ast.SelectorExpr:
		f.named[e.Sel.Name] = true
	}
}
