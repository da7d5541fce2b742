package main

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// table is text in columns. Where a terminal is too narrow for all, the least important columns are
// left out.
type table struct {
	columns []column
	rows    [][]cell
}

// column is a head and how soon it is left out: the highest number first, and 0 never.
type column struct {
	head string
	drop int
}

// cell is a piece of text in a table.
type cell struct {
	text string
	how  style
}

const columnGap = 3

func (t *table) add(row ...cell) { t.rows = append(t.rows, row) }

// fitting returns the columns that are shown at a width, 0 for any.
func (t *table) fitting(width int) (shown []int, widths []int) {
	for i, c := range t.columns {
		w := utf8.RuneCountInString(c.head)
		for _, row := range t.rows {
			w = max(w, utf8.RuneCountInString(row[i].text))
		}
		shown, widths = append(shown, i), append(widths, w)
	}
	total := func() int {
		n := -columnGap
		for _, i := range shown {
			n += widths[i] + columnGap
		}
		return n
	}
	for width > 0 && total() > width {
		least := slices.MaxFunc(shown, func(a, b int) int { return cmp.Compare(t.columns[a].drop, t.columns[b].drop) })
		if t.columns[least].drop == 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == least })
	}
	return shown, widths
}

// write writes the table. It returns how many columns were left out.
func (t *table) write(out io.Writer, s screen) (left int, err error) {
	shown, widths := t.fitting(s.width)
	var b strings.Builder
	line := func(text func(i int) cell) {
		var l strings.Builder
		pad := 0
		for _, i := range shown {
			c := text(i)
			if c.text == "" {
				c.text = "-"
			}
			l.WriteString(strings.Repeat(" ", pad))
			l.WriteString(s.paint(c.text, c.how))
			pad = widths[i] - utf8.RuneCountInString(c.text) + columnGap
		}
		b.WriteString(l.String() + "\n")
	}
	line(func(i int) cell { return cell{t.columns[i].head, bold} })
	for _, row := range t.rows {
		line(func(i int) cell { return row[i] })
	}
	_, err = io.WriteString(out, b.String())
	return len(t.columns) - len(shown), err
}
