// Package judge decides at a server which certificates count. It keeps the list of revocations in
// step with the store, lets connections of other servers be judged anew, and records the keys by
// which agents are known. Package revocation has the list and the records, and package admissions
// the judgement while the CA is exchanged.
package judge

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
)

// agentsSeen bounds the agents whose keys wait to be recorded.
const agentsSeen = 64

// Store is the interface of the store, in this server's view.
type Store interface {
	// Members returns the names of the members, by ID.
	Members() map[string]string
	// Removed returns the servers that were taken out for good, by ID.
	Removed() []revocation.Removed
	// Follow calls noted after each change of the records of revocations, until ctx ends.
	Follow(ctx context.Context, noted func()) error
	// Await waits until this server has the revision.
	Await(ctx context.Context, revision uint64) error
}

// Connections are the interface of the connections from other servers.
type Connections interface {
	// Forget lets peers be judged anew that were found to be strangers, or not.
	Forget()
	// Recheck judges all anew by the list.
	Recheck()
}

// Config of a Judge.
type Config struct {
	Self  string // this server's name
	Trust *pki.Trust
	List  *revocation.List
	Book  *revocation.Book
	Store Store
	// Connections are those of other servers.
	Connections Connections
	// Announce sends the version of the list to the other members.
	Announce func(version uint64)
	// IsAgent reports whether the name is that of a member Node of an agent, as this server knows.
	IsAgent func(name string) bool
	// Own returns this server's certificates.
	Own    func() []*x509.Certificate
	Logger *slog.Logger
}

// Judge is a server's.
type Judge struct {
	Config
	// Overlap judges certificates while the CA is exchanged. It is set before Check is called.
	Overlap *admissions.Overlap

	agents chan *x509.Certificate // seen at the API; holds some
	seen   sync.Map               // by name, the digest of an agent's key that is recorded
	judged uint64                 // the generation of CAs at the last look at the list
}

// New returns a Judge. Its owner calls Run.
func New(c Config) *Judge { return &Judge{Config: c, agents: make(chan *x509.Certificate, agentsSeen)} }

// Run follows the revocations in the store until ctx ends.
func (j *Judge) Run(ctx context.Context) error {
	records := make(chan struct{}, 1)
	noted := func() {
		select {
		case records <- struct{}{}:
		default:
		}
	}
	return lifecycle.All(ctx, func(ctx context.Context) error { return j.Store.Follow(ctx, noted) },
		func(ctx context.Context) error { return j.follow(ctx, records) }, j.recordAgents)
}

// LastEnd is the end of the last CA that is believed.
func LastEnd(trust *pki.Trust) (end time.Time) {
	for _, ca := range trust.EveryCA() {
		if is := ca.Certificate().NotAfter; is.After(end) {
			end = is
		}
	}
	return end
}

// lookAtMembers is the pause between two looks at the members. Nothing says that one was removed,
// or that a peer is found to be a stranger by now.
const lookAtMembers = time.Second

