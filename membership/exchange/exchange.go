package exchange

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// Config of an Exchange.
type Config struct {
	rollover.Server
	Trust *pki.Trust
	Home  Home
	// Fetch gets the key with the digest from another server, PEM.
	Fetch func(ctx context.Context, digest string) ([]byte, error)
	// Members returns all nodes that an exchange waits for, those that show no life included; an
	// error when they are not known yet.
	Members func() ([]rollover.Member, error)
	// Sealed reports whether all that the store has for the servers' eyes can be opened with the
	// key of the CA of that digest: the keys of CAs before are dropped at the end. The exchange
	// waits while that is not known. nil: it can.
	Sealed func(digest string) (bool, error)
	// Earlier names the servers whose version would take the exchange of the key of service
	// accounts alone for one of the CA. nil: there are none.
	Earlier func() []string
	// EarlierCAs names the servers whose version does not handle bundles of the form. nil: there
	// are none.
	EarlierCAs func(form int) []string
	// Unrecorded names the servers that have recorded no key for other servers that they keep, see
	// Status. nil: there are none.
	Unrecorded func() []string
	// Told returns nil once the extension API servers know these CAs of the front proxy, PEM: no
	// certificate comes with a way from the CA before to the next one. It is asked at the leader.
	Told func(frontProxyCAs []byte) error
	// Certificates describes those that the nodes have. An external CA that may not issue them is
	// refused. nil: none.
	Certificates func() []pki.Request
}

// Exchange is a server's part in the exchange of the CA.
type Exchange struct {
	*rollover.Manager[State]
	cas *cas
}

// New returns an Exchange that follows nothing yet.
func New(c Config) *Exchange {
	about := rollover.About{Name: "the exchange of the CA", Keys: "the CAs", Oldest: format, Format: separateFormat,
		First: 1}
	kind := &cas{Config: c}
	return &Exchange{rollover.New(c.Server, about, kind), kind}
}

// Lead makes the steps while this server leads, in the term, until ctx ends.
func (e *Exchange) Lead(ctx context.Context, term uint64) error {
	e.cas.leads.Store(true)
	defer e.cas.leads.Store(false)
	return e.Manager.Lead(ctx, term)
}

// Status is how far the exchange is, as one server sees it.
type Status struct {
	Generation uint64    `json:"generation"`
	Step       pki.Step  `json:"step,omitempty"` // empty: none is under way
	Since      time.Time `json:"since,omitzero"`
	Forced     bool      `json:"forced,omitempty"`
	Accounts   bool      `json:"accounts,omitempty"` // the key of service accounts alone is exchanged
	Issuer     string    `json:"issuer"`             // digest of the CA that issues
	External   bool      `json:"external,omitempty"` // an operator has brought it
	Separate   bool      `json:"separate,omitempty"` // peers and the front proxy have CAs of their own, or get them
	Signer     string    `json:"signer,omitempty"`   // digest of the key of service accounts that signs
	Waiting    []string  `json:"waiting,omitempty"`  // by name, each with the reason
	// Unrecorded are the servers that have recorded no key for other servers that they keep. While
	// there is one, a certificate of the CA before counts between servers until the end.
	Unrecorded []string `json:"unrecorded,omitempty"`
	Problem    string   `json:"problem,omitempty"` // of this server
}

// UnderWay reports whether the CA, or the key of service accounts alone, is being exchanged.
func (s *Status) UnderWay() bool { return s.Step != pki.Settled }

// Spreading reports whether the new keys are being made known, and have signed nothing yet.
func (s *Status) Spreading() bool { return s.Step == pki.Spreading }

// GivenUp reports whether an exchange, which stood as before, has been given up since.
func (s *Status) GivenUp(before *Status) bool {
	return before.Spreading() && s.Issuer == before.Issuer && s.Signer == before.Signer
}

// Status returns the progress of the exchange: by the store as this server has it, or by this
// server's own bundle, whichever is newer.
func (e *Exchange) Status() Status {
	is, _, problem := e.Seen()
	if own := e.cas.own(); own.Bundle.Generation >= is.Bundle.Generation {
		is = own
	}
	s := statusOf(is.Bundle)
	s.Problem = problem
	if e.cas.Unrecorded != nil && !s.Accounts {
		s.Unrecorded = e.cas.Unrecorded()
	}
	if s.UnderWay() {
		s.Waiting = e.cas.Waiting(is)
	}
	return s
}

func statusOf(b pki.Bundle) Status {
	s := Status{Generation: b.Generation, Step: b.Step, Since: b.Since, Forced: b.Forced,
		Accounts: b.Step != pki.Settled && !b.ExchangesCA(), Signer: b.Signer()}
	if cas, err := b.Digests(); err == nil && len(cas) > 0 { // one that cannot be read is reported where it is needed
		s.Issuer = cas[0]
		s.External = b.External()
	}
	s.Separate = b.Separate()
	return s
}

