package main

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// screen is what a command writes for people: how wide it is, and whether it shows colours.
type screen struct {
	width  int // 0: as wide as it takes, as for a file or a pipe
	height int
	colour bool
}

// screenOf looks at what a command writes to.
func screenOf(out io.Writer) screen {
	file, ok := out.(*os.File)
	if !ok {
		return screen{}
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return screen{} // it is no terminal
	}
	return screen{width: int(size.Col), height: int(size.Row), colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// isTerminal tells whether people look at it.
func (s screen) isTerminal() bool { return s.width > 0 }

// style is the way in which a piece of text stands out.
type style string

const (
	plain style = ""
	bold  style = "1"
	good  style = "32"
	bad   style = "1;31"
	odd   style = "33"
	faint style = "2"
)

// paint returns the text in a style, where colours are shown.
func (s screen) paint(text string, how style) string {
	if !s.colour || how == plain || text == "" {
		return text
	}
	return "\x1b[" + string(how) + "m" + text + "\x1b[0m"
}

// wrap breaks a text at spaces so that it fits behind an indent of so many columns. The first line
// is not indented.
func (s screen) wrap(text string, indent int) string {
	room := s.width - indent
	if s.width == 0 || room < 20 {
		return text
	}
	var out strings.Builder
	used := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case used == 0:
		case used+1+n > room:
			out.WriteString("\n" + strings.Repeat(" ", indent))
			used = 0
		default:
			out.WriteByte(' ')
			used++
		}
		out.WriteString(word)
		used += n
	}
	return out.String()
}
