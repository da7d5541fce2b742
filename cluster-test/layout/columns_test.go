package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// columns is how wide comments and docs may be. A tab counts as four.
const columns = 100

// Preformatted text (code, tables, drawings) is as wide as it must be, and so is a single word such
// as an address. A comment at the end of a line belongs to the line.
func TestTextFitsIntoColumns(t *testing.T) {
	comments := 0
	positions, tree := readTree(t)
	for _, file := range tree {
		path := positions.Position(file.Pos()).Filename
		source := linesOf(t, path)
		for _, group := range file.Comments {
			for _, comment := range group.List {
				at := positions.Position(comment.Pos())
				line := source[at.Line-1]
				text, alone := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
				if !alone {
					continue
				}
				comments++
				if width(line) > columns && flows(text) {
					t.Errorf("%s: a comment of %d columns; at most %d", at, width(line), columns)
				}
			}
		}
	}
	if comments < 10_000 {
		t.Errorf("only %d lines of comments were looked at", comments)
	}
	pages := 0
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "bin"):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".md"):
			return nil
		}
		pages++
		fenced, written := false, false
		for i, line := range linesOf(t, path) {
			if strings.HasPrefix(line, "<!-- make conformance writes from here") {
				break // specs by their names
			}
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			switch {
			case strings.HasPrefix(line, "<!-- make conformance-gateway writes from here"):
				written = true // its messages of errors
			case strings.HasPrefix(line, "<!-- to here"):
				written = false
			}
			if !written && !fenced && width(line) > columns && flows(line) {
				t.Errorf("%s:%d: a line of %d columns; at most %d", path, i+1, width(line), columns)
			}
		}
		return nil
	})
	if err != nil || pages < 20 {
		t.Errorf("%d pages were looked at: %v", pages, err)
	}
}

// flows reports whether a line of text can be broken.
func flows(line string) bool {
	preformatted := strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t") ||
		strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "<")
	return !preformatted && strings.Contains(strings.TrimSpace(line), " ")
}

func width(line string) int {
	return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t")
}

func linesOf(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(content), "\n")
}
