package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// wordCeiling bounds the words of a room's comments, per 100 lines of comments.
type wordCeiling struct{ pronouns, tells int }

// plain is the ceiling of a room in plain English.
var plain = wordCeiling{pronouns: 4, tells: 4}

// wordCeilings has a ceiling for each room. A room above plain waits for a rewrite: its ceiling is
// the figure of the last change, rounded up, and only falls.
var wordCeilings = map[string]wordCeiling{
	"adminapi":      plain,
	"apiserver":     plain,
	"backups":       plain,
	"cluster-test":  plain,
	"clusterstatus": plain,
	"cmd":           plain,
	"controllers":   plain,
	"devcluster":    plain,
	"edge":          plain,
	"examples":      plain,
	"internal":      plain,
	"kubelet":       plain,
	"machine":       plain,
	"membership":    plain,
	"network":       plain,
	"pki":           plain,
	"raftstore":     plain,
	"release":       plain,
	"scheduler":     plain,
	"upgrade":       plain,
	"verify":        plain,
}

// A comment names things by the field's nouns. "What" and "who" stand where a noun is missing, and
// "tell" where a standard verb is: report, return, answer, log. The tests of a room count with its
// product, because a reader learns the code from both.
func TestCommentsUseNouns(t *testing.T) {
	counts := make(map[string]wordCount)
	_, tree := readTree(t)
	for _, file := range tree {
		if ast.IsGenerated(file.File) {
			continue
		}
		room, _, _ := strings.Cut(file.dir, "/")
		counts[room] = counts[room].plus(wordsOf(file.File))
	}
	for _, room := range slices.Sorted(maps.Keys(counts)) {
		n, ceiling := counts[room], wordCeilings[room]
		t.Logf("%-13s %5d lines of comments, what/who %4.1f, tell/told %4.1f", room, n.lines, n.per100(n.pronouns),
			n.per100(n.tells))
		if ceiling == (wordCeiling{}) {
			t.Errorf("%s: no ceiling; enter the room into wordCeilings as plain", room)
			continue
		}
		for _, fault := range n.judge(ceiling) {
			t.Errorf("%s: %s", room, fault)
		}
	}
	for room := range wordCeilings {
		if counts[room].lines == 0 {
			t.Errorf("%s: has a ceiling and no comments; remove it from wordCeilings", room)
		}
	}
}

func TestWordsAreCounted(t *testing.T) {
	for text, want := range map[string]wordCount{
		"// path is the file's path.":                      {lines: 1},
		"// path is where what is told is.":                {lines: 1, pronouns: 1, tells: 1},
		"// What it is,\n// who tells\n\n// and what for.": {lines: 3, pronouns: 3, tells: 1},
		"/* who?\nTelling whoever */":                      {lines: 2, pronouns: 1, tells: 1},
		"// a teller, a whole, somewhat":                   {lines: 1},
		"//go:build linux\n\n// a build":                   {lines: 1},
		"var what = \"who tells\" // a name":               {lines: 1},
		"// tell, tells, telling and told: four":           {lines: 1, tells: 4},
		"func f() {\n\tg() // who\n\t// what is told\n}":   {lines: 2, pronouns: 2, tells: 1},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n\n"+text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := wordsOf(file); got != want {
			t.Errorf("%q: counted %+v, want %+v", text, got, want)
		}
	}
}

func TestCeilingsOfWords(t *testing.T) {
	for _, c := range []struct {
		name    string
		count   wordCount
		ceiling wordCeiling
		want    string // in each fault, in order
	}{
		{"at the plain ceiling", wordCount{200, 8, 8}, plain, ""},
		{"far below the plain ceiling", wordCount{200, 0, 0}, plain, ""},
		{"pronouns above", wordCount{200, 9, 8}, plain, "what/who"},
		{"tells above", wordCount{200, 8, 9}, plain, "tell/told"},
		{"both above", wordCount{200, 9, 9}, plain, "what/who tell/told"},
		{"at a ceiling rounded up", wordCount{200, 29, 19}, wordCeiling{15, 10}, ""},
		{"one to spare", wordCount{200, 27, 17}, wordCeiling{15, 10}, ""},
		{"a ceiling to lower", wordCount{200, 20, 19}, wordCeiling{15, 10}, "lower"},
		{"no comments", wordCount{}, plain, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			faults, want := c.count.judge(c.ceiling), strings.Fields(c.want)
			if len(faults) != len(want) {
				t.Fatalf("faults are %q, want %q", faults, want)
			}
			for i := range want {
				if !strings.Contains(faults[i], want[i]) {
					t.Errorf("fault %q lacks %q", faults[i], want[i])
				}
			}
		})
	}
}

// wordCount has numbers of lines and words of comments.
type wordCount struct{ lines, pronouns, tells int }

var (
	pronoun = regexp.MustCompile(`(?i)\b(what|who)\b`)
	tell    = regexp.MustCompile(`(?i)\b(tell|tells|telling|told)\b`)
)

// wordsOf counts in a file's comments. Directives to the compiler are no comments.
func wordsOf(file *ast.File) (n wordCount) {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:") {
				continue
			}
			n.lines += 1 + strings.Count(c.Text, "\n")
			n.pronouns += len(pronoun.FindAllString(c.Text, -1))
			n.tells += len(tell.FindAllString(c.Text, -1))
		}
	}
	return n
}

func (n wordCount) plus(o wordCount) wordCount {
	return wordCount{n.lines + o.lines, n.pronouns + o.pronouns, n.tells + o.tells}
}

// per100 returns words per 100 lines of comments.
func (n wordCount) per100(words int) float64 {
	return 100 * float64(words) / max(1, float64(n.lines))
}

// judge returns the faults of a room: words above its ceiling, and a ceiling that the room has left
// more than one below it, which would let the words come back.
func (n wordCount) judge(ceiling wordCeiling) (faults []string) {
	for _, w := range []struct {
		words           string
		figure          float64
		ceiling, lowest int
	}{
		{"what/who", n.per100(n.pronouns), ceiling.pronouns, plain.pronouns},
		{"tell/told", n.per100(n.tells), ceiling.tells, plain.tells},
	} {
		least := max(w.lowest, int(math.Ceil(w.figure)))
		switch {
		case w.figure > float64(w.ceiling):
			faults = append(faults,
				fmt.Sprintf("%.1f of %s per 100 lines of comments, at most %d; name things by the field's nouns",
					w.figure, w.words, w.ceiling))
		case w.ceiling > least+1:
			faults = append(faults,
				fmt.Sprintf("lower the ceiling of %s in wordCeilings from %d to %d", w.words, w.ceiling, least))
		}
	}
	return faults
}
