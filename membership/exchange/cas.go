package exchange

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// Home has this server's own files of its CAs.
type Home interface {
	// Keys are those that this server has: of CAs, and of service accounts.
	Keys() []crypto.Signer
	// Hold writes down a key that is not used yet.
	Hold(use pki.KeyUse, key crypto.Signer) error
	// Adopt writes the bundle down and makes this server believe its CAs. Its keys are held.
	Adopt(b pki.Bundle) error
	// Tidy drops the keys that the bundles which were adopted have no use for; never one that is
	// held for a bundle to come. It fails when it could not drop all, and may be repeated.
	Tidy() error
}

// State is the state that the servers share.
type State struct {
	rollover.Envelope
	Bundle pki.Bundle `json:"bundle"`
}

// At implements rollover.State.
func (s State) At() (generation uint64, step string) {
	return s.Bundle.Generation, string(s.Bundle.Step)
}

// The formats of a State. One with an External CA has externalFormat, and one with CAs of their own
// for purposes has separateFormat: earlier versions, which would lose the fields that are new,
// take no part in that exchange.
const (
	format         = 2
	externalFormat = 3
	separateFormat = 4
)

// cas are the CAs and their keys, as a rollover.Kind.
type cas struct {
	Config
	leads atomic.Bool // this server makes the steps
}

func (c *cas) state(b pki.Bundle) State {
	s := State{rollover.Envelope{Format: format, Cluster: c.Cluster}, b}
	switch b.Form() {
	case pki.ExternalForm:
		s.Format = externalFormat
	case pki.SeparateForm:
		s.Format = separateFormat
	}
	return s
}

// own is the state by this server's bundle.
func (c *cas) own() State { return c.state(c.Trust.Bundle()) }

func (c *cas) Check(s State) error {
	_, err := s.Bundle.NeedsKeys() // which reads all that is in it
	return err
}

func (c *cas) Uses() uint64 { return c.Trust.Bundle().Generation }

// Rebuild is for servers that do not have the newer state: they would take the older one for right.
func (c *cas) Rebuild(State) (State, error) { return c.own(), nil }

// Waiting returns the nodes that the exchange waits for before its next step, each with the reason.
func (c *cas) Waiting(s State) []string {
	digests, err := s.Bundle.Digests()
	if err != nil {
		return []string{fmt.Sprintf("the CA that issues cannot be read: %v", err)}
	}
	ofCA := s.Bundle.ExchangesCA()
	members, err := c.Members()
	if err != nil {
		return []string{fmt.Sprintf("this server does not know all nodes yet: %v", err)}
	}
	var out []string
	for _, m := range members {
		why := ""
		switch {
		case !ofCA && m.Role != pki.RoleServer: // it has nothing to do with the key
		case !m.Alive && !s.Bundle.Forced:
			why = "shows no life"
		case !m.Alive:
		case m.Generation < s.Bundle.Generation:
			why = "has not taken the new keys over yet"
		case ofCA && m.Signer != digests[0]:
			why = "has certificates of another CA yet"
		}
		if why != "" {
			out = append(out, fmt.Sprintf("%s %s %s", m.Role, m.Name, why))
		}
	}
	if ofCA && s.Bundle.Step == pki.Issuing && c.Sealed != nil {
		switch sealed, err := c.Sealed(digests[0]); {
		case err != nil:
			out = append(out, "it is not known whether the data keys are sealed with the new CA's key: "+err.Error())
		case !sealed:
			out = append(out,
				"the data keys are sealed with the key of the CA before yet, which must not be dropped before that, with --force either; "+
					"if it lasts, see `barque secrets-encrypt status`: `barque secrets-encrypt rotate` drops a key without objects; delete corrupt objects, or restore a backup")
		}
	}
	if err := c.untold(s); err != nil && !s.Bundle.Forced && time.Since(s.Bundle.Since) < toldPatience {
		out = append(out, "the next CA of the front proxy: "+err.Error())
	}
	slices.Sort(out)
	return out
}

// toldPatience is how long the first step waits for extension API servers. They learn the CA by
// a write through the API, which webhooks can refuse. An exchange after a theft must not depend
// on them.
const toldPatience = 2 * time.Minute

// untold returns the reason why extension API servers do not know the next CA of the front proxy
// yet. Only the leader writes it for them, and knows that. A leader that has not taken the state
// over is waited for itself.
func (c *cas) untold(s State) error {
	if !c.leads.Load() || s.Bundle.Step != pki.Spreading || len(s.Bundle.FrontProxy) < 2 {
		return nil
	}
	return c.Told(c.Trust.PEMFor(pki.FrontProxy))
}

// Next needs the key of the CA that issues, which a server has that has taken the state over.
func (c *cas) Next(s State) (State, error) {
	if c.Uses() != s.Bundle.Generation {
		return s, ErrBehind
	}
	if err := c.untold(s); err != nil {
		c.Logger.Warn(
			"the exchange of the CA goes on without extension API servers: until they know the next CA of the front proxy, they may refuse requests", "forced", s.Bundle.Forced, "reason", err)
	}
	b, err := c.Trust.Advance(time.Now())
	return c.state(b), err
}

func (c *cas) Tidy() error {
	if err := c.Home.Tidy(); err != nil {
		return fmt.Errorf("a key that is retired is still on disk: %w", err)
	}
	return nil
}

// Fetch gets the keys that the bundle needs and this server does not have.
func (c *cas) Fetch(ctx context.Context, s State) (use func() error, err error) {
	needs, err := s.Bundle.NeedsKeys()
	if err != nil {
		return nil, err
	}
	var hold []func() error
	for _, need := range needs {
		if slices.ContainsFunc(c.Home.Keys(), func(k crypto.Signer) bool { return isOf(k, need.Digest) }) {
			continue
		}
		keyPEM, err := c.Config.Fetch(ctx, need.Digest)
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
		hold = append(hold, func() error { return c.Home.Hold(need.Use, key) })
	}
	return func() error {
		for _, write := range append(hold, func() error { return c.Home.Adopt(s.Bundle) }) {
			if err := write(); err != nil {
				return err
			}
		}
		c.Logger.Info("the cluster's CAs or keys of service accounts have changed", "generation", s.Bundle.Generation,
			"step", cmp.Or(s.Bundle.Step, "settled"), "cas", len(s.Bundle.CAs), "accountKeys",
			len(s.Bundle.AccountKeys))
		return nil
	}, nil
}

func isOf(key crypto.Signer, digest string) bool {
	is, err := pki.KeyDigest(key)
	return err == nil && is == digest
}
