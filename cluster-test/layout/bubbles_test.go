package layout

import (
	"go/ast"
	"go/token"
	"slices"
)

// bubbles knows which code of a package's tests runs in virtual time only: the functions that are
// handed to synctest.Test, or to a function that hands them there; and declarations that are used
// nowhere but in such code, a method where its type is. It goes by names, without types: a
// declaration that shares its name counts as used where the other is, too.
type bubbles struct {
	code  []stretch // of functions that are handed to a bubble
	decls []*decl
}

// stretch is a part of a file.
type stretch struct{ from, to token.Pos }

func (s stretch) has(at token.Pos) bool { return s.from <= at && at < s.to }

// decl is a function, a method or a type.
type decl struct {
	stretch
	body     stretch // of a function
	name     string
	receiver string      // of a method: its type
	params   []string    // that are functions
	uses     []token.Pos // of the name, outside of the declaration itself
	virtual  bool        // every use is in virtual time
}

func newBubbles(files []source) *bubbles {
	b := new(bubbles)
	for _, f := range files {
		for _, d := range f.Decls {
			for _, one := range declsOf(d) {
				one.virtual = f.test || !ast.IsExported(one.name) // others use the exported names of a package
				b.decls = append(b.decls, one)
			}
		}
	}
	for _, f := range files {
		b.noteUses(f.File)
	}
	// Functions that hand a parameter to a bubble make one, and so do those that hand theirs to
	// them.
	makers := map[string]bool{}
	for grown := true; grown; {
		b.code, grown = nil, false
		for _, f := range files {
			grown = b.noteCode(f.File, makers) || grown
		}
	}
	for _, f := range files {
		for _, d := range f.Decls {
			b.noteTables(d)
		}
	}
	// A declaration is virtual until a use shows that it is not.
	for changed := true; changed; {
		changed = false
		for _, d := range b.decls {
			if d.virtual && !b.onlyVirtual(d) {
				d.virtual, changed = false, true
			}
		}
	}
	return b
}

// declsOf returns the names of a declaration.
func declsOf(d ast.Decl) (all []*decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		one := &decl{stretch: stretch{d.Pos(), d.End()}, name: d.Name.Name}
		if d.Body != nil {
			one.body = stretch{d.Body.Pos(), d.Body.End()}
		}
		if d.Recv != nil {
			ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && one.receiver == "" {
					one.receiver = id.Name
				}
				return true
			})
		}
		for _, p := range d.Type.Params.List {
			if _, ok := p.Type.(*ast.FuncType); ok {
				for _, id := range p.Names {
					one.params = append(one.params, id.Name)
				}
			}
		}
		all = append(all, one)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if s, ok := spec.(*ast.TypeSpec); ok {
				all = append(all, &decl{stretch: stretch{s.Pos(), s.End()}, name: s.Name.Name})
			}
		}
	}
	return all
}

// noteUses notes where the names of declarations are used.
func (b *bubbles) noteUses(f *ast.File) {
	named := make(map[string][]*decl)
	for _, d := range b.decls {
		named[d.name] = append(named[d.name], d)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		for _, d := range named[id.Name] {
			if !d.has(id.Pos()) && !b.ofMethod(d, id.Pos()) {
				d.uses = append(d.uses, id.Pos())
			}
		}
		return true
	})
}

// ofMethod reports whether a place is in a method of a type: it uses the type, and is used only
// where that is.
func (b *bubbles) ofMethod(of *decl, at token.Pos) bool {
	return slices.ContainsFunc(b.decls,
		func(d *decl) bool { return d.receiver == of.name && of.receiver == "" && d.has(at) })
}

