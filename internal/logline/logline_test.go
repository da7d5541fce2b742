package logline

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A text is logged as slog.Logger.Log does: with its attributes and those of the logger, and not
// below the level.
func TestLog(t *testing.T) {
	var lines [2]bytes.Buffer
	of := func(i int) *slog.Logger {
		return slog.New(slog.NewTextHandler(&lines[i], nil)).With("part", "x").WithGroup("of")
	}
	Log(of(0), slog.LevelWarn, "a line of a library", "count", 2, slog.Int("more", 3))
	Log(of(0), slog.LevelDebug, "a detail")
	of(1).LogAttrs(t.Context(), slog.LevelWarn, "a line of a library", slog.Int("count", 2), slog.Int("more", 3))
	of(1).Debug("a detail")
	_, got, _ := strings.Cut(lines[0].String(), " ") // without the time
	_, want, _ := strings.Cut(lines[1].String(), " ")
	if got != want || !strings.Contains(got, `level=WARN msg="a line of a library" part=x of.count=2 of.more=3`) {
		t.Errorf("logged %q, want %q", got, want)
	}
}
