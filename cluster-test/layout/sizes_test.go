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

// largeStructs are those above it, by package and name, with their present number.
var largeStructs = map[string]int{"kubelet/pods.worker": 47}

// No struct of the product has more fields of its own than smallStruct, except the named ones.
func TestStructsAreSmall(t *testing.T) {
	_, tree := readTree(t)
	seen := map[string]bool{}
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
			name, own := file.dir+"."+spec.Name.Name, 0
			for _, field := range of.Fields.List {
				for _, f := range field.Names {
					if !f.IsExported() {
						own++
					}
				}
			}
			ceiling, large := largeStructs[name]
			seen[name] = true
			switch {
			case !large && own > smallStruct:
				t.Errorf("%s has %d fields of its own; at most %d: group them by concern", name, own, smallStruct)
			case large && own > ceiling:
				t.Errorf("%s has %d fields of its own; its ceiling is %d, which only falls", name, own, ceiling)
			case large && own <= smallStruct:
				t.Errorf("%s has %d fields of its own: it is small now; remove its row in largeStructs", name, own)
			}
			return true
		})
	}
	for name := range largeStructs {
		if !seen[name] {
			t.Errorf("largeStructs has %s, which is no struct", name)
		}
	}
}