// Change is an operator's request.
type Change string

const (
	Begin Change = "begin" // exchange the CA for a new one
	Undo  Change = "undo"  // give it up, before the new one has signed anything
	Force Change = "force" // do not wait for nodes that show no life

	BeginAccounts Change = "accounts" // exchange the key of service accounts, and not the CA
	// BeginExternal is Begin with the CA that an operator brings. BeginBuiltIn is Begin also if the
	// one before was brought. Earlier versions refuse these as ErrChange.
	BeginExternal Change = "begin-external"
	BeginBuiltIn  Change = "begin-built-in"
	// BeginJoint is BeginBuiltIn with one CA for all purposes, which earlier versions handle, and
	// BeginExternalJoint is BeginExternal with one.
	BeginJoint         Change = "begin-joint"
	BeginExternalJoint Change = "begin-external-joint"
)

// BeginsCA reports whether the change begins an exchange of the CA.
func (c Change) BeginsCA() bool {
	return c == Begin || c == BeginBuiltIn || c == BeginJoint || c.BringsCA()
}

// BringsCA reports whether the change begins an exchange with the CA that an operator brings.
func (c Change) BringsCA() bool { return c == BeginExternal || c == BeginExternalJoint }

// Request is a Change. Given is the CA for one that brings it.
type Request struct {
	Change Change
	Given  Given
	// Seen is the generation for which it was ordered: another one is refused with ErrMoved. 0 is
	// any.
	Seen uint64
}

// Given is a CA that an operator brings, PEM: see pki.ParseExternal.
type Given struct {
	Chain []byte `json:"chain"`
	Key   []byte `json:"key"`
}

// ErrBehind is returned by a server that has not taken over the last step yet.
var ErrBehind = errors.New(
	"this server has not taken over the last step of the exchange of the CA yet; try again, or at another server")

// ErrExternal is returned for a Begin in a cluster with an external CA: the successor is not named.
var ErrExternal = errors.New(
	"an operator has brought the CA of this cluster: give its successor with --ca-file and --ca-key-file, or --built-in for a CA that the cluster makes itself")

// ErrChange is returned for a Change that there is not.
var ErrChange = errors.New("no such change of the CA")

// ErrMoved is returned for a Request of another generation: it was ordered for another exchange, or
// for another step.
var ErrMoved = errors.New("the exchange has moved on since you have seen it, or it is another one")

// Apply makes the change, by whichever server.
func (e *Exchange) Apply(ctx context.Context, r Request) (Status, error) {
	next, err := e.Manager.Change(ctx, func(now State) (State, bool, error) {
		if g := now.Bundle.Generation; r.Seen != 0 && r.Seen != g {
			return now, false,
				fmt.Errorf(
					"nothing was changed: %w (generation %d then, and %d now): look with `barque cert show`, and order it again", ErrMoved, r.Seen, g)
		}
		b, err := e.cas.plan(now.Bundle, r)
		return e.cas.state(b), true, err
	})
	if err != nil {
		return e.Status(), err
	}
	return statusOf(next.Bundle), nil
}

// plan returns the bundle after the change.
func (c *cas) plan(b pki.Bundle, r Request) (pki.Bundle, error) {
	switch r.Change {
	case Begin:
		if b.External() {
			return b, ErrExternal
		}
		return c.begin(b, c.separate, c.builtIn)
	case BeginBuiltIn:
		return c.begin(b, c.separate, c.builtIn)
	case BeginJoint:
		return c.begin(b, joint, c.builtIn)
	case BeginExternal, BeginExternalJoint:
		purposes := c.separate
		if r.Change == BeginExternalJoint {
			purposes = joint
		}
		return c.begin(b, purposes, func(b pki.Bundle, account crypto.PublicKey) (pki.Bundle, *pki.Authority, error) {
			return c.external(b, r.Given, account)
		})
	case BeginAccounts:
		return c.beginAccounts(b)
	case Undo:
		return b.Undo()
	case Force:
		return b.Force()
	}
	return b, fmt.Errorf("%w: %q", ErrChange, r.Change)
}

// builtIn is the bundle with a new CA that the cluster makes itself.
func (c *cas) builtIn(b pki.Bundle, account crypto.PublicKey) (pki.Bundle, *pki.Authority, error) {
	next, err := pki.NextAuthority(c.Cluster, time.Now())
	if err != nil {
		return b, nil, err
	}
	out, err := b.Begin(next, account, time.Now())
	return out, next, err
}

