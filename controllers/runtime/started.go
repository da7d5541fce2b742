package runtime

import (
	"context"
	"time"
)

type startedKey struct{}

// Started tells that what a routine does in this term has begun: it knows the state of the cluster,
// and its workers wait for something to do. A Loop that watches informers says so by itself; a
// routine that needs something else calls it, with the context that Run got or one derived from
// that. The last call counts. Outside a Runner it does nothing.
func Started(ctx context.Context) {
	if report, ok := ctx.Value(startedKey{}).(func()); ok {
		report()
	}
}

// reporting returns a context by which the routine i reports that it has started, measured from the
// moment at which this server's term began. Only its first run in a term does: after a failure it
// was not the election that it waited for.
func (r *Runner) reporting(lead context.Context, i int, elected time.Time) context.Context {
	return context.WithValue(lead, startedKey{}, func() {
		if lead.Err() != nil {
			return // it came to an end before it had begun
		}
		after := time.Since(elected)
		r.update(i, func(s *RoutineStatus) { s.StartedAfter = after })
		if r.cfg.OnStarted != nil {
			r.cfg.OnStarted(r.cfg.Routines[i].Name, after)
		}
	})
}
