package gossip

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/loglimit"
	"github.com/barque/barque/internal/logline"
)

// lineLogger passes memberlist's lines ("[WARN] memberlist: …") to slog, one level lower. A member
// without an answer is the pool's ordinary business and no error of this node. A repeated line is
// logged at debug level only: an excluded node, as after a recovery, retries every few seconds
// forever. Lines of one cause are bounded as well, because sources of packets can be forged.
type lineLogger struct {
	logger *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time // by the line without its ports

	causes loglimit.Causes
}

const (
	// sameLineAgain is after how long a line is worth saying again.
	sameLineAgain = 10 * time.Minute
	// mostLines bounds how many lines are remembered.
	mostLines = 256
)

// ports are the only difference between lines about the same event.
var ports = regexp.MustCompile(`:\d+\b`)

func (l *lineLogger) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(bytes.TrimPrefix(line, []byte("memberlist: "))))
	level := slog.LevelDebug
	for prefix, at := range map[string]slog.Level{"[ERR] ": slog.LevelWarn, "[WARN] ": slog.LevelInfo,
		"[INFO] ": slog.LevelDebug, "[DEBUG] ": slog.LevelDebug} {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			text, level = rest, at
			break
		}
	}
	var args []any
	if now := time.Now(); level > slog.LevelDebug {
		omitted, ok := 0, l.isNew(text, now)
		if ok {
			omitted, ok = l.causes.Take(loglimit.Cause(strings.TrimPrefix(text, "memberlist: ")), now)
		}
		if omitted > 0 {
			args = append(args, "othersNotLogged", omitted)
		}
		if !ok {
			level = slog.LevelDebug
		}
	}
	logline.Log(l.logger, level, text, args...)
	return len(line), nil
}

// isNew reports whether a line has not been logged for a while.
func (l *lineLogger) isNew(text string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := ports.ReplaceAllString(text, "")
	if last, ok := l.told[key]; ok && now.Sub(last) < sameLineAgain {
		return false
	}
	if l.told == nil || len(l.told) >= mostLines {
		l.told = make(map[string]time.Time)
	}
	l.told[key] = now
	return true
}
