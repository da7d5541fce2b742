package layout

import (
	"go/scanner"
	"go/token"
	"os"
	"strings"
	"testing"
)

// codeColumns is how wide lines of code may be. A tab counts as four.
const codeColumns = 120

// A text is never broken, so that it can be searched for: a line may be longer that begins with
// one, or has one across the bound.
func TestCodeFitsIntoColumns(t *testing.T) {
	lines := 0
	positions, tree := readTree(t)
	for _, file := range tree {
		path := positions.Position(file.Pos()).Filename
		source := linesOf(t, path)
		lines += len(source)
		texts := textsAcross(t, path, source)
		for i, line := range source {
			if width(line) > codeColumns && !texts[i] {
				t.Errorf("%s:%d: code of %d columns; at most %d", path, i+1, width(line), codeColumns)
			}
		}
	}
	if lines < 100_000 {
		t.Errorf("only %d lines of code were looked at", lines)
	}
}

// textsAcross returns the lines, from 0, that begin with a text or a comment, or have a text across
// the bound.
func textsAcross(t *testing.T, path string, source []string) map[int]bool {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	positions := token.NewFileSet()
	file := positions.AddFile(path, -1, len(content))
	var s scanner.Scanner
	s.Init(file, content, nil, scanner.ScanComments)
	across := map[int]bool{}
	for {
		at, kind, text := s.Scan()
		if kind == token.EOF {
			return across
		}
		if kind != token.STRING && kind != token.COMMENT {
			continue
		}
		begin, end := positions.Position(at), positions.Position(at+token.Pos(len(text)))
		for n := begin.Line; n <= end.Line && n <= len(source); n++ {
			line := source[n-1]
			from, to := 0, len(line)
			if n == begin.Line {
				from = begin.Column - 1
			}
			if n == end.Line {
				to = min(end.Column-1, len(line))
			}
			first := from == len(line)-len(strings.TrimLeft(line, "\t "))
			crosses := width(line[:from]) <= codeColumns && width(line[:to]) > codeColumns
			if first || crosses && kind == token.STRING {
				across[n-1] = true
			}
		}
	}
}
