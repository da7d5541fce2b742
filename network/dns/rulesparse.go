package dns

import (
	"fmt"
	"strings"
)

// statement is one line of a user's rules, with the lines between its braces.
type statement struct {
	words []string
	line  int
	block []statement
	open  bool // has braces
}

// word is a part of a line; one in quotes is never a brace.
type word struct {
	text   string
	quoted bool
}

// parseStatements reads text in the syntax of a Corefile: a statement a line, the first word its
// name. A brace at a line's end opens a block, one alone on its line closes it.
func parseStatements(text string) ([]statement, error) {
	type level struct {
		at   int // the line that opened it
		list []statement
	}
	levels := []level{{}}
	number := 0
	for line := range strings.Lines(text) {
		number++
		words, err := splitWords(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if len(words) == 0 {
			continue
		}
		if words[0].brace("}") {
			if len(words) > 1 {
				return nil, fmt.Errorf("line %d: } stands alone on its line", number)
			}
			if len(levels) == 1 {
				return nil, fmt.Errorf("line %d: } without {", number)
			}
			inner := levels[len(levels)-1].list
			levels = levels[:len(levels)-1]
			outer := levels[len(levels)-1].list
			outer[len(outer)-1].block = inner
			continue
		}
		opens := words[len(words)-1].brace("{")
		if opens {
			words = words[:len(words)-1]
		}
		if len(words) == 0 {
			return nil, fmt.Errorf("line %d: { belongs to the end of the line before", number)
		}
		one := statement{line: number, open: opens}
		for _, w := range words {
			if w.brace("{") || w.brace("}") {
				return nil, fmt.Errorf("line %d: { belongs to the end of a line, } to one of its own", number)
			}
			one.words = append(one.words, w.text)
		}
		levels[len(levels)-1].list = append(levels[len(levels)-1].list, one)
		if opens {
			levels = append(levels, level{at: number})
		}
	}
	if last := levels[len(levels)-1]; len(levels) > 1 {
		return nil, fmt.Errorf("line %d: { without }", last.at)
	}
	return levels[0].list, nil
}

func (w word) brace(b string) bool { return !w.quoted && w.text == b }

// splitWords splits a line at white space, up to a comment.
func splitWords(line string) ([]word, error) {
	var words []word
	rest := strings.TrimSpace(line)
	for rest != "" && rest[0] != '#' {
		if rest[0] == '"' {
			text, after, closed := strings.Cut(rest[1:], `"`)
			if !closed {
				return nil, fmt.Errorf("a quotation mark is missing")
			}
			words, rest = append(words, word{text, true}), strings.TrimLeft(after, " \t")
			continue
		}
		end := strings.IndexAny(rest, " \t")
		if end < 0 {
			end = len(rest)
		}
		words, rest = append(words, word{text: rest[:end]}), strings.TrimLeft(rest[end:], " \t")
	}
	return words, nil
}
