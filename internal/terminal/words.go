package terminal

import (
	"fmt"
	"regexp"
	"strings"
)

// Plural writes a number with its noun.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// Count writes a number, and "none" for 0.
func Count(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// Bytes writes a size, in its largest unit.
func Bytes(n int64) string {
	const unit = 1024
	switch {
	case n < unit:
		return fmt.Sprintf("%d B", n)
	case n < unit*unit:
		return fmt.Sprintf("%.1f KiB", float64(n)/unit)
	case n < unit*unit*unit:
		return fmt.Sprintf("%.1f MiB", float64(n)/unit/unit)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/unit/unit/unit)
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./…-]+$`)

// Command is a command line that a shell takes for these words.
func Command(words ...string) string {
	line := make([]string, len(words))
	for i, word := range words {
		if line[i] = word; !plainWord.MatchString(word) {
			line[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(line, " ")
}
