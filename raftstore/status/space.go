package status

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/barque/barque/raftstore/mvcc"
)

// level is how full the store is. An alarm begins before anything is refused, and stays until there
// is some free space again, so that it does not change with each write.
//
//	enough ──85 %──▶ low ──98 %──▶ full
//	enough ◀──80 %── low ◀──95 %── full
type Level int32

const (
	enough Level = iota
	low
	full
)

func (l Level) String() string {
	switch l {
	case low:
		return "low"
	case full:
		return "full"
	}
	return ""
}

// next returns the level for the size of the items and the limit; 0 is none.
func (l Level) next(size, limit int64) Level {
	if limit <= 0 {
		return enough
	}
	switch used := percentOf(size, limit); {
	case used >= 98, l == full && used >= 95:
		return full
	case used >= 85, l != enough && used >= 80:
		return low
	}
	return enough
}

// spaceLook is the interval of checks of the store's size. Levels are for people and their
// dashboards; each write is checked by itself.
const spaceLook = time.Second

// Space knows how full the store is.
type Space struct {
	state  *mvcc.Store
	limit  func() int64
	logger *slog.Logger
	level  atomic.Int32
}

// NewSpace returns the Space of a state. limit returns its limit; 0 is none.
func NewSpace(state *mvcc.Store, limit func() int64, logger *slog.Logger) *Space {
	return &Space{state: state, limit: limit, logger: logger}
}

// Watch logs when the store gets full, and when it has free space again. It ends with ctx.
func (s *Space) Watch(ctx context.Context) {
	ticker := time.NewTicker(spaceLook)
	defer ticker.Stop()
	for {
		now, size, limit := s.Measure()
		if before := s.level.Swap(int32(now)); before != int32(now) {
			s.tell(now, size, limit)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Alarm is the level at the last check.
func (s *Space) Alarm() Level { return Level(s.level.Load()) }

// Measure returns how full the store is now.
func (s *Space) Measure() (now Level, size, limit int64) {
	size, limit = s.state.Latest().Bytes(), s.limit()
	return s.Alarm().next(size, limit), size, limit
}

func (s *Space) tell(now Level, size, limit int64) {
	log := s.logger.With("bytes", size, "limit", limit, "keys", s.state.Latest().Len())
	switch now {
	case full:
		log.Error(
			"the store is full: new keys are refused, and what would make it larger; delete something, or raise the limit on all servers")
	case low:
		log.Warn(
			"the store fills up: at 100 % it refuses new keys; delete something, or raise the limit on all servers",
			"percent", percentOf(size, limit))
	default:
		log.Info("the store has room again")
	}
}

func percentOf(size, limit int64) int64 { return int64(float64(size) / float64(limit) * 100) }
