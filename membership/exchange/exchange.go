package exchange

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/trouble"
	"github.com/barque/barque/pki"
)

// Shelf is the place in the store where the State lies.
type Shelf interface {
	// Follow calls f with what lies there now and with everything that does later, and the
	// revision, until the context ends. Nothing lies there at revision 0.
	Follow(ctx context.Context, f func(state []byte, revision uint64)) error
	// Get returns the newest, whichever server wrote it.
	Get(ctx context.Context) (state []byte, revision uint64, err error)
	// Put replaces what lies there if that is still of the revision, and fails otherwise. The term,
	// if it is not 0, is that in which the write must be made.
	Put(ctx context.Context, state []byte, revision, term uint64) error
}

// Home is what this server keeps of its CAs.
type Home interface {
	// Keys are those that this server has: of CAs, and of service accounts.
	Keys() []crypto.Signer
	// Hold writes down a key that is not used yet.
	Hold(use pki.KeyUse, key crypto.Signer) error
	// Adopt writes the bundle down and makes it what this server believes. Its keys are held.
	Adopt(b pki.Bundle) error
	// Tidy drops the keys that the bundles which were adopted have no use for; never one that is
	// held for a bundle to come. It fails when it could not drop all, and may be repeated.
	Tidy() error
}

// Config of an Exchange.
type Config struct {
	Cluster string // ID
	Trust   *pki.Trust
	Shelf   Shelf
	Home    Home
	// Fetch gets the key with the digest from another server, PEM.
	Fetch func(ctx context.Context, digest string) ([]byte, error)
	// Members returns all nodes of the cluster, those that show no life included; an error when it
	// cannot tell yet. Changed returns a channel that is closed when what gossip knows of them has
	// changed; who was removed is seen by looking again.
	Members func() ([]Member, error)
	Changed func() <-chan struct{}
	Now     func() time.Time
	Logger  *slog.Logger
}

// Exchange is a server's part in the exchange of the CA.
type Exchange struct {
	Config

	step sync.Mutex // held while keys and bundle on disk change; never while another server is asked

	mu       sync.Mutex
	followed bool   // seen is known
	seen     State  // on the shelf, as this server knows it
	revision uint64 // of seen
	problem  string // why it cannot be taken over, or why keys that are retired are still there
	changed  chan struct{}
}

// New returns an Exchange that follows nothing yet.
func New(c Config) *Exchange { return &Exchange{Config: c, changed: make(chan struct{})} }

// Status is how far the exchange is, as one server sees it.
type Status struct {
	Generation uint64    `json:"generation"`
	Step       pki.Step  `json:"step,omitempty"` // empty: none is under way
	Since      time.Time `json:"since,omitzero"`
	Forced     bool      `json:"forced,omitempty"`
	Issuer     string    `json:"issuer"`            // digest of the CA that issues
	Waiting    []string  `json:"waiting,omitempty"` // for whom, and why
	Problem    string    `json:"problem,omitempty"` // of this server
}

// UnderWay tells whether the CA is being exchanged.
func (s *Status) UnderWay() bool { return s.Step != pki.Settled }

// Spreading tells whether the new CA is being made known, and has issued nothing yet.
func (s *Status) Spreading() bool { return s.Step == pki.Spreading }

// GivenUp tells whether an exchange, which stood as before, has been given up since.
func (s *Status) GivenUp(before *Status) bool {
	return before.Spreading() && s.Issuer == before.Issuer
}

// Status tells how far the exchange is.
func (e *Exchange) Status() Status {
	e.mu.Lock()
	b, problem := e.newest(), e.problem
	e.mu.Unlock()
	s := statusOf(b)
	s.Problem = problem
	if b.Step != pki.Settled {
		s.Waiting = e.waiting(b)
	}
	return s
}

func statusOf(b pki.Bundle) Status {
	s := Status{Generation: b.Generation, Step: b.Step, Since: b.Since, Forced: b.Forced}
	if cas, err := b.Digests(); err == nil && len(cas) > 0 { // one that cannot be read is told by who needs it
		s.Issuer = cas[0]
	}
	return s
}

func (e *Exchange) waiting(b pki.Bundle) []string {
	issuer, err := pki.ParseAuthority([]byte(b.CAs[0]), nil)
	if err != nil {
		return []string{fmt.Sprintf("the CA that issues cannot be read: %v", err)}
	}
	members, err := e.Members()
	if err != nil {
		return []string{fmt.Sprintf("this server does not know all nodes yet: %v", err)}
	}
	return Waiting(b, issuer.Digest(), members)
}

// newest returns the newer one of what lies on the shelf and what this server believes. The caller
// holds mu.
func (e *Exchange) newest() pki.Bundle {
	own := e.Trust.Bundle()
	if e.seen.Cluster == e.Cluster && e.seen.Bundle.Generation > own.Generation {
		return e.seen.Bundle
	}
	return own
}

