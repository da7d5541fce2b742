package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// least is the shortest bound of a wait: only a hang may reach it, on a machine however busy.
const least = time.Minute

// TestBoundsAreForHangs: outside of virtual time tests bound their waits by a minute or more, and
// do not compare elapsed time with less. A shorter duration stands in a line that says why, at its
// end or above it:
//
//	// brief: the test wants the time-out
func TestBoundsAreForHangs(t *testing.T) {
	positions, tree := readTree(t)
	b := newBounds(positions, tree)
	for _, f := range b.find() {
		t.Errorf("%s: %s", positions.Position(f.at), f.what)
	}
	if b.looked < 200 || b.marked < 20 {
		t.Errorf("only %d bounds were looked at, and %d durations are marked brief", b.looked, b.marked)
	}
}

// exempt are packages below cluster-test that are no tests: programs that measure how long things
// take, a server of the store with time-outs that tests give it, and these rules, which have
// examples of forbidden code.
var exempt = []string{"cluster-test/bench", "cluster-test/edgebench", "cluster-test/netbench",
	"cluster-test/nodebench", "cluster-test/program", "cluster-test/storebench", "cluster-test/store/member", "cluster-test/layout"}

// bounds finds waits and comparisons in a tree's tests.
type bounds struct {
	*durations
	positions *token.FileSet
	scanned   []source
	virtual   map[string]*bubbles // by directory
	marks     map[*ast.File]marks
	elapsers  map[string]bool // functions that return elapsed time, as param.dir and name
	helpers   map[param]bool  // parameters that become bounds: calls are looked at in their place

	looked, marked int
}

// finding is a bound that is too short.
type finding struct {
	at   token.Pos
	what string
}

func newBounds(positions *token.FileSet, tree []source) *bounds {
	b := &bounds{
		durations: newDurations(tree), positions: positions,
		virtual: make(map[string]*bubbles), marks: make(map[*ast.File]marks), elapsers: make(map[string]bool),
		helpers: make(map[param]bool),
	}
	files := make(map[string][]source)
	for _, s := range tree {
		if (s.test || under(s.dir, testHelpers)) && !under(s.dir, exempt) {
			b.scanned = append(b.scanned, s)
			b.marks[s.File] = marksOf(positions, s.File)
			files[s.dir] = append(files[s.dir], s)
		}
	}
	for dir, of := range files {
		b.virtual[dir] = newBubbles(of)
	}
	return b
}

// find returns all bounds that are too short and not marked, and marks without a reason or a bound.
func (b *bounds) find() []finding {
	// Helpers of helpers, and functions that return another's value, are found one after the other.
	for before := -1; before != len(b.helpers)+len(b.elapsers); {
		before = len(b.helpers) + len(b.elapsers)
		for _, s := range b.scanned {
			b.scan(s, func(token.Pos, span, string) {})
		}
	}
	var all []finding
	for _, s := range b.scanned {
		b.scan(s, func(at token.Pos, d span, what string) {
			b.looked++
			switch {
			case d.known && d.least >= least:
			case d.known:
				all = append(all,
					finding{at,
						what + " of " + d.least.String() +
							": a busy machine takes longer; wait for a minute or more, or say why it is brief"})
			default:
				all = append(all,
					finding{at,
						what + " that cannot be told: make it a constant of a minute or more, or say why it is brief"})
			}
		})
		for _, line := range slices.Sorted(maps.Keys(b.marks[s.File])) {
			switch m := b.marks[s.File][line]; {
			case !m.used:
				all = append(all, finding{m.at, "nothing here is brief"})
			case len(m.reason) < 10:
				all = append(all, finding{m.at, "the reason is missing"})
			default:
				b.marked++
			}
		}
	}
	return all
}

// mark is a comment that calls a duration brief.
type mark struct {
	at     token.Pos
	reason string
	alone  bool // nothing else stands in its line: it is about the next one
	used   bool
}

// marks are those of a file, by their lines.
type marks map[int]*mark

func marksOf(positions *token.FileSet, f *ast.File) marks {
	marks := make(marks)
	for _, group := range f.Comments {
		for _, c := range group.List {
			if reason, ok := strings.CutPrefix(c.Text, "// brief:"); ok {
				marks[positions.Position(c.Pos()).Line] = &mark{at: c.Pos(), reason: strings.TrimSpace(reason),
					alone: true}
			}
		}
	}
	if len(marks) > 0 {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n.(type) {
			case nil, *ast.Comment, *ast.CommentGroup:
				return false
			}
			if m := marks[positions.Position(n.End()).Line]; m != nil {
				m.alone = false
			}
			return true
		})
	}
	return marks
}

