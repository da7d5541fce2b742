package rollover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/trouble"
)

// Manager is a server's part in the rollover of one Kind.
type Manager[S State] struct {
	Server
	about About
	kind  Kind[S]

	// using is held while keys change on this server, and while an operator's change is made. It is
	// never held while another server is asked for keys.
	using sync.Mutex

	mu      sync.Mutex
	seen    S      // as this server's store has it
	problem string // why this server does not follow
	current context.Context
	change  context.CancelFunc // ends current: seen is another one
}

// New returns a Manager that follows nothing yet; Run has to be called.
func New[S State](server Server, about About, kind Kind[S]) *Manager[S] {
	m := &Manager[S]{Server: server, about: about, kind: kind}
	m.current, m.change = context.WithCancel(context.Background())
	return m
}

// retry is the time until a failed step is tried again. The leader looks again as often: the
// removal of a member signals nothing.
const retry = 2 * time.Second

// Run takes over the store's states, until ctx ends.
func (m *Manager[S]) Run(ctx context.Context) error {
	var keepingUp sync.WaitGroup
	defer keepingUp.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	keepingUp.Go(func() { m.keepUp(ctx) }) // ends with ctx
	return m.Store.Follow(ctx, func(value []byte, _ uint64) {
		s, void, err := m.decode(value)
		if reason := cmp.Or(err, void); reason != nil {
			m.Logger.Warn("the state of keys in the store is not used", "keys", m.about.Keys, "reason", reason)
		}
		if err != nil {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.seen = s
		m.change()
		m.current, m.change = context.WithCancel(context.Background())
	})
}

// Seen returns the state as this server's own store has it, zero when none counts; a context that
// ends when there is another one; and why this server does not follow.
func (m *Manager[S]) Seen() (s S, current context.Context, problem string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen, m.current, m.problem
}

// UnderWay reports whether keys are being changed, as far as this server's own store has it.
func (m *Manager[S]) UnderWay() bool {
	s, _, _ := m.Seen()
	_, step := s.At()
	return step != ""
}

// decode reads a value. One that is void counts as none: the leader writes a right one. With err it
// must stay.
func (m *Manager[S]) decode(value []byte) (s S, void, err error) {
	if len(value) == 0 {
		return s, nil, nil
	}
	var none S
	var is Envelope
	damage := cmp.Or(json.Unmarshal(value, &is), json.Unmarshal(value, &s))
	if is.Format > m.about.Format {
		return none, nil,
			fmt.Errorf("the state of %s in the store was written by a newer Barque: update this server", m.about.Keys)
	}
	if damage == nil {
		damage = m.kind.Check(s)
	}
	switch {
	case damage != nil:
		void = fmt.Errorf("it is damaged: %w", damage)
	case is.Cluster != m.Cluster || is.Format < cmp.Or(m.about.Oldest, m.about.Format):
		void = errors.New("it is another cluster's")
	default:
		return s, nil, nil
	}
	if m.about.Kept {
		return none, nil,
			fmt.Errorf(
				"the state of %s in the store cannot be used, and is not replaced: %w; restore a backup of the cluster",
				m.about.Keys, void)
	}
	return none, void, nil
}

func (m *Manager[S]) read(ctx context.Context) (s S, revision uint64, err error) {
	value, revision, err := m.Store.Get(ctx)
	if err != nil {
		return s, 0, fmt.Errorf("read the state of %s: %w", m.about.Keys, err)
	}
	s, _, err = m.decode(value)
	return s, revision, err
}

// write writes the state s after before, in the term of the leader or, if it is ordered, in none.
func (m *Manager[S]) write(ctx context.Context, before, s S, cause Cause, revision, term uint64) error {
	value, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := m.Store.Put(ctx, value, revision, term); err != nil {
		return fmt.Errorf("write the state of %s: %w", m.about.Keys, err)
	}
	if cause == Ordered {
		m.Logger.Info("an operator has changed a rollover", m.at(s)...)
	} else {
		m.Logger.Info("a rollover goes on", m.at(s)...)
	}
	if m.Wrote != nil {
		m.Wrote(Written{before, s, cause})
	}
	return nil
}

// at is the state of a rollover, for the log.
func (m *Manager[S]) at(s S, more ...any) []any {
	generation, step := s.At()
	return append([]any{"rollover", m.about.Name, "generation", generation, "step", cmp.Or(step, "at rest")}, more...)
}

// tell logs that the server's work in a role, leader or member, fails or can go on again.
func (m *Manager[S]) tell(failing *trouble.Trouble, s S, role string, err error) {
	if err != nil {
		if tries, tell := failing.Failed(err); tell {
			m.Logger.Warn("a rollover cannot go on yet",
				m.at(s, "role", role, "tries", tries, "retryIn", retry, "err", err)...)
		}
	} else if past, was := failing.Over(); was {
		m.Logger.Info("a rollover can go on again", "rollover", m.about.Name, "role", role, "after",
			time.Since(past.Since).Round(time.Millisecond), "tries", past.Tries, "newest", past.Newest)
	}
}

// keepUp takes over each state that is newer than this server's, until ctx ends.
func (m *Manager[S]) keepUp(ctx context.Context) {
	var failing trouble.Trouble
	for {
		s, current, _ := m.Seen()
		err := cmp.Or(m.take(ctx, s, current), m.kind.Tidy())
		if ctx.Err() != nil {
			return
		}
		m.tell(&failing, s, "member", err)
		problem, again := "", (<-chan time.Time)(nil)
		if err != nil {
			problem, again = err.Error(), time.After(retry)
		}
		m.mu.Lock()
		m.problem = problem
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-current.Done():
		case <-again:
		}
	}
}