const (
	// retry is how soon a server tries again what failed.
	retry = 2 * time.Second
	// retryMost bounds how rarely it tries to drop keys that could not be dropped often: others
	// wait for all else, and nobody for this. It is also how often it says in the log that
	// something fails still.
	retryMost = time.Minute
	// lookAgain is how soon the leader looks again whom the exchange waits for: nothing tells that
	// a node was removed.
	lookAgain = 2 * time.Second
)

// Run follows what lies on the shelf until the context ends.
func (e *Exchange) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { e.keepUp(ctx) }) // ends with ctx
	return e.Shelf.Follow(ctx, func(data []byte, revision uint64) {
		s, err := decode(data)
		if err != nil {
			e.Logger.Error("the cluster's CAs cannot be followed", "err", err)
			if !errors.Is(err, errDamaged) {
				return
			}
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.seen, e.revision, e.followed = s, revision, true
		close(e.changed)
		e.changed = make(chan struct{})
	})
}

// keepUp takes over what is newer than what this server believes.
func (e *Exchange) keepUp(ctx context.Context) {
	var said time.Time
	tidyIn := retry
	for {
		e.mu.Lock()
		b, changed := e.newest(), e.changed
		e.mu.Unlock()
		var wait time.Duration
		failed, problem := "", ""
		if b.Generation > e.Trust.Bundle().Generation {
			if err := e.takeOver(ctx, b, changed); err != nil && ctx.Err() == nil {
				wait, failed, problem = retry, "the cluster's CAs have changed, and this server cannot take that over yet", err.Error()
			}
		}
		if err := e.Home.Tidy(); err != nil && problem == "" {
			wait, failed, problem = tidyIn, "a key that is retired could not be removed from disk", fmt.Sprintf("a key that is retired is still on disk: %v", err)
			tidyIn = min(2*tidyIn, retryMost)
		}
		// Texts are not compared: they may name temporary files.
		if problem == "" {
			said, tidyIn = time.Time{}, retry
		} else if time.Since(said) >= retryMost {
			said = time.Now()
			e.Logger.Warn(failed, "generation", b.Generation, "step", stepName(b.Step), "retryIn", wait, "err", problem)
		}
		e.mu.Lock()
		e.problem = problem
		e.mu.Unlock()
		var again <-chan time.Time
		if problem != "" {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			said, tidyIn = time.Time{}, retry
		case <-again:
		}
	}
}

// errChanged ends the fetching of keys when they may not be needed any more.
var errChanged = errors.New("the exchange of the CA has gone on, or was undone")

func (e *Exchange) takeOver(ctx context.Context, b pki.Bundle, changed <-chan struct{}) error {
	fetching, stop := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-changed:
			stop(errChanged)
		case <-fetching.Done():
		}
	})
	keys, err := e.lacking(fetching, b)
	stop(nil)
	wg.Wait()
	if err != nil && errors.Is(context.Cause(fetching), errChanged) {
		return nil // what it is now is taken over next
	}
	if err != nil {
		return err
	}
	e.step.Lock()
	defer e.step.Unlock()
	e.mu.Lock()
	newest := e.newest().Generation
	e.mu.Unlock()
	if newest != b.Generation {
		return nil // it was changed, or undone, while the keys were fetched; what follows is taken over next
	}
	for _, k := range keys {
		if err := e.Home.Hold(k.use, k.key); err != nil {
			return err
		}
	}
	if err := e.Home.Adopt(b); err != nil {
		return err
	}
	e.Logger.Info("the cluster's CAs have changed", "generation", b.Generation, "step", stepName(b.Step), "cas", len(b.CAs))
	return nil
}

type fetched struct {
	use pki.KeyUse
	key crypto.Signer
}

// lacking fetches the keys that the bundle needs and this server does not have. Others may change
// the exchange meanwhile, or undo it: that is what helps when nobody has a key any more.
func (e *Exchange) lacking(ctx context.Context, b pki.Bundle) ([]fetched, error) {
	needs, err := b.NeedsKeys()
	if err != nil {
		return nil, err
	}
	var out []fetched
	for _, need := range needs {
		if slices.ContainsFunc(e.Home.Keys(), func(k crypto.Signer) bool { return isOf(k, need.Digest) }) {
			continue
		}
		keyPEM, err := e.Fetch(ctx, need.Digest)
		if err != nil {
			return nil, fmt.Errorf("get %s, from another server: %w", need, err)
		}
		key, err := pki.ParseKey(keyPEM)
		if err == nil && !isOf(key, need.Digest) {
			err = errors.New("it is another one")
		}
		if err != nil {
			return nil, fmt.Errorf("%s, that another server sends: %w", need, err)
		}
		out = append(out, fetched{need.Use, key})
	}
	return out, nil
}

func isOf(key crypto.Signer, digest string) bool {
	is, err := pki.KeyDigest(key)
	return err == nil && is == digest
}

func stepName(s pki.Step) string {
	if s == pki.Settled {
		return "settled"
	}
	return string(s)
}

