package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// heading is a line that begins a section, and link a link to another place, both in Markdown.
var (
	heading = regexp.MustCompile(`^#+ +(.*)$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
)

// Links between pages lead to files and sections that exist.
func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	links := 0
	for path, page := range all {
		for _, target := range page.links {
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file, section, _ := strings.Cut(target, "#")
			to := filepath.Join(filepath.Dir(path), file)
			if file == "" {
				to = path
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: the link %s leads to no file", path, target)
				continue
			}
			if section != "" && !all[to].anchors[section] {
				t.Errorf("%s: the link %s leads to no section", path, target)
			}
		}
	}
	if links < 200 {
		t.Errorf("only %d links were looked at", links)
	}
}

// The index lists each page once at least, so that a page is found without knowing its name.
func TestIndexesAreComplete(t *testing.T) {
	all := pages(t)
	for _, folder := range []string{"../../docs", "../../docs/decisions"} {
		index := filepath.Join(folder, "README.md")
		for path := range all {
			name := filepath.Base(path)
			if filepath.Dir(path) == folder && path != index &&
				!slices.ContainsFunc(all[index].links, func(l string) bool {
					file, _, _ := strings.Cut(l, "#")
					return file == name
				}) {
				t.Errorf("%s does not list %s", index, name)
			}
		}
	}
}

// decided is the second paragraph of a decision.
var decided = regexp.MustCompile(`^20\d\d-\d\d-\d\d[,;.]`)

// A decision has a number of its own, a date and its three sections. The tests that it names
// exist, in the package that is named after them.
func TestDecisions(t *testing.T) {
	const folder = "../../docs/decisions"
	files, err := filepath.Glob(folder + "/[0-9]*.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOf(t)
	named := 0
	numbers := make(map[string]string)
	for _, path := range files {
		lines := linesOf(t, path)
		number, _, _ := strings.Cut(filepath.Base(path), "-")
		if other := numbers[number]; other != "" {
			t.Errorf("%s has the number of %s", path, other)
		}
		numbers[number] = path
		if !strings.HasPrefix(lines[0], "# "+strings.TrimLeft(number, "0")+". ") {
			t.Errorf("%s: its title has another number", path)
		}
		if len(lines) < 3 || !decided.MatchString(lines[2]) {
			t.Errorf("%s: its third line does not begin with a date", path)
		}
		for _, section := range []string{"## Context", "## Decision", "## Consequences"} {
			if !slices.Contains(lines, section) {
				t.Errorf("%s has no section %q", path, section)
			}
		}
		_, consequences, _ := strings.Cut(strings.Join(lines, "\n"), "\n## Consequences\n")
		for item := range strings.SplitSeq(consequences, "\n- ") {
			named += checkNames(t, path, item, tests)
		}
	}
	if named < 100 {
		t.Errorf("the decisions name only %d tests", named)
	}
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	testName = regexp.MustCompile(`^(Test|Fuzz)[A-Z]\w*$`)
)

// checkNames checks the tests that an item of a list names, and returns their number.
func checkNames(t *testing.T, path, item string, tests map[string]map[string]bool) (named int) {
	t.Helper()
	var waiting []string
	check := func(in string) {
		for _, name := range waiting {
			if in == "" && len(tests[name]) == 0 || in != "" && !tests[name][in] {
				t.Errorf("%s: %s is no test of %q", path, name, in)
			}
		}
		waiting = nil
	}
	for _, q := range quoted.FindAllStringSubmatch(item, -1) {
		name := q[1]
		if testName.MatchString(name) {
			named++
			waiting = append(waiting, name)
			continue
		}
		if info, err := os.Stat("../../" + name); err == nil && info.IsDir() {
			check(name)
		}
	}
	check("")
	return named
}

// testsOf returns the folders of each test's name.
func testsOf(t *testing.T) map[string]map[string]bool {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	found := make(map[string]map[string]bool)
	walk(t, "_test.go", func(path string) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		folder, err := filepath.Rel("../..", filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range declared.FindAllSubmatch(content, -1) {
			name := string(match[1])
			if found[name] == nil {
				found[name] = make(map[string]bool)
			}
			found[name][folder] = true
		}
	})
	return found
}

// page is a page of documentation: its sections, as links name them, and the targets of its links.
type page struct {
	anchors map[string]bool
	links   []string
}

// pages returns all pages of the repository by their paths.
func pages(t *testing.T) map[string]page {
	t.Helper()
	all := make(map[string]page)
	walk(t, ".md", func(path string) {
		p := page{anchors: make(map[string]bool)}
		fenced := false
		var text strings.Builder
		for _, line := range linesOf(t, path) {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
			}
			if fenced || strings.HasPrefix(line, "    ") {
				continue
			}
			if h := heading.FindStringSubmatch(line); h != nil {
				p.anchors[anchor(h[1])] = true
			}
			text.WriteString(line + "\n")
		}
		for _, l := range link.FindAllStringSubmatch(text.String(), -1) {
			p.links = append(p.links, l[1])
		}
		all[path] = p
	})
	if len(all) < 20 {
		t.Fatalf("only %d pages were found", len(all))
	}
	return all
}

var (
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchor returns the name by which links lead to a heading.
func anchor(heading string) string {
	text := linkText.ReplaceAllString(heading, "$1")
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
}

// walk calls f for each file of the repository with that end of its name.
func walk(t *testing.T, suffix string, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "bin"):
			return fs.SkipDir
		case !e.IsDir() && strings.HasSuffix(path, suffix):
			f(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// privateNoun is a row of the glossary's last table.
var privateNoun = regexp.MustCompile("^\\| `(\\w+)` \\| `([a-z/]+)` \\|")

// The glossary's private nouns are names in their packages. A name that got the field's word leaves
// the table.
func TestPrivateNounsAreThere(t *testing.T) {
	rows := 0
	for _, line := range linesOf(t, "../../docs/glossary.md") {
		row := privateNoun.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		rows++
		if !declares(t, "../../"+row[2], row[1]) {
			t.Errorf("docs/glossary.md: %s declares no %s", row[2], row[1])
		}
	}
	if rows == 0 {
		t.Error("docs/glossary.md has no table of private nouns")
	}
}

// declares reports whether a package has a type or a function of that name.
func declares(t *testing.T, folder, name string) bool {
	t.Helper()
	paths, err := filepath.Glob(folder + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == name {
					return true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if s, ok := spec.(*ast.TypeSpec); ok && s.Name.Name == name {
						return true
					}
				}
			}
		}
	}
	return false
}