// have reports whether a line is marked, and notes that this mark is used.
func (m marks) have(line int) bool {
	for _, l := range []int{line, line - 1} {
		if m[l] != nil && (l == line || m[l].alone) {
			m[l].used = true
			return true
		}
	}
	return false
}

// waits are functions that bound a wait, by the place of the duration in their arguments.
var waits = map[string]int{
	"context.WithTimeout": 1, "context.WithTimeoutCause": 1,
	"time.After": 0, "time.NewTimer": 0, "time.AfterFunc": 0,
	"net.DialTimeout":              2,
	"wait.PollUntilContextTimeout": 2,
}

// untils are functions and methods that bound a wait by a time.
var untils = map[string]int{"context.WithDeadline": 1, "context.WithDeadlineCause": 1, ".SetDeadline": 0,
	".SetReadDeadline": 0, ".SetWriteDeadline": 0}

// clients have a field Timeout.
var clients = [][2]string{{"http", "Client"}, {"net", "Dialer"}, {"rest", "Config"}}

// inText finds time-outs in commands.
var inText = regexp.MustCompile(`(?:--(?:request-)?timeout[= ]|\btimeout )(\d[0-9.]*(?:ms|s|m|h|\b))`)

// scan calls found for each bound outside of virtual time, and notes helpers.
func (b *bounds) scan(s source, found func(at token.Pos, d span, what string)) {
	in := scope{source: s}
	var stack []ast.Node
	ast.Inspect(s.File, func(n ast.Node) bool {
		if n == nil {
			switch stack[len(stack)-1].(type) {
			case *ast.FuncDecl, *ast.FuncLit:
				in.around, in.names = in.around[:len(in.around)-1], in.names[:len(in.names)-1]
			}
			stack = stack[:len(stack)-1]
			return true
		}
		switch f := n.(type) {
		case *ast.FuncDecl:
			in.around, in.names = append(in.around, n), append(in.names, f.Name.Name)
		case *ast.FuncLit:
			in.around, in.names = append(in.around, n), append(in.names, holder(stack, n))
		}
		stack = append(stack, n)
		if b.virtual[s.dir].virtual(n.Pos()) {
			return true
		}
		b.look(n, stack, in, func(at token.Pos, d span, what string) {
			line := b.positions.Position(at).Line
			if (!d.known || d.least < least) && b.marks[s.File].have(line) {
				return
			}
			if d.param != nil && d.param.name != "" {
				b.helpers[*d.param] = true
				return
			}
			found(at, d, what)
		})
		return true
	})
}

// holder returns the name of the variable that a function literal is assigned to.
func holder(stack []ast.Node, lit ast.Node) string {
	if len(stack) == 0 {
		return ""
	}
	switch parent := stack[len(stack)-1].(type) {
	case *ast.AssignStmt:
		for i, value := range parent.Rhs {
			if id, ok := parent.Lhs[i].(*ast.Ident); ok && value == lit {
				return id.Name
			}
		}
	case *ast.ValueSpec:
		for i, value := range parent.Values {
			if value == lit {
				return parent.Names[i].Name
			}
		}
	}
	return ""
}

// look calls found with the bounds that a node is.
func (b *bounds) look(n ast.Node, stack []ast.Node, in scope, found func(at token.Pos, d span, what string)) {
	switch n := n.(type) {
	case *ast.CallExpr:
		b.lookAtCall(n, in, found)
		lookAtWords(n.Args, found)
	case *ast.CompositeLit:
		for _, c := range clients {
			if n.Type != nil && isOf(n.Type, c[0], c[1]) {
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok && isName(kv.Key, "Timeout") {
						found(kv.Value.Pos(), b.of(kv.Value, in, 0), "a time-out")
					}
				}
			}
		}
		lookAtWords(n.Elts, found)
	case *ast.BasicLit:
		if text, ok := textOf(n); ok {
			lookAtText(n.Pos(), text, found)
		}
	case *ast.BinaryExpr:
		b.lookAtComparison(n, stack, in, found)
	case *ast.ReturnStmt:
		for _, r := range n.Results {
			if last := len(in.names) - 1; last >= 0 && in.names[last] != "" && b.elapsed(r, in, 0) {
				b.elapsers[in.dir+"."+in.names[last]] = true
			}
		}
	}
}