// take takes a state over, unless there is another one meanwhile.
func (m *Manager[S]) take(ctx context.Context, s S, current context.Context) error {
	if generation, _ := s.At(); generation <= m.kind.Uses() {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(current, stop)()
	use, err := m.kind.Fetch(ctx, s)
	m.using.Lock()
	defer m.using.Unlock()
	switch {
	case current.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	return use()
}

// Lead makes the steps while this server leads, in the term, until ctx ends.
func (m *Manager[S]) Lead(ctx context.Context, term uint64) error {
	waiting, told := "", false
	var failing trouble.Trouble
	for {
		members := m.Changed()
		s, current, _ := m.Seen()
		late, err := m.step(ctx, s, term)
		if ctx.Err() != nil {
			return nil
		}
		m.tell(&failing, s, "leader", err)
		if now := strings.Join(late, "; "); now != waiting {
			waiting, told = now, false
		} else if now != "" && !told { // a member that is late for a moment only is no news
			told = true
			m.Logger.Info("a rollover waits", m.at(s, "for", waiting)...)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-members:
		case <-current.Done():
		case <-time.After(retry):
		}
	}
}

// step makes one step, if it is time, or returns the members that it waits for. The leader's own
// store is enough to see that it is not time: it has all that was acknowledged.
func (m *Manager[S]) step(ctx context.Context, s S, term uint64) ([]string, error) {
	if action, late := m.decide(s); action == Rest || action == Wait {
		return late, nil
	}
	s, revision, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	next, cause := s, Advanced
	switch action, late := m.decide(s); action {
	case Repair:
		next, err = m.kind.Rebuild(s)
		cause = Repaired
	case Advance:
		next, err = m.kind.Next(s)
	default:
		return late, nil
	}
	if err != nil {
		return nil, err
	}
	return nil, m.write(ctx, s, next, cause, revision, term)
}

func (m *Manager[S]) decide(s S) (action Action, late []string) {
	generation, step := s.At()
	if step != "" {
		late = m.kind.Waiting(s)
	}
	return Decide(generation, step, late, m.kind.Uses(), m.about.First), late
}

// Current reads the newest state. It is not ok when none counts: the store has none of this
// cluster, or an older one than this server uses. The leader is about to put that right.
func (m *Manager[S]) Current(ctx context.Context) (s S, ok bool, err error) {
	s, _, err = m.read(ctx)
	return s, m.counts(s), err
}

func (m *Manager[S]) counts(s S) bool {
	generation, _ := s.At()
	return generation > 0 && generation >= m.kind.Uses()
}

// Change makes an operator's change, on whichever server. plan returns the next state, and whether
// there is one to write.
func (m *Manager[S]) Change(ctx context.Context, plan func(now S) (next S, write bool, err error)) (S, error) {
	m.using.Lock()
	defer m.using.Unlock()
	s, revision, err := m.read(ctx)
	if err == nil && !m.counts(s) {
		s, err = m.kind.Rebuild(s)
	}
	if err != nil {
		return s, err
	}
	next, write, err := plan(s)
	if err != nil || !write {
		return s, err
	}
	return next, m.write(ctx, s, next, Ordered, revision, 0)
}
