package sim

import (
	"context"
	"errors"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
)

// prefixes that watchers watch.
var prefixes = []string{"", "/", "/s/", "/s/1", "/m/", "/m/0/", "/t/"}

// watcher follows a prefix for ever: when a watch ends, or when it has had enough of one, it goes
// on by another server where it was.
type watcher struct {
	*client
	prefix string
	at     uint64 // everything up to here was delivered; 0: it has not begun
}

// run ends with ctx.
func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		s := w.c.servers[w.rnd.IntN(len(w.c.servers))]
		p := s.live()
		if p == nil || w.at == 0 && !w.begin(ctx, p) {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		for_ := time.Duration(w.rnd.IntN(3000)) * time.Millisecond
		limit, cancel := limited(ctx, for_)
		w.watch(limit, s, p, 0)
		cancel()
		pause(ctx, 10*time.Millisecond)
	}
}

// begin chooses where to start: a few revisions ago.
func (w *watcher) begin(ctx context.Context, p *process) bool {
	ctx, cancel := limited(ctx, time.Second)
	defer cancel()
	v, err := p.View(ctx, raftstore.ViewOptions{})
	if err != nil || v.Revision() < 2 {
		return false
	}
	w.at = max(1, v.Revision()-min(v.Revision(), uint64(w.rnd.IntN(30))))
	w.prefix = prefixes[w.rnd.IntN(len(prefixes))]
	return true
}

// watch follows one server until ctx ends, or until everything up to a revision has come, if there
// is one to reach.
func (w *watcher) watch(ctx context.Context, s *server, p *process, reach uint64) {
	opts := raftstore.WatchOptions{Prefix: w.prefix, After: w.at}
	if w.rnd.IntN(2) == 0 {
		opts.Progress = time.Duration(20+w.rnd.IntN(300)) * time.Millisecond
	}
	watching, err := p.api.Watch(opts)
	if errors.Is(err, raftstore.ErrCompacted) {
		w.expired(s, p)
	}
	if err != nil {
		return
	}
	defer watching.Close()
	record := w.c.record.Watch(&check.Watch{
		Client: w.id, Server: s.index, Life: p.life, Prefix: w.prefix, After: w.at, Resumes: true, MustReach: reach,
	})
	for reach == 0 || w.at < reach {
		if reach != 0 || w.rnd.IntN(10) == 0 {
			watching.RequestProgress()
		}
		b, err := watching.Next(ctx)
		if err != nil {
			record.Err = err.Error()
			if errors.Is(err, raftstore.ErrCompacted) {
				w.expired(s, p)
			}
			return
		}
		if !s.heard(p, func() { w.c.record.Deliver(record, b) }) {
			return
		}
		w.at = max(w.at, b.Revision)
	}
}

// expired begins anew: the watcher must read the revisions that it missed. That is right only if
// history has gone.
func (w *watcher) expired(s *server, p *process) {
	if first := p.Compacted(); w.at >= first {
		w.c.problem(history.Resumable, "revision %d is called compacted by server %d, which has all after %d", w.at,
			s.index, first)
	}
	w.at = 0
}

// finish sees whether everything comes in the end.
func (w *watcher) finish(reach uint64) {
	for _, s := range pick(w.rnd, w.c.servers, len(w.c.servers)) {
		p := s.live()
		if p == nil {
			continue
		}
		ctx, cancel := limited(context.Background(), 10*time.Second)
		w.watch(ctx, s, p, reach)
		cancel()
		if w.at >= reach {
			return
		}
		if w.at == 0 {
			w.at = reach // its missed revisions are compacted, and it got that error
			return
		}
	}
}