func (j *Judge) follow(ctx context.Context, records <-chan struct{}) error {
	ticker := time.NewTicker(lookAtMembers)
	defer ticker.Stop()
	var seen string
	for {
		trust := j.Trust.Changed()
		removed, members := j.Store.Removed(), j.Store.Members()
		if now := fmt.Sprint(removed, members); now != seen {
			seen = now
			if err := j.compile(ctx, removed); err != nil {
				j.Logger.Warn("the list of revoked certificates may be an old one", "err", err)
				seen = ""
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			j.Connections.Forget()
		case <-records:
			seen = ""
		case <-trust:
			seen = ""
		}
	}
}

func (j *Judge) compile(ctx context.Context, removed []revocation.Removed) error {
	err := j.Book.Compile(ctx, removed, j.isServer)
	j.forgetKeys(ctx)
	j.Connections.Recheck()
	if trust := j.Trust.Bundle(); trust.ExchangesCA() || trust.Generation != j.judged {
		j.judged = trust.Generation
		j.List.Notify() // a CA is gone, or other keys are known
	}
	j.Announce(j.List.Entries().Version)
	return err
}

// isServer reports whether a server of that name is a member of the store.
func (j *Judge) isServer(name string) bool {
	for _, member := range j.Store.Members() {
		if member == name {
			return true
		}
	}
	return false
}

// forgetKeys lets the keys of agents be recorded again that are recorded no more.
func (j *Judge) forgetKeys(ctx context.Context) {
	keys, err := j.Book.Keys(ctx)
	if err != nil {
		return // the next change comes
	}
	j.seen.Range(func(name, key any) bool {
		if is, ok := keys[name.(string)]; !ok || string(is) != key {
			j.seen.Delete(name)
		}
		return true
	})
}

// Admit makes a joining agent's earlier certificates void, and waits until this server can date
// newer ones.
func (j *Judge) Admit(ctx context.Context, name string, key *x509.CertificateRequest, gossipKey []byte) error {
	j.seen.Delete(name)
	revision, err := j.Book.Admit(ctx, name, pki.DigestOfKey(key.RawSubjectPublicKeyInfo), gossipKey)
	if err != nil {
		return fmt.Errorf("note that agent %q joins: %w", name, err)
	}
	return j.Store.Await(ctx, revision)
}

// Check returns the reason why a genuine client certificate counts no more at the API, or nil.
func (j *Judge) Check(leaf *x509.Certificate) error {
	if err := j.List.Check(leaf); err != nil {
		return err
	}
	if err := j.Overlap.Check(leaf); err != nil {
		return err
	}
	j.noteAgent(leaf)
	return nil
}

// noteAgent lets the key of an agent be recorded that has joined by an earlier version, and so has
// no recorded one. It does not wait.
func (j *Judge) noteAgent(leaf *x509.Certificate) {
	name, node := admissions.AgentOf(leaf)
	proves := node && j.List.Proves(name, pki.RevisionOf(leaf))
	if !node || !proves && !j.IsAgent(name) {
		return
	}
	if key, ok := j.seen.Load(name); !proves && ok && key == pki.KeyOf(leaf) {
		return
	}
	select {
	case j.agents <- leaf:
	default: // another request of it will come
	}
}

// recordAgents records keys of agents, until ctx ends.
func (j *Judge) recordAgents(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case leaf := <-j.agents:
			name := strings.TrimPrefix(leaf.Subject.CommonName, pki.NodeUser)
			mixed, err := j.Book.Mixed(ctx)
			if err == nil && j.List.Proves(name, pki.RevisionOf(leaf)) {
				err = j.Book.Prove(ctx, name, pki.RevisionOf(leaf))
			}
			if err == nil && !mixed {
				if err = j.checkKey(ctx, name, leaf); err == nil && !j.Trust.Bundle().ExchangesCA() {
					j.seen.Store(name, pki.KeyOf(leaf))
				}
			}
			if err != nil && ctx.Err() == nil {
				j.Logger.Debug("the key of an agent is not recorded", "agent", name, "err", err)
			}
		}
	}
}

// OwnKey refuses a certificate with another key than the agent's. With a server of an earlier
// version the recorded key may be an old one.
func (j *Judge) OwnKey(ctx context.Context, name string, leaf *x509.Certificate) error {
	if mixed, err := j.Book.Mixed(ctx); err != nil || mixed {
		return err
	}
	return j.checkKey(ctx, name, leaf)
}

// checkKey is OwnKey while the records are judged by. While the CA is exchanged no key is learned:
// a thief of its key would be first.
func (j *Judge) checkKey(ctx context.Context, name string, leaf *x509.Certificate) error {
	return j.Book.CheckKey(ctx, name, pki.KeyOf(leaf), !j.Trust.Bundle().ExchangesCA())
}

// Needed returns the reason why an operator's order would shut out a present member, or nil. Of a
// serial number alone only this server's own certificates are known.
func (j *Judge) Needed(o revocation.Order) error {
	if slices.ContainsFunc(j.Own(), func(c *x509.Certificate) bool { return revocation.SerialOf(c) == o.Serial }) {
		return fmt.Errorf("it is a certificate of server %s", j.Self)
	}
	if name, is := j.Store.Members()[o.Holder]; is {
		return fmt.Errorf("it is a certificate of server %s, which is a member", name)
	}
	name := strings.TrimPrefix(o.Name, pki.NodeUser)
	if j.isServer(name) || name != o.Name && j.IsAgent(name) {
		return fmt.Errorf("it is a certificate of %s, which is a member", name)
	}
	return nil
}
