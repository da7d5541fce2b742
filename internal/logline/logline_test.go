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
	for i, log := range []func(*slog.Logger, slog.Level, string, ...any){
		Log,
		func(l *slog.Logger, level slog.Level, text string, args ...any) {
			l.Log(t.Context(), level, text, args...)
		},
	} {
		logger := slog.New(slog.NewTextHandler(&lines[i], nil)).With("part", "x").WithGroup("of")
		log(logger, slog.LevelWarn, "a line of a library", "count", 2, slog.Int("more", 3))
		log(logger, slog.LevelDebug, "a detail")
	}
	_, got, _ := strings.Cut(lines[0].String(), " ") // without the time
	_, want, _ := strings.Cut(lines[1].String(), " ")
	if got != want || !strings.Contains(got, `level=WARN msg="a line of a library" part=x of.count=2 of.more=3`) {
		t.Errorf("logged %q, want %q", got, want)
	}
}
