package layout

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// durations evaluates durations in the tree's tests, by names and without types: constants and
// variables of packages, variables and parameters of functions, fields of composite literals. Where
// a name has several values the shortest one counts.
type durations struct {
	packages map[string]map[string]value // by directory: constants and variables
}

// value is that of a constant or a variable, and the file that it is in.
type value struct {
	source
	ast.Expr
}

func newDurations(tree []source) *durations {
	d := &durations{packages: make(map[string]map[string]value)}
	for _, s := range tree {
		if d.packages[s.dir] == nil {
			d.packages[s.dir] = make(map[string]value)
		}
		for _, decl := range s.Decls {
			values, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range values.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if !ok || len(v.Values) != len(v.Names) {
					continue
				}
				for i, name := range v.Names {
					d.packages[s.dir][name.Name] = value{s, v.Values[i]}
				}
			}
		}
	}
	return d
}

// span is the value of a duration.
type span struct {
	known bool
	least time.Duration
	param *param // the duration is, or derives from, this parameter of an enclosing function
}

func known(d time.Duration) span { return span{known: true, least: d} }

// or returns the shorter one of two values; a value that is not known makes the result unknown.
func (s span) or(other span) span {
	switch {
	case s.param != nil:
		return s
	case other.param != nil:
		return other
	case !s.known || !other.known:
		return span{}
	}
	return known(min(s.least, other.least))
}

// param is a duration parameter of a function of a package.
type param struct {
	dir, name string // name of the function, or of the variable that has it
	method    bool
	index     int
}

// scope is a file, and the functions around a place in it, the outermost first.
type scope struct {
	source
	around []ast.Node // *ast.FuncDecl, *ast.FuncLit
	names  []string   // of the variables that hold the function literals
}

// foreign are constants of other modules.
var foreign = map[string]time.Duration{"wait.ForeverTestTimeout": 30 * time.Second}

var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
	"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// of evaluates an expression. depth bounds the recursion through names.
func (d *durations) of(e ast.Expr, in scope, depth int) span {
	if depth > 12 {
		return span{}
	}
	next := func(e ast.Expr) span { return d.of(e, in, depth+1) }
	switch e := e.(type) {
	case *ast.ParenExpr:
		return next(e.X)
	case *ast.BasicLit:
		if n, err := strconv.ParseInt(strings.ReplaceAll(e.Value, "_", ""), 0, 64); err == nil {
			return known(time.Duration(n))
		}
	case *ast.BinaryExpr:
		x, y := next(e.X), next(e.Y)
		if e.Op == token.ADD && max(x.least, y.least) >= least {
			return known(max(x.least, y.least))
		}
		if x.param != nil || y.param != nil || !x.known || !y.known {
			return x.or(y)
		}
		switch {
		case e.Op == token.MUL:
			return known(x.least * y.least)
		case e.Op == token.ADD:
			return known(x.least + y.least)
		case e.Op == token.SUB:
			return known(x.least - y.least)
		case e.Op == token.QUO && y.least != 0:
			return known(x.least / y.least)
		}
	case *ast.CallExpr:
		switch {
		case isOf(e.Fun, "time", "Duration") && len(e.Args) == 1:
			return next(e.Args[0])
		case isName(e.Fun, "max") && len(e.Args) > 0: // at least as long as the longest one that is known
			longest := span{}
			for _, arg := range e.Args {
				if s := next(arg); s.param != nil {
					return s
				} else if s.known {
					longest = known(max(longest.least, s.least))
				}
			}
			return longest
		case isName(e.Fun, "min") && len(e.Args) > 0:
			shortest := next(e.Args[0])
			for _, arg := range e.Args[1:] {
				shortest = shortest.or(next(arg))
			}
			return shortest
		}
	case *ast.SelectorExpr:
		from, ok := e.X.(*ast.Ident)
		if !ok {
			return d.field(e.Sel.Name, in, depth)
		}
		if unit, ok := units[e.Sel.Name]; ok && from.Name == "time" {
			return known(unit)
		}
		if constant, ok := foreign[from.Name+"."+e.Sel.Name]; ok {
			return known(constant)
		}
		if dir, ok := in.imported(from.Name); ok {
			return d.constant(dir, e.Sel.Name, depth)
		}
		return d.field(e.Sel.Name, in, depth)
	case *ast.Ident:
		return d.name(e.Name, in, depth)
	}
	return span{}
}

