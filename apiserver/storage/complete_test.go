package storage

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const suite = "k8s.io/apiserver/pkg/storage/testing"

// TestSuiteIsComplete fails when the API machinery's suite for storages exports a test or
// benchmark that nothing in this package runs.
func TestSuiteIsComplete(t *testing.T) {
	pkg, err := build.Import(suite, ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	exported := make(map[string]bool)
	eachFile(t, pkg.Dir, func(name string) bool { return !strings.HasSuffix(name, "_test.go") }, func(file *ast.File) {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Run") {
				exported[fn.Name.Name] = true
			}
		}
	})
	if len(exported) < 60 {
		t.Fatalf("found only %d tests in %s: is it still laid out as this test expects?", len(exported), pkg.Dir)
	}

	used := make(map[string]bool)
	eachFile(t, ".", func(name string) bool { return strings.HasSuffix(name, "_test.go") }, func(file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			if sel, ok := node.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "storagetesting" {
					used[sel.Sel.Name] = true
				}
			}
			return true
		})
	})
	for name := range exported {
		if !used[name] {
			t.Errorf("%s of the suite is not run", name)
		}
	}
	t.Logf("all %d tests and benchmarks of the suite are run", len(exported))
}

func eachFile(t *testing.T, dir string, want func(name string) bool, visit func(*ast.File)) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name := entry.Name(); strings.HasSuffix(name, ".go") && want(name) {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			visit(file)
		}
	}
}
