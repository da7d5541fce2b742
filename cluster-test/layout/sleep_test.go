package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"testing"
)

// No code sleeps for a while and hopes that this was enough: a wait ends with its condition, or
// when a context ends. In virtual time, where a sleep is over when nothing else has anything to do,
// time.Sleep is how a test lets time pass.
func TestNobodySleeps(t *testing.T) {
	virtual := 0
	packages := make(map[string][]source) // test files, by directory
	positions, tree := readTree(t)
	for _, file := range tree {
		if file.test {
			packages[file.dir] = append(packages[file.dir], file)
			continue
		}
		for _, at := range sleeps(file.File) {
			t.Errorf("%s: time.Sleep; wait for what is wanted", positions.Position(at))
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		b := newBubbles(packages[dir])
		for _, file := range packages[dir] {
			for _, at := range sleeps(file.File) {
				if b.virtual(at) {
					virtual++
				} else {
					t.Errorf("%s: time.Sleep outside of a bubble of testing/synctest; wait for what is wanted",
						positions.Position(at))
				}
			}
		}
	}
	if virtual < 100 {
		t.Errorf("only %d sleeps in virtual time were looked at", virtual)
	}
}

// sleeps returns where time.Sleep stands, called or handed on.
func sleeps(file *ast.File) (all []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		if isOf(n, "time", "Sleep") {
			all = append(all, n.Pos())
		}
		return true
	})
	return all
}

// isOf reports whether a node is a name of a package.
func isOf(n ast.Node, pkg, name string) bool {
	s, ok := n.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == pkg
}

// TestSleepsAreFound: the findings of the rule, and the code that it lets be.
func TestSleepsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		code    string
		outside int // sleeps that are found; all others are in bubbles
	}{
		"in a test": {
			`func TestA(t *testing.T) { time.Sleep(1); defer time.Sleep(2); do(time.Sleep); time.After(3); x.Sleep(4) }`, 3},
		"in a bubble": {
			`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1); go func() { time.Sleep(2) }() }) }`, 0},
		"before and after a bubble": {
			`func TestA(t *testing.T) { time.Sleep(1); synctest.Test(t, func(t *testing.T) {}); time.Sleep(2) }`, 2},
		"another's Test": {
			`func TestA(t *testing.T) { other.Test(t, func(t *testing.T) { time.Sleep(1) }) }`, 1},
		"a function that is handed on": {
			`func TestA(t *testing.T) { synctest.Test(t, f) }; func f(t *testing.T) { time.Sleep(1) }`, 0},
		"a helper of bubbles": {
			`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { f() }) }; func f() { g() }; func g() { time.Sleep(1); f() }`, 0},
		"a helper of others, too": {
			`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { f() }) }; func TestB(t *testing.T) { f() }; func f() { g() }; func g() { time.Sleep(1) }`, 1},
		"a helper that nobody uses": {`func f() { time.Sleep(1) }`, 1},
		"helpers of each other": {
			`func TestA(t *testing.T) { f() }; func f() { time.Sleep(1); g() }; func g() { time.Sleep(2); f() }`, 2},
		"a helper of the package": {
			`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { f() }) }; var x = f(); func f() int { time.Sleep(1); return 1 }`, 1},
		"a maker of bubbles": {
			`func TestA(t *testing.T) { in(t, func() { time.Sleep(1) }) }; func in(t *testing.T, do func()) { synctest.Test(t, func(t *testing.T) { do() }) }`, 0},
		"a maker by another maker": {
			`func TestA(t *testing.T) { in2(t, func() { time.Sleep(1) }) }; func in2(t *testing.T, f func()) { in(t, func() { f() }) }; func in(t *testing.T, do func()) { synctest.Test(t, func(t *testing.T) { do() }) }`, 0},
		"no maker of bubbles": {
			`func TestA(t *testing.T) { in(t, func() { time.Sleep(1) }) }; func in(t *testing.T, do func()) { do(); synctest.Test(t, func(t *testing.T) { do() }) }`, 1},
		"a type of bubbles": {
			`type fake struct{}; func (f *fake) Stop() { time.Sleep(1) }; func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(&fake{}) }) }`, 0},
		"a type of others, too": {
			`type fake struct{}; func (f fake) Stop() { time.Sleep(1) }; func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(fake{}) }) }; func TestB(t *testing.T) { run(fake{}) }`, 1},
		"a table of bubbles": {
			`func TestA(t *testing.T) { for n, c := range map[string]struct{ d int; do func() }{"a": {1, func() { time.Sleep(1) }}} { t.Log(c.d); synctest.Test(t, func(t *testing.T) { c.do() }) } }`, 0},
		"a table of functions": {
			`func TestA(t *testing.T) { all := []func(){func() { time.Sleep(1) }}; for _, f := range all { synctest.Test(t, f) } }`, 0},
		"a table handed to a maker": {
			`func TestA(t *testing.T) { for _, c := range []struct{ do func() }{{func() { time.Sleep(1) }}} { in(t, c.do) } }; func in(t *testing.T, do func()) { synctest.Test(t, func(t *testing.T) { do() }) }`, 0},
		"a table of others": {
			`func TestA(t *testing.T) { for _, c := range []struct{ do func() }{{func() { time.Sleep(1) }}} { c.do(); synctest.Test(t, func(t *testing.T) { c.do() }) } }`, 1},
		"functions of others": {
			`func TestA(t *testing.T) { for _, f := range []func(){func() { time.Sleep(1) }} { f() } }`, 1},
		"a table used otherwise": {
			`func TestA(t *testing.T) { all := []func(){func() { time.Sleep(1) }}; all[0](); for _, f := range all { synctest.Test(t, f) } }`, 1},
		"a type in a type of bubbles": {
			`type fake struct{}; type two struct{ a, b fake }; func (f fake) Stop() { time.Sleep(1) }; func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(two{}) }) }`, 0},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+c.code, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		b, outside := newBubbles([]source{{test: true, File: file}}), 0
		for _, at := range sleeps(file) {
			if !b.virtual(at) {
				outside++
			}
		}
		if outside != c.outside {
			t.Errorf("%s: %d sleeps were found, want %d", name, outside, c.outside)
		}
	}
}
