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

// source is a Go file of the tree.
type source struct {
	dir  string // below the root of the tree
	test bool   // its name ends in _test.go
	*ast.File
}

// readTree parses all Go files of the tree.
func readTree(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	const root = "../.."
	positions, all := token.NewFileSet(), []source(nil)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != root &&
			(strings.HasPrefix(e.Name(), ".") || e.Name() == "bin" || e.Name() == "testdata") {
			return fs.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		all = append(all, source{dir: filepath.ToSlash(dir), test: strings.HasSuffix(path, "_test.go"), File: file})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 500 {
		t.Fatalf("the tree has only %d Go files", len(all))
	}
	return positions, all
}
