// Package runbook reads the commands that a page of the documentation shows, so that a test can
// perform them word for word: when the words change the test fails, and when a procedure gets a
// command that no test performs, too.
//
// A command is an indented line of Markdown that begins with `barque ` or with an opening bracket;
// other indented lines are the output of commands. A remark behind it, after two spaces and a #, is
// not part of it.
package runbook

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Section is the text below one heading, up to the next one of any level.
type Section struct {
	Title    string
	Commands []string // in order, each once
}

// Book is a page.
type Book struct{ Sections []Section }

// Read reads a page of Markdown.
func Read(path string) (*Book, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(string(data)), nil
}

var (
	heading = regexp.MustCompile(`^#+ +(.*\S)`)
	command = regexp.MustCompile(`^ {4,}((?:barque |\().*)`)
	remark  = regexp.MustCompile(`  +#.*$`)
)

func parse(text string) *Book {
	b := &Book{Sections: []Section{{}}}
	for line := range strings.Lines(text) {
		s := &b.Sections[len(b.Sections)-1]
		line = strings.TrimRight(line, "\n")
		if h := heading.FindStringSubmatch(line); h != nil {
			b.Sections = append(b.Sections, Section{Title: h[1]})
		} else if c := command.FindStringSubmatch(line); c != nil {
			text := strings.TrimSpace(remark.ReplaceAllString(c[1], ""))
			if !slices.Contains(s.Commands, text) {
				s.Commands = append(s.Commands, text)
			}
		}
	}
	return b
}

// Section returns the one with the title.
func (b *Book) Section(title string) (*Section, error) {
	i := slices.IndexFunc(b.Sections, func(s Section) bool { return s.Title == title })
	if i < 0 {
		return nil, fmt.Errorf("the page has no heading %q", title)
	}
	return &b.Sections[i], nil
}

// Find returns the command if the section shows it, with each old text in it replaced by the new
// one after it: the names and addresses of a reader are others than those on the page.
func (s *Section) Find(text string, oldnew ...string) (string, error) {
	if !slices.Contains(s.Commands, text) {
		return "", fmt.Errorf("%q shows no command %q; it shows\n  %s", s.Title, text, strings.Join(s.Commands, "\n  "))
	}
	return strings.NewReplacer(oldnew...).Replace(text), nil
}
