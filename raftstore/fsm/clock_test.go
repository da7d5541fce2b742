package fsm

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// checkNoNow allows a file the types and constants of package time, and none of its functions.
func checkNoNow(t *testing.T, file string) {
	t.Helper()
	fset := token.NewFileSet()
	source, err := parser.ParseFile(fset, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"Duration", "Millisecond"}
	ast.Inspect(source, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "time" && !slices.Contains(allowed, s.Sel.Name) {
				t.Errorf("%s: time.%s: a clock differs between servers", fset.Position(s.Pos()), s.Sel.Name)
			}
		}
		return true
	})
}
