package storage

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const suite = "k8s.io/apiserver/pkg/storage/testing"

// TestSuiteIsComplete fails when the API machinery's suite for storages exports a test or benchmark
// that nothing in this package runs, or when a test is run under another's name: TestConformance
// counts by names.
func TestSuiteIsComplete(t *testing.T) {
	used := make(map[string]bool)
	eachFile(t, ".", func(name string) bool { return strings.HasSuffix(name, "_test.go") }, func(file *ast.File) {
		ast.Inspect(file, func(node ast.Node) bool {
			if list, ok := node.(*ast.CompositeLit); ok && isConformanceList(list) {
				for _, entry := range list.Elts {
					name, calls := namesAndCalls(entry)
					if len(name) != 1 || !slices.Equal(slices.Compact(calls), name) {
						t.Errorf("an entry named %v calls %v", name, calls)
					}
				}
			}
			if call := suiteCall(node); call != "" {
				used[call] = true
			}
			return true
		})
	})
	all := exported(t)
	for name := range all {
		if !used[name] {
			t.Errorf("%s of the suite is not run", name)
		}
	}
	t.Logf("all %d tests and benchmarks of the suite are run", len(all))
}

// exportedTests returns the suite's tests.
func exportedTests(t *testing.T) map[string]bool {
	tests := exported(t)
	maps.DeleteFunc(tests, func(name string, _ bool) bool { return strings.HasPrefix(name, "RunBenchmark") })
	return tests
}

// exported returns the suite's tests and benchmarks.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", suite).Output()
	if err != nil {
		t.Fatalf("where is the source of %s? go list: %v", suite, err)
	}
	dir := strings.TrimSpace(string(out))
	names := make(map[string]bool)
	eachFile(t, dir, func(name string) bool { return !strings.HasSuffix(name, "_test.go") }, func(file *ast.File) {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Run") {
				names[fn.Name.Name] = true
			}
		}
	})
	if len(names) < 60 {
		t.Fatalf("found only %d tests in %s: is it still laid out as this test expects?", len(names), dir)
	}
	return names
}

func isConformanceList(list *ast.CompositeLit) bool {
	array, ok := list.Type.(*ast.ArrayType)
	if !ok {
		return false
	}
	elem, ok := array.Elt.(*ast.Ident)
	return ok && elem.Name == "conformance"
}

// suiteCall returns the test of the suite that a node names.
func suiteCall(node ast.Node) string {
	if sel, ok := node.(*ast.SelectorExpr); ok {
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "storagetesting" && strings.HasPrefix(sel.Sel.Name, "Run") {
			return sel.Sel.Name
		}
	}
	return ""
}

func namesAndCalls(entry ast.Node) (names, calls []string) {
	ast.Inspect(entry, func(node ast.Node) bool {
		if text, ok := node.(*ast.BasicLit); ok && strings.HasPrefix(text.Value, `"Run`) {
			names = append(names, strings.Trim(text.Value, `"`))
		}
		if call := suiteCall(node); call != "" {
			calls = append(calls, call)
		}
		return true
	})
	return names, calls
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
