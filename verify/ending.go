package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A SilentError is returned when no server did what the end of the work needs. It is a
// context.DeadlineExceeded.
type SilentError struct {
	Needed string        // what none did
	Limit  time.Duration // for how long they were asked
	Said   string        // what they said at last
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("no server %s within %v: %s", e.Needed, e.Limit, e.Said)
}

func (e *SilentError) Unwrap() error { return context.DeadlineExceeded }

// Stop ends the clients, reads everything once more through every server, waits until the watchers
// have come as far as everybody else, judges, and removes what was made. What is wrong with the
// cluster is in the verdict, which there is with an error, too.
//
// A server that does not answer has patience to come back. What one that stays away would have told
// is not judged, and the verdict names it; up to where its watcher came, that is held against the
// others' as ever. When no server answers, or none takes a write, the error is a *SilentError, and
// all watchers are judged that way. Any other error is about removing.
func (w *Workload) Stop(ctx context.Context, patience time.Duration) (*Verdict, error) {
	w.stopClients()
	w.clients.Wait()
	away, silent := w.readAll(ctx, patience)
	if silent == nil {
		silent = w.mark(ctx, patience)
	}
	var ends []ending
	if silent == nil {
		ends = w.awaitWatchers(ctx, away, patience)
	}
	w.stopWatchers()
	w.watchers.Wait()
	v := w.record.Judge(patience)
	if silent != nil {
		v.Unjudged = append(v.Unjudged, fmt.Sprintf("at the end of the work that began at %s %v; watchers are judged up to where they came", w.began(), silent))
		return v, silent
	}
	w.judgeEnds(v, ends, patience)
	return v, w.clean(ctx)
}

// began is when the work began, on the clock of whoever reads logs beside.
func (w *Workload) began() string { return w.start.Format(time.TimeOnly) }

// last returns the newest revision of this workload's objects that any client was told.
func (w *Workload) last() (revision uint64) {
	for _, c := range w.record.Calls() {
		if c.Outcome == Done && c.Verb != List {
			revision = max(revision, c.Revision)
		}
	}
	return revision
}

// retryPause is between two questions to a server that may be away.
const retryPause = 100 * time.Millisecond

// readAll lists through every server. It returns why that was not done in time, by server: empty
// where it was.
func (w *Workload) readAll(ctx context.Context, patience time.Duration) (away []string, silent error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	away = make([]string, len(w.cfg.Servers))
	var reading sync.WaitGroup
	for i, s := range w.cfg.Servers {
		reading.Go(func() {
			away[i] = insist(ctx, func() (failed string) {
				c := Call{Verb: List}
				if w.call(ctx, s, "the end", &c); c.Outcome != Done {
					failed = fmt.Sprintf("%s: %s", s.Name, c.Error)
				}
				return failed
			})
		})
	}
	reading.Wait()
	if slices.Contains(away, "") {
		return away, nil
	}
	return away, &SilentError{"answered", patience, strings.Join(away, "; ")}
}

// mark makes a last write through whichever server takes it. Who has seen it has seen all that
// clients did, and were told of. Each try has a name of its own: one whose outcome is not known is
// no mark.
func (w *Workload) mark(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n := 0
	said := insist(ctx, func() (failed string) {
		s := w.cfg.Servers[n%len(w.cfg.Servers)]
		c := Call{Verb: Create, Name: fmt.Sprintf("%s-last-%d", w.cfg.Run, n), Token: fmt.Sprintf("last-%d", n)}
		if w.call(ctx, s, "the end", &c); c.Outcome != Done {
			failed = fmt.Sprintf("%s: %s", s.Name, c.Error)
		}
		n++
		return failed
	})
	if said != "" {
		return &SilentError{"took the last write", patience, said}
	}
	return nil
}

