package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Nothing sleeps for a while and hopes that this was enough: what waits, waits for what it wants, or until a context ends.
// In virtual time, where a sleep is over when nothing else has anything to do, time.Sleep is how a test lets time pass.
func TestNobodySleeps(t *testing.T) {
	files, virtual := 0, 0
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != "../.." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" || e.Name() == "testdata") {
			return fs.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		positions := token.NewFileSet()
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, "_test.go") && imports(file, "testing/synctest") {
			virtual++
			return nil
		}
		for _, at := range sleeps(file) {
			t.Errorf("%s: time.Sleep; wait for what is wanted, or use testing/synctest", positions.Position(at))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 500 || virtual < 20 {
		t.Errorf("only %d files were looked at, %d of them with virtual time", files, virtual)
	}
}

func imports(file *ast.File, path string) bool {
	for _, i := range file.Imports {
		if i.Path.Value == `"`+path+`"` {
			return true
		}
	}
	return false
}

// sleeps returns where time.Sleep stands, called or handed on.
func sleeps(file *ast.File) (all []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
			if from, ok := s.X.(*ast.Ident); ok && from.Name == "time" {
				all = append(all, s.Pos())
			}
		}
		return true
	})
	return all
}

func TestSleepsAreFound(t *testing.T) {
	const code = "package p\nimport \"time\"\nfunc f() { time.Sleep(1); defer time.Sleep(2); do(time.Sleep); time.After(3); x.Sleep(4) }\n"
	file, err := parser.ParseFile(token.NewFileSet(), "", code, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	if found := sleeps(file); len(found) != 3 {
		t.Errorf("%d sleeps were found, want 3", len(found))
	}
}
