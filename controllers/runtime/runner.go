package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/internal/lastevents"
)

// Leadership tells when this server leads. raftstore's Store is one.
type Leadership interface {
	// AwaitLeadership blocks until this server leads. The context it returns ends when that
	// leadership does, with the cause; term identifies it. It fails when ctx ends.
	AwaitLeadership(ctx context.Context) (lead context.Context, term uint64, err error)
}

// Routine is one piece of leader work.
type Routine struct {
	// Name in logs and in Status.
	Name string
	// Run works until ctx ends and returns when all that it started has ended. Every write of the
	// client is fenced by the term; TermFrom(ctx) tells which one it is. An error before the end
	// of ctx restarts the routine after a back-off, and so does an early nil.
	Run func(ctx context.Context, client kubernetes.Interface) error
}

// Config of a Runner.
type Config struct {
	Leadership Leadership
	// ClientsFor makes the client of a term. Every request of it carries TermFrom(term), and ends
	// with term whatever context it is made with: a library may have one of its own that never
	// ends. The context ends with the leadership. At a stop of the server it outlives that of the
	// routines by lastevents.Patience, for their last events.
	ClientsFor func(term context.Context) (kubernetes.Interface, error)
	// Prepare, if set, must succeed in a term before its routines start; it is tried again until
	// it does.
	Prepare  func(ctx context.Context, client kubernetes.Interface) error
	Routines []Routine
	// OnStarted, if set, is told how long after the election a routine has started its work: see
	// Started. It must not block.
	OnStarted func(routine string, after time.Duration)
	// OnEnded, if set, is called when all routines of a term have returned: OnStarted is told
	// nothing more of that one. It must not block.
	OnEnded func()
	Logger  *slog.Logger

	// MinBackoff and MaxBackoff bound the wait before a failed routine runs again; a run longer
	// than MaxBackoff starts from MinBackoff again. Defaults: 100 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration
}

// Runner runs the routines while this server leads.
//
//	          AwaitLeadership returns           the term's context ends
//	waiting ─────────────────────────▶ leading ─────────────────────────▶ draining
//	   ▲                                                                     │
//	   └───────────────── every routine has returned ────────────────────────┘
//
// and from any of them to stopped when Run's context ends, draining first.
type Runner struct {
	cfg Config

	mu     sync.Mutex
	status Status
}

// New checks the configuration.
func New(cfg Config) (*Runner, error) {
	if cfg.Leadership == nil || cfg.ClientsFor == nil {
		return nil, errors.New("controllers/runtime: Leadership and ClientsFor are required")
	}
	seen := map[string]bool{}
	for _, r := range cfg.Routines {
		if r.Name == "" || r.Run == nil || seen[r.Name] {
			return nil, fmt.Errorf("controllers/runtime: routine %q needs a unique name and a Run function", r.Name)
		}
		seen[r.Name] = true
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MinBackoff <= 0 {
		cfg.MinBackoff = 100 * time.Millisecond
	}
	if cfg.MaxBackoff < cfg.MinBackoff {
		cfg.MaxBackoff = max(30*time.Second, cfg.MinBackoff)
	}
	r := &Runner{cfg: cfg}
	r.status = Status{Phase: Waiting, Since: time.Now(), Routines: make([]RoutineStatus, len(cfg.Routines))}
	for i, routine := range cfg.Routines {
		r.status.Routines[i].Name = routine.Name
	}
	return r, nil
}

// Run leads whenever this server is elected, until ctx ends. It returns nil then.
func (r *Runner) Run(ctx context.Context) error {
	defer r.enter(Stopped, 0)
	for ctx.Err() == nil {
		r.enter(Waiting, 0)
		lead, term, err := r.cfg.Leadership.AwaitLeadership(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("waiting for leadership: %w", err)
		}
		r.lead(ctx, lead, term)
	}
	return nil
}

// lead runs every routine for one term and returns when all have ended.
func (r *Runner) lead(ctx, lead context.Context, term uint64) {
	elected := time.Now()
	// At a stop this server leads until the routines have ended. The client writes for a little
	// longer than they work: their last events.
	writes, endWrites := context.WithCancelCause(withTerm(lead, term))
	defer endWrites(nil)
	lead, cancel := context.WithCancelCause(writes)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		cancel(context.Cause(ctx))
		time.AfterFunc(lastevents.Patience, func() { endWrites(context.Cause(ctx)) })
	})
	defer stop()

	log := r.cfg.Logger.With("term", term)
	client, err := r.clientFor(lead, writes, log)
	if err != nil {
		return
	}
	r.enter(Leading, term)
	if !r.prepare(lead, client, log) {
		return
	}
	log.Info("leading: starting the controllers", "routines", len(r.cfg.Routines))
	var wg sync.WaitGroup
	for i := range r.cfg.Routines {
		wg.Go(func() { r.keepRunning(lead, i, elected, client, log) })
	}
	<-lead.Done()
	r.enter(Draining, term)
	wg.Wait()
	if r.cfg.OnEnded != nil {
		r.cfg.OnEnded()
	}
	log.Info("leadership ended: the controllers have stopped", "reason", context.Cause(lead))
}