// insist tries again and again, until it does not fail or ctx ends. It returns what failed at last,
// empty when nothing did.
func insist(ctx context.Context, try func() (failed string)) (failed string) {
	for {
		now := try()
		if now == "" {
			return ""
		}
		if failed == "" || ctx.Err() == nil { // what fails because the time is over says nothing
			failed = now
		}
		if ctx.Err() != nil {
			return failed
		}
		pause(ctx, retryPause)
	}
}

// ending is how a watcher and its servers were at the end; the zero value: it saw everything, and
// they answered.
type ending struct {
	watch  *Watch
	away   string // what kept a server from being judged
	behind bool   // the watcher did not see everything, though its servers answered all the time
}

// awaitWatchers waits for the watchers of all servers that were not away, and for the one that
// moves.
func (w *Workload) awaitWatchers(ctx context.Context, away []string, patience time.Duration) []ending {
	last := w.last()
	ends := make([]ending, len(w.watches)+1)
	var waiting sync.WaitGroup
	for i, watch := range w.watches {
		if ends[i] = (ending{watch: watch, away: away[i]}); away[i] == "" {
			waiting.Go(func() { ends[i] = w.awaitWatcher(ctx, watch, last, patience, w.cfg.Servers[i]) })
		}
	}
	waiting.Go(func() { ends[len(w.watches)] = w.awaitWatcher(ctx, w.moving, last, patience, w.cfg.Servers...) })
	waiting.Wait()
	return ends
}

// awaitWatcher waits until a watcher has seen everything up to a revision. It gives up when one of
// its servers does not answer and has had patience to; and when all have answered for that long
// without a break, and the watcher is behind all the same, which is their fault.
func (w *Workload) awaitWatcher(ctx context.Context, watch *Watch, last uint64, patience time.Duration, servers ...Server) ending {
	began := time.Now()
	var since time.Time // all answer; zero: they do not
	for !watch.reached(last) {
		away := w.ask(ctx, servers)
		now := time.Now()
		switch {
		case away != "" && (now.Sub(began) >= patience || ctx.Err() != nil):
			return ending{watch: watch, away: away}
		case away != "":
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= patience:
			return ending{watch: watch, behind: true}
		}
		pause(ctx, retryPause)
	}
	return ending{watch: watch}
}

// ask asks servers whether they answer, and returns what one said that does not.
func (w *Workload) ask(ctx context.Context, servers []Server) (away string) {
	for _, s := range servers {
		limited, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
		c := Call{Verb: List}
		if w.objects(s).do(limited, &c); c.Outcome != Done {
			away = fmt.Sprintf("%s: %s", s.Name, c.Error)
		}
		cancel()
	}
	return away
}

// reached says whether the watcher has seen everything up to a revision.
func (w *Watch) reached(revision uint64) bool {
	last, ok := w.Last()
	return ok && last >= revision
}

// judgeEnds adds to a verdict which watchers did not come to the end, and which servers cannot be
// judged for it.
func (w *Workload) judgeEnds(v *Verdict, ends []ending, patience time.Duration) {
	last := w.last()
	for _, end := range ends {
		at, _ := end.watch.Last()
		switch {
		case end.behind:
			v.Violations = append(v.Violations, fmt.Sprintf("watcher %s came to revision %d only, and %d was told to a client %v ago", end.watch.Name, at, last, patience))
		case end.away != "":
			v.Unjudged = append(v.Unjudged, fmt.Sprintf("no answer within %v at the end of the work that began at %s, from %s: watcher %s is judged up to revision %d of %d",
				patience, w.began(), end.away, end.watch.Name, at, last))
		}
	}
}

// clean removes the objects of the run.
func (w *Workload) clean(ctx context.Context) error {
	var err error
	for _, s := range w.cfg.Servers {
		limited, cancel := context.WithTimeout(ctx, 5*w.cfg.CallTimeout)
		err = s.Client.CoreV1().ConfigMaps(w.cfg.Namespace).DeleteCollection(limited, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: RunLabel + "=" + w.cfg.Run})
		cancel()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("remove the objects of the workload: %w", err)
}