// constant evaluates a constant or variable of a package.
func (d *durations) constant(dir, name string, depth int) span {
	if v, ok := d.packages[dir][name]; ok {
		return d.of(v.Expr, scope{source: v.source}, depth+1)
	}
	return span{}
}

// name evaluates a name: as the innermost function that has it, or the package, defines it.
func (d *durations) name(name string, in scope, depth int) span {
	for i := len(in.around) - 1; i >= 0; i-- {
		if p := in.param(i, name); p != nil {
			return span{param: p}
		}
		if values, found := assigned(in.around[i], name); found {
			return d.shortest(values, in, depth)
		}
	}
	return d.constant(in.dir, name, depth)
}

// field evaluates a field, by the composite literals with its name in the functions around.
func (d *durations) field(name string, in scope, depth int) span {
	for i := len(in.around) - 1; i >= 0; i-- {
		var values []ast.Expr
		ast.Inspect(in.around[i], func(n ast.Node) bool {
			if kv, ok := n.(*ast.KeyValueExpr); ok && isName(kv.Key, name) {
				values = append(values, kv.Value)
			}
			return true
		})
		if len(values) > 0 {
			return d.shortest(values, in, depth)
		}
	}
	return span{}
}

func (d *durations) shortest(values []ast.Expr, in scope, depth int) span {
	if len(values) == 0 {
		return span{}
	}
	s := d.of(values[0], in, depth+1)
	for _, v := range values[1:] {
		s = s.or(d.of(v, in, depth+1))
	}
	return s
}

// assigned returns the values that a function assigns to a name; found: it assigns to it at all.
func assigned(function ast.Node, name string) (values []ast.Expr, found bool) {
	ast.Inspect(function, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if isName(to, name) {
					found = true
					if len(n.Rhs) == len(n.Lhs) {
						values = append(values, n.Rhs[i])
					} else {
						values = append(values, n.Rhs[0])
					}
				}
			}
		case *ast.ValueSpec:
			for i, to := range n.Names {
				if to.Name == name && i < len(n.Values) {
					found, values = true, append(values, n.Values[i])
				}
			}
		case *ast.RangeStmt:
			if n.Value != nil && isName(n.Value, name) {
				found = true
				if list, ok := n.X.(*ast.CompositeLit); ok {
					values = append(values, list.Elts...)
				} else {
					values = append(values, n.X)
				}
			}
		}
		return true
	})
	return values, found
}

// param returns the parameter of a function around that has a name, if there is one and it is a
// duration.
func (s scope) param(i int, name string) *param {
	var list *ast.FieldList
	p := &param{dir: s.dir, name: s.names[i]}
	switch f := s.around[i].(type) {
	case *ast.FuncDecl:
		list, p.method = f.Type.Params, f.Recv != nil
	case *ast.FuncLit:
		list = f.Type.Params
	}
	for _, field := range list.List {
		for _, id := range field.Names {
			if id.Name == name && isOf(field.Type, "time", "Duration") {
				return p
			}
			p.index++
		}
		if len(field.Names) == 0 {
			p.index++
		}
	}
	return nil
}

// imported returns the directory of a package of the tree that the file imports.
func (s source) imported(name string) (dir string, ok bool) {
	for _, i := range s.Imports {
		full, _ := strconv.Unquote(i.Path.Value)
		as := path.Base(full)
		if i.Name != nil {
			as = i.Name.Name
		} else if as == "cluster-test" {
			as = "clustertest"
		}
		if dir, own := strings.CutPrefix(full, module); own && as == name {
			return dir, true
		}
	}
	return "", false
}

// imports reports whether the file is in a package or imports it.
func (s source) imports(dir string) bool {
	return s.dir == dir ||
		slices.ContainsFunc(s.Imports,
			func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(module+dir) })
}

func isName(n ast.Node, name string) bool {
	id, ok := n.(*ast.Ident)
	return ok && id.Name == name
}
