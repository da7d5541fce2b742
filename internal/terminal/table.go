package terminal

import (
	"cmp"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Table is text in columns. Where a terminal is too narrow for all, the least important columns are
// left out.
type Table struct {
	Columns []Column
	Rows    [][]Cell
}

// Column is a head and how soon it is left out: the highest number first, and 0 never.
type Column struct {
	Head string
	Drop int
}

// Cell is a piece of text in a table.
type Cell struct {
	Text string
	How  Style
}

const columnGap = 3

// Add adds a row.
func (t *Table) Add(row ...Cell) { t.Rows = append(t.Rows, row) }

// fitting returns the columns that are shown at a width, 0 for any.
func (t *Table) fitting(width int) (shown []int, widths []int) {
	for i, c := range t.Columns {
		w := utf8.RuneCountInString(c.Head)
		for _, row := range t.Rows {
			w = max(w, utf8.RuneCountInString(row[i].Text))
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
		least := slices.MaxFunc(shown, func(a, b int) int { return cmp.Compare(t.Columns[a].Drop, t.Columns[b].Drop) })
		if t.Columns[least].Drop == 0 {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == least })
	}
	return shown, widths
}

// Write writes the table. It returns how many columns were left out.
func (t *Table) Write(out io.Writer, s Screen) (left int, err error) {
	shown, widths := t.fitting(s.Width)
	var b strings.Builder
	line := func(text func(i int) Cell) {
		var l strings.Builder
		pad := 0
		for _, i := range shown {
			c := text(i)
			if c.Text == "" {
				c.Text = "-"
			}
			l.WriteString(strings.Repeat(" ", pad))
			l.WriteString(s.Paint(c.Text, c.How))
			pad = widths[i] - utf8.RuneCountInString(c.Text) + columnGap
		}
		b.WriteString(l.String() + "\n")
	}
	line(func(i int) Cell { return Cell{t.Columns[i].Head, Bold} })
	for _, row := range t.Rows {
		line(func(i int) Cell { return row[i] })
	}
	_, err = io.WriteString(out, b.String())
	return len(t.Columns) - len(shown), err
}
