package suiterun

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Section is a part of a page between two lines. A run writes it, and people write the rest.
type Section struct{ Begin, End string }

// Split returns the text before, in and after the section, without its lines.
func (s Section) Split(page string) (before, between, after string, err error) {
	before, rest, ok := strings.Cut(page, s.Begin)
	between, after, closed := strings.Cut(rest, s.End)
	if !ok || !closed {
		return "", "", "", fmt.Errorf("the page lacks the lines %q and %q: results go between them", s.Begin, s.End)
	}
	return before, between, after, nil
}

// Replace returns the page with another text in the section.
func (s Section) Replace(page, text string) (string, error) {
	before, _, after, err := s.Split(page)
	if err != nil {
		return "", err
	}
	return before + s.Begin + "\n\n" + text + "\n" + s.End + after, nil
}

// List returns the items of the list below a heading of the section.
func (s Section) List(page, under string) ([]string, error) {
	_, between, _, err := s.Split(page)
	if err != nil {
		return nil, err
	}
	var out []string
	heading := ""
	for line := range strings.Lines(between) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") {
			heading = line
		} else if name, ok := strings.CutPrefix(line, "- "); ok && heading == under {
			out = append(out, name)
		}
	}
	return out, nil
}

// Artefact is a file of a run, by which its holder can check the page.
type Artefact struct {
	Name   string
	Bytes  int
	SHA256 string
}

// Describe reads files in a directory.
func Describe(dir string, names ...string) ([]Artefact, error) {
	var out []Artefact
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		out = append(out, Artefact{Name: name, Bytes: len(raw), SHA256: fmt.Sprintf("%x", sha256.Sum256(raw))})
	}
	return out, nil
}

// Table has a line for each file.
func Table(files []Artefact) string {
	var b strings.Builder
	b.WriteString("| report | bytes | SHA-256 |\n|---|---|---|\n")
	for _, a := range files {
		fmt.Fprintf(&b, "| `%s` | %d | `%s` |\n", a.Name, a.Bytes, a.SHA256)
	}
	return b.String()
}