func (b *bounds) lookAtCall(call *ast.CallExpr, in scope, found func(at token.Pos, d span, what string)) {
	pkg, name := "", ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		if from, ok := f.X.(*ast.Ident); ok {
			pkg = from.Name
		}
		name = f.Sel.Name
	}
	if i, ok := waits[pkg+"."+name]; ok && i < len(call.Args) {
		found(call.Args[i].Pos(), b.of(call.Args[i], in, 0), pkg+"."+name)
		return
	}
	i, ok := untils[pkg+"."+name]
	if !ok && pkg != "context" {
		i, ok = untils["."+name]
	}
	if ok && i < len(call.Args) {
		if d, ok := b.until(call.Args[i], in, 0); ok {
			found(call.Args[i].Pos(), d, name)
		}
		return
	}
	if (name == "After" || name == "Before") && len(call.Args) == 1 {
		s, _ := call.Fun.(*ast.SelectorExpr)
		for _, pair := range [][2]ast.Expr{{s.X, call.Args[0]}, {call.Args[0], s.X}} {
			if now, ok := pair[0].(*ast.CallExpr); ok && isOf(now.Fun, "time", "Now") {
				if d, ok := b.until(pair[1], in, 0); ok {
					found(call.Pos(), d, "a comparison with the clock")
				}
			}
		}
		return
	}
	for p := range b.helpers {
		if p.name != name || p.index >= len(call.Args) {
			continue
		}
		ours := pkg == "" && !p.method && p.dir == in.dir // a function of the package
		if dir, ok := in.imported(pkg); ok {
			ours = !p.method && p.dir == dir
		} else if _, ok := call.Fun.(*ast.SelectorExpr); ok {
			ours = p.method && in.imports(p.dir)
		}
		if ours {
			found(call.Args[p.index].Pos(), b.of(call.Args[p.index], in, 0), name)
			return
		}
	}
}

// until evaluates how far from another time a time is; ok is false when it is none that a duration
// was added to.
func (b *bounds) until(e ast.Expr, in scope, depth int) (d span, ok bool) {
	if depth > 4 {
		return span{}, false
	}
	switch e := e.(type) {
	case *ast.CallExpr:
		if s, is := e.Fun.(*ast.SelectorExpr); is && s.Sel.Name == "Add" && len(e.Args) == 1 {
			return b.of(e.Args[0], in, 0), true
		}
	case *ast.Ident:
		for i := len(in.around) - 1; i >= 0; i-- {
			if values, found := assigned(in.around[i], e.Name); found {
				for _, v := range values {
					if one, is := b.until(v, in, depth+1); is {
						if ok {
							one = one.or(d)
						}
						d, ok = one, true
					}
				}
				return d, ok
			}
		}
	}
	return span{}, false
}

// lookAtWords finds time-outs that are words of their own in a command.
func lookAtWords(words []ast.Expr, found func(at token.Pos, d span, what string)) {
	for i := range len(words) - 1 {
		name, ok := textOf(words[i])
		value, is := textOf(words[i+1])
		if ok && is && slices.Contains([]string{"timeout", "--timeout", "--request-timeout"}, name) {
			lookAtText(words[i].Pos(), name+" "+value, found)
		}
	}
}

// lookAtText finds time-outs in a command.
func lookAtText(at token.Pos, text string, found func(at token.Pos, d span, what string)) {
	for _, m := range inText.FindAllStringSubmatch(text, -1) {
		value := m[1]
		if _, err := strconv.ParseFloat(value, 64); err == nil {
			value += "s"
		}
		if d, err := time.ParseDuration(value); err == nil && d > 0 {
			found(at, known(d), m[0])
		}
	}
}