// external is the bundle with the CA that an operator brings.
func (c *cas) external(b pki.Bundle, given Given, account crypto.PublicKey) (pki.Bundle, *pki.Authority, error) {
	if c.EarlierCAs != nil {
		if err := checkVersions(func() []string { return c.EarlierCAs(pki.ExternalForm) },
			"knows CAs of operators"); err != nil {
			return b, nil, err
		}
	}
	next, err := pki.ParseExternal(given.Chain, given.Key, time.Now())
	if err != nil {
		return b, nil, err
	}
	if c.Certificates != nil {
		if err := next.Issues(c.Certificates(), time.Now()); err != nil {
			return b, nil, err
		}
	}
	out, err := b.BeginExternal(next, account, time.Now())
	return out, next.Authority(), err
}

// begin adds a new CA, and a new key of service accounts: a thief of the one has the other.
func (c *cas) begin(b pki.Bundle, purposes func(b pki.Bundle, next *pki.Authority) (pki.Bundle, []held, error),
	with func(b pki.Bundle, account crypto.PublicKey) (pki.Bundle, *pki.Authority, error)) (pki.Bundle, error) {
	// A server that is behind may not hold a new key: taking the last step over would drop it. All
	// else needs no key, and undoing must not: the only server that has it may be lost.
	if b.Generation > c.Uses() {
		return b, ErrBehind
	}
	account, err := pki.GenerateKey()
	if err != nil {
		return b, err
	}
	out, next, err := with(b, account.Public())
	if err != nil {
		return b, err
	}
	key, err := next.Key()
	if err != nil {
		return b, err
	}
	out, more, err := purposes(out, next)
	if err != nil {
		return b, err
	}
	// The keys are on this server's disk before anyone hears of them; the others fetch them from
	// here.
	for _, k := range append([]held{{pki.CAKey, key}, {pki.AccountKey, account}}, more...) {
		if err := c.Home.Hold(k.use, k.key); err != nil {
			return b, err
		}
	}
	return out, nil
}

// held is a key for a bundle to come.
type held struct {
	use pki.KeyUse
	key crypto.Signer
}

// separate gives each purpose a new CA of its own. An exchange of a cluster with one CA for all is
// not kept from beginning by servers of earlier versions: its key may have been read. It has one CA
// for all again.
func (c *cas) separate(b pki.Bundle, _ *pki.Authority) (pki.Bundle, []held, error) {
	if c.EarlierCAs != nil && !b.Separate() {
		if earlier := c.EarlierCAs(pki.SeparateForm); len(earlier) > 0 {
			c.Logger.Warn(
				"the new CA is one for all purposes: these servers are not known to be of a version with more",
				"servers", earlier)
			return b, nil, nil
		}
	}
	var keys []held
	for purpose, use := range map[pki.Purpose]pki.KeyUse{pki.Peers: pki.PeersKey, pki.FrontProxy: pki.FrontProxyKey} {
		ca, err := pki.CAOf(purpose, c.Cluster, time.Now())
		if err != nil {
			return b, nil, err
		}
		key, err := ca.Key()
		if err != nil {
			return b, nil, err
		}
		if b, err = b.BeginFor(purpose, ca); err != nil {
			return b, nil, err
		}
		keys = append(keys, held{use, key})
	}
	return b, keys, nil
}

// joint makes the next CA for clients that of all purposes.
func joint(b pki.Bundle, next *pki.Authority) (pki.Bundle, []held, error) {
	if !b.Separate() {
		return b, nil, nil
	}
	for _, purpose := range []pki.Purpose{pki.Peers, pki.FrontProxy} {
		var err error
		if b, err = b.BeginFor(purpose, next); err != nil {
			return b, nil, err
		}
	}
	return b, nil, nil
}

// EarlierError is returned while servers are, or may be, of a version that would take the exchange
// of the key of service accounts alone for one of the CA, or does not know External CAs.
type EarlierError struct {
	Servers []string
	Skill   string // that versions need
}

func (e *EarlierError) Error() string {
	return fmt.Sprintf(
		"not all servers are known to be of a version that %s: %s; start or update them first, or remove them", e.Skill,
		strings.Join(e.Servers, ", "))
}

// checkVersions returns an *EarlierError for the servers without the skill.
func checkVersions(earlier func() []string, skill string) error {
	if earlier != nil {
		if servers := earlier(); len(servers) > 0 {
			return &EarlierError{servers, skill}
		}
	}
	return nil
}

// beginAccounts makes a new key of service accounts.
func (c *cas) beginAccounts(b pki.Bundle) (pki.Bundle, error) {
	if b.Generation > c.Uses() {
		return b, ErrBehind
	}
	if err := checkVersions(c.Earlier, "exchanges the key of service accounts alone"); err != nil {
		return b, err
	}
	account, err := pki.GenerateKey()
	if err != nil {
		return b, err
	}
	out, err := b.BeginAccounts(account.Public(), time.Now())
	if err != nil {
		return b, err
	}
	return out, c.Home.Hold(pki.AccountKey, account)
}
