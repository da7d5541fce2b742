package layout

import (
	"go/ast"
	"testing"
)

// smallPackage is how many lines the product files of a package may have. Above it a newcomer does
// not read the package in one sitting.
const smallPackage = 3000

// No package has more lines than smallPackage. Comments count, and tests do not.
func TestPackagesAreSmall(t *testing.T) {
	positions, tree := readTree(t)
	lines := map[string]int{}
	for _, file := range tree {
		if !file.test {
			lines[file.dir] += positions.File(file.Pos()).LineCount() - 1 // a last line is empty
		}
	}
	for dir, n := range lines {
		if n > smallPackage {
			t.Errorf("%s has %d lines without its tests; at most %d: divide it", dir, n, smallPackage)
		}
	}
	if len(lines) < 200 {
		t.Errorf("only %d packages were looked at", len(lines))
	}
}

// smallStruct is how many fields of its own a struct may have. Those that are exported do not
// count: plain data, such as options, has one for each value.
const smallStruct = 30

// No struct of the product has more fields of its own than smallStruct.
func TestStructsAreSmall(t *testing.T) {
	_, tree := readTree(t)
	seen := 0
	for _, file := range tree {
		if file.test {
			continue
		}
		ast.Inspect(file.File, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			of, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			own := 0
			for _, field := range of.Fields.List {
				for _, f := range field.Names {
					if !f.IsExported() {
						own++
					}
				}
			}
			if seen++; own > smallStruct {
				t.Errorf("%s.%s has %d fields of its own; at most %d: group them by concern", file.dir, spec.Name.Name,
					own, smallStruct)
			}
			return true
		})
	}
	if seen < 1000 {
		t.Errorf("only %d structs were looked at", seen)
	}
}
