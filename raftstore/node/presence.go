package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Whether a cluster had a quorum when one of its servers was recovered is what decides which of the two goes on: see
// outlived.go. So each server keeps a record of when it was in touch with a leader, which nobody is without a quorum, and
// keeps it on its disk, where it outlives a restart of all. It is in wall time, because it is compared with that of another
// server, and because a process that was suspended must not take the time for one in which it heard of anybody.
//
//	in touch ──no leader, or no look at the clock, for leaderlessAfter──▶ out of touch, from the last look on
//	    ▲                                                                     │
//	    └─────────────────a leader: a new span begins─────────────────────────┘

// presenceFile is the record in the directory of a server.
const presenceFile = "presence.json"

const (
	presenceFormat = 1
	// presenceLook is how often a server looks whether it is in touch, and presenceWrite how often it writes that down.
	presenceLook  = time.Second
	presenceWrite = 5 * time.Second
	// presenceSlack is by how much the clocks of two servers may differ, and how late one notices that a leader is gone.
	presenceSlack = 2 * time.Second
	// presenceKept is how many spans are kept.
	presenceKept = 64
)

// span is a time in which a server was in touch with leaders, with no longer between two than an election takes.
type span struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// Over tells that it ended then. Else the process did, or the machine, up to presenceWrite and a look after Until.
	Over bool `json:"over,omitempty"`
}

// presenceRecord is what stands in presenceFile.
type presenceRecord struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	Spans   []span `json:"spans"` // oldest first
}

// presence is when this server was in touch with a leader.
type presence struct {
	path    string // empty in memory
	cluster string
	logger  *slog.Logger

	mu    sync.Mutex // not held while the disk is waited for
	spans []span
	open  bool // the last one goes on
	stale bool // a span has begun or ended that is not written down

	pen     chan struct{} // held by whoever writes
	written time.Time     // with the pen
}

// word is what a server knows of whether it was in touch with a leader at some time.
type word string

const (
	wasInTouch  word = "yes"
	wasNot      word = "no"
	unknownWord word = "" // as from a program that does not know the question
)

// openPresence reads the record. One that cannot be read, or is of another cluster, tells nothing.
func openPresence(cfg *Config, cluster string) (*presence, error) {
	p := &presence{cluster: cluster, logger: cfg.Logger, pen: make(chan struct{}, 1)}
	if cfg.InMemory {
		return p, nil
	}
	p.path = filepath.Join(cfg.Dir, presenceFile)
	data, err := os.ReadFile(p.path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	var record presenceRecord
	if err := json.Unmarshal(data, &record); err != nil || record.Format != presenceFormat {
		cfg.Logger.Warn("when this server was in touch with a leader cannot be read, and is recorded anew", "file", p.path, "format", record.Format, "err", err)
		return p, nil
	}
	if record.Cluster == cluster {
		p.spans = record.Spans
	}
	return p, nil
}

// look takes note of whether a leader is known.
func (p *presence) look(now time.Time, led bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(now)
	if !led {
		return
	}
	if !p.open {
		p.spans = append(p.spans, span{Since: now, Until: now})
		p.spans = slices.Delete(p.spans, 0, max(0, len(p.spans)-presenceKept))
		p.open, p.stale = true, true
	}
	p.spans[len(p.spans)-1].Until = now
}

// pass ends the span when it was not looked at for too long: no leader was known, or the process was
// suspended, or the clock was set. It is called with the lock held.
func (p *presence) pass(now time.Time) {
	if !p.open {
		return
	}
	if gap := now.Sub(p.spans[len(p.spans)-1].Until); gap < 0 || gap >= leaderlessAfter {
		p.end()
	}
}

// end is called with the lock held.
func (p *presence) end() {
	p.spans[len(p.spans)-1].Over = true
	p.open, p.stale = false, true
}

// close writes down that the span is over, since the last look.
func (p *presence) close() {
	p.mu.Lock()
	if p.open {
		p.end()
	}
	p.mu.Unlock()
	if p.path == "" {
		return
	}
	written := make(chan struct{})
	go func() { // ends with the write, which a disk that hangs may hold up
		defer close(written)
		p.pen <- struct{}{}
		p.write(wallTime())
		<-p.pen
	}()
	select {
	case <-written:
	case <-time.After(presenceWrite):
		p.logger.Warn("the disk hangs: that this server was in touch with a leader until now is not written down", "file", p.path)
	}
}

// tryWrite writes when nobody does, and waits for nothing: a disk that hangs holds no server up that stops.
func (p *presence) tryWrite() {
	if p.path == "" {
		return
	}
	select {
	case p.pen <- struct{}{}:
		go func() { // close waits for it
			p.write(wallTime())
			<-p.pen
		}()
	default:
	}
}

// write brings the record to the disk when it is time to. It is called with the pen.
func (p *presence) write(now time.Time) {
	p.mu.Lock()
	since := now.Sub(p.written)
	due := p.stale || p.open && (since >= presenceWrite || since < 0)
	p.stale = false
	record := presenceRecord{presenceFormat, p.cluster, slices.Clone(p.spans)}
	p.mu.Unlock()
	if !due {
		return
	}
	p.written = now
	if err := writeJSON(p.path, record); err != nil {
		p.logger.Debug("cannot write down that this server is in touch with a leader", "file", p.path, "err", err)
	}
}

// at tells what is known of a moment. It says no more than what is certain.
func (p *presence) at(when, now time.Time) word {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(now)
	if len(p.spans) == 0 || when.Before(p.spans[0].Since.Add(-presenceSlack)) {
		return unknownWord // before the record
	}
	answer := wasNot
	for i, s := range p.spans {
		if !when.Before(s.Since.Add(presenceSlack)) && !when.After(s.Until.Add(-presenceSlack)) {
			return wasInTouch
		}
		end := s.Until.Add(presenceSlack)
		if !s.Over && (i < len(p.spans)-1 || !p.open) {
			end = end.Add(presenceWrite + presenceLook)
		}
		if !when.Before(s.Since.Add(-presenceSlack)) && !when.After(end) {
			answer = unknownWord
		}
	}
	if when.After(now.Add(-presenceSlack)) {
		return unknownWord // it is about now, or later: who asks again learns it
	}
	return answer
}

// since returns since when this server has been in touch without a break; zero when it is not.
func (p *presence) since(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pass(now); !p.open {
		return time.Time{}
	}
	return p.spans[len(p.spans)-1].Since
}

// wallTime is now, as it is compared with what another server, or process, wrote down.
func wallTime() time.Time { return time.Now().Round(0).UTC() }

// keepPresence keeps the record until the node ends.
func (n *Node) keepPresence() {
	ticker := time.NewTicker(presenceLook)
	defer ticker.Stop()
	for {
		n.notePresence()
		n.presence.tryWrite()
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (n *Node) notePresence() { n.presence.look(wallTime(), n.isLed()) }

// isLed tells whether this server is in touch with a leader. One that holds back is not.
func (n *Node) isLed() bool {
	_, leader := n.raft.LeaderWithID()
	return leader != raft.ServerID("") && n.heirs.held.Load() == nil
}
