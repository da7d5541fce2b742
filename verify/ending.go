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

// A SilentError is returned when the end of the work needed an answer and no server gave one. It is
// a context.DeadlineExceeded.
type SilentError struct {
	Needed string        // the step that no server completed
	Limit  time.Duration // how long the servers were asked
	Said   string        // the last errors
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("no server %s within %v: %s", e.Needed, e.Limit, e.Said)
}

func (e *SilentError) Unwrap() error { return context.DeadlineExceeded }

// Stop ends the clients and reads all objects once more through every server. It waits until the
// watchers have reached the last write. Then it judges the record and removes the objects. Faults
// of the cluster are in the verdict, which is returned with an error too.
//
// A silent server has patience to answer. Without an answer the verdict names it, and its watcher
// is judged only up to its last event. When no server answers, or none takes a write, all watchers
// are judged that way, and the error is a *SilentError. Any other error is a failed removal.
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
		v.Unjudged = append(v.Unjudged,
			fmt.Sprintf("at the end of the work that began at %s %v; watchers are judged up to where they came",
				w.began(), silent))
		return v, silent
	}
	w.judgeEnds(v, ends, patience)
	return v, w.clean(ctx)
}

// began is the local time at which the work began, for comparison with logs.
func (w *Workload) began() string { return w.start.Format(time.TimeOnly) }

// last returns the newest revision of this workload's objects in any answer.
func (w *Workload) last() (revision uint64) {
	for _, c := range w.record.Calls() {
		if c.Outcome == Done && c.Verb != List {
			revision = max(revision, c.Revision)
		}
	}
	return revision
}

// retryPause is the pause before a server that may be away is asked again.
const retryPause = 100 * time.Millisecond

// readAll lists through every server until patience is over. away has an error for each server,
// empty for the servers that answered.
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

// mark makes a last write through any server that takes it. A watcher that has seen this write has
// seen all acknowledged writes before it. Each try has a name of its own, because a try of unknown
// outcome is no mark.
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

// insist repeats try until it succeeds or ctx ends. It returns the last failure, empty after a
// success.
func insist(ctx context.Context, try func() (failed string)) (failed string) {
	for {
		now := try()
		if now == "" {
			return ""
		}
		if failed == "" || ctx.Err() == nil { // a failure that the deadline caused explains nothing
			failed = now
		}
		if ctx.Err() != nil {
			return failed
		}
		pause(ctx, retryPause)
	}
}

// ending is the state of a watcher and its servers at the end. The zero value: the watcher saw
// everything.
type ending struct {
	watch  *Watch
	away   string // the error of a server that did not answer
	behind bool   // the watcher missed events, though its servers answered all the time
}

// awaitWatchers waits for the watcher that moves and for the watchers of all servers that answered.
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
// its servers is still silent after patience. It also gives up when all have answered for that long
// without a break: then the servers are at fault.
func (w *Workload) awaitWatcher(
	ctx context.Context, watch *Watch, last uint64, patience time.Duration, servers ...Server,
) ending {
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

// ask lists through each server, and returns the error of one that does not answer.
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

// reached reports whether the watcher has seen everything up to a revision.
func (w *Watch) reached(revision uint64) bool {
	last, ok := w.Last()
	return ok && last >= revision
}

// judgeEnds adds the watchers that did not reach the end to a verdict: as violations, or as
// unjudged if a server was away.
func (w *Workload) judgeEnds(v *Verdict, ends []ending, patience time.Duration) {
	last := w.last()
	for _, end := range ends {
		at, _ := end.watch.Last()
		switch {
		case end.behind:
			v.Violations = append(v.Violations,
				fmt.Sprintf("watcher %s came to revision %d only, and %d was told to a client %v ago", end.watch.Name,
					at, last, patience))
		case end.away != "":
			v.Unjudged = append(v.Unjudged,
				fmt.Sprintf(
					"no answer within %v at the end of the work that began at %s, from %s: watcher %s is judged up to revision %d of %d",
					patience, w.began(), end.away, end.watch.Name, at, last))
		}
	}
}

// clean removes the objects of the run.
func (w *Workload) clean(ctx context.Context) error {
	var err error
	for _, s := range w.cfg.Servers {
		limited, cancel := context.WithTimeout(ctx, 5*w.cfg.CallTimeout)
		err = s.Client.CoreV1().ConfigMaps(w.cfg.Namespace).DeleteCollection(limited, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: RunLabel + "=" + w.cfg.Run})
		cancel()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("remove the objects of the workload: %w", err)
}
