package gossip

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
)

// lineLogger hands memberlist's lines ("[WARN] memberlist: …") to slog at their level.
type lineLogger struct{ logger *slog.Logger }

func (l *lineLogger) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(bytes.TrimPrefix(line, []byte("memberlist: "))))
	level := slog.LevelDebug
	for prefix, at := range map[string]slog.Level{"[ERR] ": slog.LevelWarn, "[WARN] ": slog.LevelInfo, "[INFO] ": slog.LevelDebug, "[DEBUG] ": slog.LevelDebug} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			text, level = rest, at
			break
		}
	}
	l.logger.Log(context.Background(), level, text)
	return len(line), nil
}
