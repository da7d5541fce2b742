package node

import (
	"fmt"
	"time"
)

// level says how full the store is. An alarm is on some way before anything is refused, and stays
// on until there is some room again, so that it does not come and go with each write.
//
//	enough ──85 %──▶ low ──98 %──▶ full
//	enough ◀──80 %── low ◀──95 %── full
type level int32

const (
	enough level = iota
	low
	full
)

func (l level) String() string {
	switch l {
	case low:
		return "low"
	case full:
		return "full"
	}
	return ""
}

// next returns the level for what the items count, and the limit; 0 is none.
func (l level) next(size, limit int64) level {
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

// spaceLook is how often the store is looked at. Levels are for people and their dashboards; what
// is refused is decided for each write.
const spaceLook = time.Second

// watchSpace tells in words when the store gets full, and when there is room again. It ends with
// the node.
func (n *Node) watchSpace() {
	ticker := time.NewTicker(spaceLook)
	defer ticker.Stop()
	for {
		now, size, limit := n.measureSpace()
		if before := n.space.Swap(int32(now)); before != int32(now) {
			n.tellOfSpace(now, size, limit)
		}
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (n *Node) measureSpace() (now level, size, limit int64) {
	size, limit = n.state.Latest().Bytes(), n.stateLimit()
	return level(n.space.Load()).next(size, limit), size, limit
}

func (n *Node) tellOfSpace(now level, size, limit int64) {
	log := n.cfg.Logger.With("bytes", size, "limit", limit, "keys", n.state.Latest().Len())
	switch now {
	case full:
		log.Error("the store is full: new keys are refused, and what would make it larger; delete something, or raise the limit on all servers")
	case low:
		log.Warn(fmt.Sprintf("the store is filled to %d %%: at 100 %% it refuses new keys; delete something, or raise the limit on all servers", percentOf(size, limit)))
	default:
		log.Info("the store has room again")
	}
}

func percentOf(size, limit int64) int64 { return int64(float64(size) / float64(limit) * 100) }

// stateLimit is the limit that counts: the one in the newest entry. A server that has seen none
// since it started shows its own.
func (n *Node) stateLimit() int64 {
	if limit := n.fsm.StateBytes(); limit > 0 {
		return limit
	}
	return max(n.cfg.StateBytes, 0)
}