// clientFor makes the term's client, whose requests end with writes. It tries again until the term
// ends.
func (r *Runner) clientFor(lead, writes context.Context, log *slog.Logger) (kubernetes.Interface, error) {
	backoff := r.cfg.MinBackoff
	for {
		client, err := r.cfg.ClientsFor(writes)
		if err == nil {
			return client, nil
		}
		log.Error("no client for the controllers: trying again", "err", err, "after", backoff)
		if !sleep(lead, backoff) {
			return nil, context.Cause(lead)
		}
		backoff = min(2*backoff, r.cfg.MaxBackoff)
	}
}

// prepare makes the term ready for the routines; it returns false when the term ends before.
func (r *Runner) prepare(lead context.Context, client kubernetes.Interface, log *slog.Logger) bool {
	if r.cfg.Prepare == nil {
		return true
	}
	first := Routine{Name: "prepare", Run: r.cfg.Prepare}
	for backoff := r.cfg.MinBackoff; ; backoff = min(2*backoff, r.cfg.MaxBackoff) {
		err := runSafely(lead, first, client)
		if err == nil || lead.Err() != nil {
			return lead.Err() == nil
		}
		log.Warn("preparing the work of the leader failed: trying again", "err", err, "after", backoff)
		if !sleep(lead, backoff) {
			return false
		}
	}
}

// keepRunning runs one routine until the term ends, again and again when it fails alone.
func (r *Runner) keepRunning(
	lead context.Context, i int, elected time.Time, client kubernetes.Interface, log *slog.Logger,
) {
	routine := r.cfg.Routines[i]
	backoff := r.cfg.MinBackoff
	ctx := r.reporting(lead, i, elected)
	for lead.Err() == nil {
		started := time.Now()
		r.update(i, func(s *RoutineStatus) { s.Running, s.Since, s.StartedAfter = true, started, 0 })
		err := runSafely(ctx, routine, client)
		ctx = lead
		now := time.Now()
		r.update(i, func(s *RoutineStatus) { s.Running, s.Since = false, now })
		if lead.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("returned although its term goes on")
		}
		r.update(i, func(s *RoutineStatus) { s.Restarts++; s.LastError, s.LastErrorAt = err.Error(), now })
		if now.Sub(started) > r.cfg.MaxBackoff {
			backoff = r.cfg.MinBackoff
		}
		log.Error("a controller failed: restarting it", "controller", routine.Name, "err", err, "after", backoff)
		if !sleep(lead, backoff) {
			return
		}
		backoff = min(2*backoff, r.cfg.MaxBackoff)
	}
}

// runSafely turns a panic into an error: the same process holds a replica of the cluster's state,
// and the next leader would meet the same object.
func runSafely(ctx context.Context, routine Routine, client kubernetes.Interface) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return routine.Run(ctx, client)
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

type termKey struct{}

func withTerm(ctx context.Context, term uint64) context.Context {
	return context.WithValue(ctx, termKey{}, term)
}

// TermFrom returns the term under which a routine runs, for routines that need further clients.
// It is 0 outside a Runner.
func TermFrom(ctx context.Context) uint64 {
	term, _ := ctx.Value(termKey{}).(uint64)
	return term
}