// Lead makes the steps while this server leads, in the term, until the context ends.
func (e *Exchange) Lead(ctx context.Context, term uint64) error {
	said := ""
	var cannot trouble.Trouble
	for {
		nodes := e.Changed()
		e.mu.Lock()
		b, revision, changed := e.newest(), e.revision, e.changed
		behind := e.followed && (e.seen.Cluster != e.Cluster || e.seen.Bundle.Generation < b.Generation)
		e.mu.Unlock()
		own, trust := e.Trust.Bundle(), e.Trust.Changed()
		var again <-chan time.Time
		var err error
		switch {
		case behind && b.Generation > 1 && (revision > 0 || b.Step != pki.Settled):
			// A backup was restored. Servers that do not know better would take that for what
			// holds.
			err = e.put(ctx, b, revision, term)
		case b.Step != pki.Settled && own.Generation == b.Generation:
			waiting := strings.Join(e.waiting(b), "; ")
			if waiting == "" {
				err = e.advance(ctx, revision, term)
			} else if again = time.After(lookAgain); waiting != said {
				e.Logger.Info("the exchange of the CA waits", "step", b.Step, "for", waiting)
			}
			said = waiting
		}
		if err == nil {
			if past, was := cannot.Over(); was {
				e.Logger.Info("the exchange of the CA can go on again", "after", time.Since(past.Since).Round(time.Millisecond), "tries", past.Tries, "newest", past.Newest)
			}
		} else if ctx.Err() == nil {
			if tries, tell := cannot.Failed(err); tell {
				e.Logger.Warn("the exchange of the CA cannot go on yet", "step", stepName(b.Step), "tries", tries, "retryIn", retry, "err", err)
			}
			again = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-nodes:
		case <-trust:
		case <-again:
		}
	}
}

func (e *Exchange) advance(ctx context.Context, revision, term uint64) error {
	next, err := e.Trust.Advance(e.Now())
	if err != nil {
		return err
	}
	if err := e.put(ctx, next, revision, term); err != nil {
		return err
	}
	e.Logger.Info("the exchange of the CA goes on", "generation", next.Generation, "step", stepName(next.Step))
	return nil
}

func (e *Exchange) put(ctx context.Context, b pki.Bundle, revision, term uint64) error {
	data, err := json.Marshal(State{Format: format, Cluster: e.Cluster, Bundle: b})
	if err != nil {
		return err
	}
	return e.Shelf.Put(ctx, data, revision, term)
}

// Change is what an operator may ask for.
type Change string

const (
	Begin Change = "begin" // exchange the CA for a new one
	Undo  Change = "undo"  // give it up, before the new one has issued anything
	Force Change = "force" // do not wait for nodes that show no life
)

// ErrBehind is returned by a server that has not taken over the last step yet.
var ErrBehind = errors.New("this server has not taken over the last step of the exchange of the CA yet; try again, or at another server")

// ErrChange is returned for a Change that there is not.
var ErrChange = errors.New("no such change of the CA")

// Apply makes the change, by whichever server.
func (e *Exchange) Apply(ctx context.Context, c Change) (Status, error) {
	e.step.Lock()
	defer e.step.Unlock()
	data, revision, err := e.Shelf.Get(ctx)
	if err != nil {
		return e.Status(), err
	}
	s, err := decode(data)
	if err != nil && !errors.Is(err, errDamaged) {
		return e.Status(), err
	}
	b := e.Trust.Bundle()
	if s.Cluster == e.Cluster && s.Bundle.Generation > b.Generation {
		// What is behind may not hold a new key: taking the last step over would drop it. All else
		// needs no key, and undoing must not: the only server that has it may be lost.
		if c == Begin {
			return e.Status(), ErrBehind
		}
		b = s.Bundle
	}
	next, err := e.plan(b, c)
	if err != nil {
		return e.Status(), err
	}
	if err := e.put(ctx, next, revision, 0); err != nil {
		return e.Status(), err
	}
	e.Logger.Warn("an operator changes the exchange of the CA", "change", c, "generation", next.Generation, "step", stepName(next.Step))
	return statusOf(next), nil
}

// plan returns the bundle after the change.
func (e *Exchange) plan(b pki.Bundle, c Change) (pki.Bundle, error) {
	switch c {
	case Begin:
		return e.begin(b)
	case Undo:
		return b.Undo()
	case Force:
		return b.Force()
	}
	return b, fmt.Errorf("%w: %q", ErrChange, c)
}

// begin makes a new CA, and a new key of service accounts: who had the one had the other.
func (e *Exchange) begin(b pki.Bundle) (pki.Bundle, error) {
	next, err := pki.NextAuthority(e.Cluster, e.Now())
	if err != nil {
		return b, err
	}
	key, err := next.Key()
	if err != nil {
		return b, err
	}
	account, err := pki.GenerateKey()
	if err != nil {
		return b, err
	}
	out, err := b.Begin(next, account.Public(), e.Now())
	if err != nil {
		return b, err
	}
	// The keys are on this server's disk before anyone hears of them; the others fetch them from
	// here.
	return out, errors.Join(e.Home.Hold(pki.CAKey, key), e.Home.Hold(pki.AccountKey, account))
}
