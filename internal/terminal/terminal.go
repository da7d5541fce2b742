// Package terminal formats output for people. Text fits the width of their terminal, in colours if
// it shows any. Tables drop the least important columns. Numbers have their nouns.
package terminal

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Screen is the output of a command: its width, and whether it shows colours.
type Screen struct {
	Width  int // 0: as wide as it takes, as for a file or a pipe
	Height int
	Colour bool
}

// Of returns the screen of a command's output.
func Of(out io.Writer) Screen {
	file, ok := out.(*os.File)
	if !ok {
		return Screen{}
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return Screen{} // it is no terminal
	}
	return Screen{Width: int(size.Col), Height: int(size.Row),
		Colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

// IsTerminal reports whether the output is a terminal.
func (s Screen) IsTerminal() bool { return s.Width > 0 }

// Style is the way in which a piece of text stands out.
type Style string

const (
	Plain Style = ""
	Bold  Style = "1"
	Good  Style = "32"
	Bad   Style = "1;31"
	Odd   Style = "33"
	Faint Style = "2"
)

// Paint returns the text in a style, where colours are shown.
func (s Screen) Paint(text string, how Style) string {
	if !s.Colour || how == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(how) + "m" + text + "\x1b[0m"
}

// Wrap breaks a text at spaces so that it fits behind an indent in columns. The first line is not
// indented.
func (s Screen) Wrap(text string, indent int) string {
	room := s.Width - indent
	if s.Width == 0 || room < 20 {
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