func textOf(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// lookAtComparison finds comparisons of elapsed time with an upper bound. In the condition of an if
// the side shows that it is one, since the condition is that of the failure.
func (b *bounds) lookAtComparison(
	c *ast.BinaryExpr, stack []ast.Node, in scope, found func(at token.Pos, d span, what string),
) {
	upper, lower := false, false
	switch c.Op {
	case token.GTR, token.GEQ:
		upper = true
	case token.LSS, token.LEQ:
		lower = true
	case token.EQL, token.NEQ:
		upper, lower = true, true
	default:
		return
	}
	x, y := b.elapsed(c.X, in, 0), b.elapsed(c.Y, in, 0)
	if x == y {
		return
	}
	limit := c.Y
	if y {
		limit, upper, lower = c.X, lower, upper
	}
	inIf, negated := false, false
	for i := len(stack) - 2; i >= 0; i-- {
		switch parent := stack[i].(type) {
		case *ast.UnaryExpr:
			negated = negated != (parent.Op == token.NOT)
			continue
		case *ast.BinaryExpr, *ast.ParenExpr:
			continue
		case *ast.IfStmt:
			inIf = parent.Cond == stack[i+1]
		}
		break
	}
	if negated {
		upper, lower = lower, upper
	}
	if upper || !inIf {
		found(c.Pos(), b.of(limit, in, 0), "a bound on elapsed time")
	}
}

// elapsed reports whether an expression is a time that has elapsed.
func (b *bounds) elapsed(e ast.Expr, in scope, depth int) bool {
	if depth > 6 {
		return false
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return b.elapsed(e.X, in, depth+1)
	case *ast.BinaryExpr:
		return (e.Op == token.ADD || e.Op == token.SUB) && (b.elapsed(e.X, in, depth+1) || b.elapsed(e.Y, in, depth+1))
	case *ast.CallExpr:
		if isOf(e.Fun, "time", "Since") {
			return true
		}
		switch f := e.Fun.(type) {
		case *ast.Ident:
			return b.elapsers[in.dir+"."+f.Name] ||
				(f.Name == "int64" || f.Name == "float64") && b.elapsed(e.Args[0], in, depth+1)
		case *ast.SelectorExpr:
			switch f.Sel.Name {
			case "Sub":
				return len(e.Args) == 1 && b.isNow(f.X, in)
			case "Round", "Truncate", "Seconds", "Milliseconds":
				return b.elapsed(f.X, in, depth+1)
			}
			from, ok := f.X.(*ast.Ident)
			if !ok {
				return false
			}
			if dir, ok := in.imported(from.Name); ok {
				return b.elapsers[dir+"."+f.Sel.Name]
			}
			for key := range b.elapsers {
				if dir, name, _ := strings.Cut(key, "."); name == f.Sel.Name && in.imports(dir) {
					return true
				}
			}
		}
	case *ast.Ident:
		for i := len(in.around) - 1; i >= 0; i-- {
			if values, found := assigned(in.around[i], e.Name); found {
				return slices.ContainsFunc(values, func(v ast.Expr) bool { return b.elapsed(v, in, depth+1) })
			}
		}
	}
	return false
}

// isNow reports whether an expression is the time that it was now, or in a statement before.
func (b *bounds) isNow(e ast.Expr, in scope) bool {
	if call, ok := e.(*ast.CallExpr); ok {
		return isOf(call.Fun, "time", "Now")
	}
	id, ok := e.(*ast.Ident)
	for i := len(in.around) - 1; ok && i >= 0; i-- {
		if values, found := assigned(in.around[i], id.Name); found {
			return slices.ContainsFunc(values, func(v ast.Expr) bool {
				call, ok := v.(*ast.CallExpr)
				return ok && isOf(call.Fun, "time", "Now")
			})
		}
	}
	return false
}

// TestBoundsAreFound: the findings of the rule, and the code that it lets be.
func TestBoundsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		code  string
		found int
	}{
		"a context": {
			`func TestA(t *testing.T) { context.WithTimeout(t.Context(), 5*time.Second); context.WithTimeout(t.Context(), time.Minute) }`, 1},
		"a channel": {
			`func TestA(t *testing.T) { select { case <-c: case <-time.After(59*time.Second): }; <-time.After(time.Hour) }`, 1},
		"a deadline": {
			`func TestA(t *testing.T) { conn.SetDeadline(time.Now().Add(time.Second)); conn.SetReadDeadline(time.Time{}); conn.SetReadDeadline(time.Now().Add(time.Minute)) }`, 1},
		"a client": {
			`func TestA(t *testing.T) { _ = http.Client{Timeout: time.Second}; _ = net.Dialer{Timeout: time.Minute}; _ = product.Config{Timeout: 1} }`, 1},
		"in a bubble": {
			`func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { context.WithTimeout(t.Context(), time.Second); f() }) }; func f() { if time.Since(began) > 1 { panic(1) } }`, 0},
		"a constant": {
			`const short, long = 2 * time.Second, 30 * short; func TestA(t *testing.T) { time.After(short); time.After(long) }`, 1},
		"a variable": {
			`func TestA(t *testing.T) { d := time.Minute; if fast { d = time.Second }; time.After(d) }`, 1},
		"a field of a table": {
			`func TestA(t *testing.T) { for _, c := range []struct{ d time.Duration }{{d: time.Minute}, {d: time.Second}} { time.After(c.d) } }`, 1},
		"what cannot be told": {`func TestA(t *testing.T) { time.After(c.d) }`, 1},
		"the least and the most": {
			`func TestA(t *testing.T) { time.After(max(c.d, time.Minute)); time.After(min(time.Second, time.Hour)) }`,
			1},
		"a helper": {
			`func wait(t *testing.T, d time.Duration) { time.After(d) }; func TestA(t *testing.T) { wait(t, time.Second); wait(t, time.Minute) }`, 1},
		"a helper of a helper": {
			`func a(d time.Duration) { time.After(2*d) }; func b(_ int, d time.Duration) { a(d) }; func TestA(t *testing.T) { b(1, time.Second) }`, 1},
		"a helper in a variable": {
			`func TestA(t *testing.T) { wait := func(d time.Duration) { time.After(d) }; wait(time.Second); wait(time.Minute) }`, 1},
		"a method": {
			`func (c *c) wait(d time.Duration) { time.After(d) }; func TestA(t *testing.T) { x.wait(time.Second) }`, 1},
		"a helper that is brief": {
			`func pause(d time.Duration) { time.After(d) } // brief: a pause is what it is for` + "\n" +
				`func TestA(t *testing.T) { pause(time.Second) }`, 0},
		"it took too long": {
			`func TestA(t *testing.T) { began := time.Now(); if took := time.Since(began); took > time.Second { t.Error(took) } }`, 1},
		"it took too long, twice": {
			`func TestA(t *testing.T) { if time.Second < time.Since(began) || !(time.Now().Sub(began) <= 1) { t.Error() } }`, 2},
		"it took long enough": {
			`func TestA(t *testing.T) { if took := time.Since(began); took < time.Second { t.Error(took) } }`, 0},
		"it hangs": {`func TestA(t *testing.T) { if time.Since(began) > time.Minute { t.Error() } }`, 0},
		"a loop":   {`func TestA(t *testing.T) { for time.Since(began) < time.Second { f() } }`, 1},
		"a loop until a time": {
			`func TestA(t *testing.T) { for end := time.Now().Add(time.Second); time.Now().Before(end); { f() } }`, 1},
		"a time until which": {
			`func TestA(t *testing.T) { end := time.Now().Add(time.Second); for { if time.Now().After(end) { t.Fatal() } } }`, 1},
		"who tells how long": {
			`func f() time.Duration { began := time.Now(); return time.Since(began) }; func TestA(t *testing.T) { if took := f(); took > time.Second { t.Error() } }`, 1},
		"of a command": {
			`func TestA(t *testing.T) { k("wait", "--timeout=30s"); k("wait", "--timeout", "2s"); k("wait", "--timeout=2m"); k("timeout 5 cat x"); k("timeout", "5", "cat"); const c = "--timeout=1s" }`, 5},
		"a mark": {`func TestA(t *testing.T) { time.After(1) } // brief: the test wants the time-out`,
			0},
		"a mark above": {
			"func TestA(t *testing.T) {\n// brief: the test wants the time-out\ntime.After(1)\n}", 0},
		"a mark above, in a line": {
			"func TestA(t *testing.T) {\nx := 1 // brief: the test wants the time-out\ntime.After(1)\n}", 2},
		"a mark of nothing": {`func TestA(t *testing.T) { f() } // brief: the test wants the time-out`, 1},
		"a mark of a long bound": {
			`func TestA(t *testing.T) { time.After(time.Hour) } // brief: the test wants the time-out`, 1},
		"a mark without a reason": {`func TestA(t *testing.T) { time.After(1) } // brief: so`, 1},
	} {
		positions := token.NewFileSet()
		file, err := parser.ParseFile(positions, "a_test.go", "package p\n"+c.code,
			parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if all := newBounds(positions, []source{{dir: "p", test: true, File: file}}).find(); len(all) != c.found {
			t.Errorf("%s: found %+v, want %d", name, all, c.found)
		}
	}
}