// noteCode notes the code that is handed to a bubble, and reports whether it has found a new maker
// of one.
func (b *bubbles) noteCode(f *ast.File, makers map[string]bool) (grown bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		made := isOf(call.Fun, "synctest", "Test")
		if id, ok := call.Fun.(*ast.Ident); ok {
			made = makers[id.Name]
		}
		if !made {
			return true
		}
		for _, arg := range call.Args {
			switch arg := arg.(type) {
			case *ast.FuncLit:
				b.code = append(b.code, stretch{arg.Pos(), arg.End()})
			case *ast.Ident, *ast.SelectorExpr:
				b.code = append(b.code, stretch{arg.Pos(), arg.End()}) // a use of its name in virtual time
			}
		}
		return true
	})
	for _, d := range b.decls {
		if d.receiver == "" && !makers[d.name] && b.handsOn(f, d) {
			makers[d.name], grown = true, true
		}
	}
	return grown
}

// noteTables notes the functions in a declaration's tables: literals that the declaration ranges
// over, and whose functions it uses in virtual time only.
func (b *bubbles) noteTables(d ast.Decl) {
	literals := make(map[string]*ast.CompositeLit) // by the name of their variable
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if id, ok := n.Lhs[0].(*ast.Ident); ok && len(n.Lhs) == 1 {
				if lit, ok := n.Rhs[0].(*ast.CompositeLit); ok {
					literals[id.Name] = lit
				}
			}
		case *ast.RangeStmt:
			table, ok := n.X.(*ast.CompositeLit)
			variable, named := n.X.(*ast.Ident)
			if named {
				table, ok = literals[variable.Name]
			}
			row, is := n.Value.(*ast.Ident)
			if !ok || !is ||
				named &&
					b.usedOutside(d,
						func(
							n ast.Node,
						) bool {
							return isName(n, variable.Name) && n != variable && n.Pos() > table.End()
						}) {
				return true
			}
			functions := functionFields(table.Type)
			if b.usedOutside(n.Body, func(n ast.Node) bool {
				if len(functions) == 0 {
					return isName(n, row.Name)
				}
				s, ok := n.(*ast.SelectorExpr)
				return ok && isName(s.X, row.Name) && slices.Contains(functions, s.Sel.Name)
			}) {
				return true
			}
			b.code = append(b.code, stretch{table.Lbrace, table.End()})
		}
		return true
	})
}

// usedOutside reports whether a node has others that match, outside of virtual time.
func (b *bubbles) usedOutside(in ast.Node, match func(ast.Node) bool) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		if n != nil && match(n) && !b.inCode(n.Pos()) {
			found = true
		}
		return !found
	})
	return found
}

// functionFields returns the fields of a table's rows that are functions. It returns none when a
// row is a function.
func functionFields(table ast.Expr) (names []string) {
	ast.Inspect(table, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok {
			if _, ok := field.Type.(*ast.FuncType); ok {
				for _, id := range field.Names {
					names = append(names, id.Name)
				}
			}
			return false
		}
		return true
	})
	return names
}

// handsOn reports whether a function of a file uses those of its parameters that are functions, and
// only in virtual time.
func (b *bubbles) handsOn(f *ast.File, d *decl) bool {
	used, outside := false, false
	ast.Inspect(f, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && d.body.has(id.Pos()) && slices.Contains(d.params, id.Name) {
			inside := b.inCode(id.Pos())
			used, outside = used || inside, outside || !inside
		}
		return true
	})
	return used && !outside
}

func (b *bubbles) inCode(at token.Pos) bool {
	return slices.ContainsFunc(b.code, func(s stretch) bool { return s.has(at) })
}

// virtual reports whether a place is in code that runs in virtual time only.
func (b *bubbles) virtual(at token.Pos) bool {
	return b.inCode(at) || slices.ContainsFunc(b.decls, func(d *decl) bool { return d.has(at) && d.virtual })
}

// onlyVirtual reports whether a declaration is used, and in virtual time only. A method is used
// where its type is: code that is no test may call it by an interface.
func (b *bubbles) onlyVirtual(d *decl) bool {
	if d.receiver != "" {
		return slices.ContainsFunc(b.decls,
			func(of *decl) bool { return of.name == d.receiver && of.receiver == "" && of.virtual })
	}
	return len(d.uses) > 0 && !slices.ContainsFunc(d.uses, func(at token.Pos) bool { return !b.virtual(at) })
}
