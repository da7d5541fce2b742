package admissions

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// TestTheOverlap: while the CA is exchanged, a certificate of the one before counts with a recorded
// key only. Before and after, and by the new CA, all do.
func TestTheOverlap(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issue := func(trust *pki.Trust, cn string, groups ...string) *x509.Certificate {
		t.Helper()
		if strings.HasPrefix(cn, pki.NodeUser) && groups == nil {
			groups = []string{pki.NodesGroup}
		}
		i, err := identity.New(t.Context(),
			identity.Config{Name: "x", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
				Issue: trust.Signs(
					func() pki.Request { return pki.Request{CommonName: cn, Organization: groups, Usage: pki.Client} },
					time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		return i.Certificate().Leaf
	}
	key, err := ca.Key()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := pki.NewTrust(pki.NewBundle(ca), key)
	if err != nil {
		t.Fatal(err)
	}
	old, forged := issue(trust, "barque:admin"), issue(trust, "barque:admin")
	agent, thief, unseen := issue(trust, "system:node:a1"), issue(trust, "system:node:a1"),
		issue(trust, "system:node:a2")
	masters, both, unknown, server := issue(trust, "system:node:a2", "system:masters"),
		issue(trust, "system:node:a2", pki.NodesGroup, "system:masters"),
		issue(trust, "system:node:a9"), issue(trust, "system:node:s1")
	book, _ := newBook("s1")
	admin := old
	var unreadable error // the error of each look at the agents' keys
	book.Others = func() ([]*x509.Certificate, *x509.Certificate) {
		return []*x509.Certificate{issue(trust, "other")}, admin
	}
	o := &Overlap{Trust: trust, Book: book, Logger: slog.New(slog.DiscardHandler),
		Members: func() []string { return []string{"s1"} },
		AgentKeys: func(context.Context) (map[string][]byte, error) {
			if unreadable != nil {
				return nil, unreadable
			}
			return map[string][]byte{"a1": []byte(pki.KeyOf(agent))}, nil
		},
		IsAgent: func(name string) bool { return name == "a1" || name == "a2" || name == "s1" }}
	check := func(what string, cert *x509.Certificate, good bool) {
		t.Helper()
		o.read = time.Time{} // as some time later
		if err := o.Check(cert); (err == nil) != good {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("before the exchange", forged, true)
	next, err := pki.NextAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	account, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := trust.Bundle().Begin(next, account.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	nextKey, err := next.Key()
	if err != nil {
		t.Fatal(err)
	}
	beginning := func(what string, cert *x509.Certificate, ends bool) {
		t.Helper()
		o.read = time.Time{}
		if o.Ends(cert) != ends {
			t.Errorf("from the beginning of an exchange, %s: want its end: %v", what, ends)
		}
	}
	beginning("while a server records too few keys", forged, false)
	if err := book.Publish(t.Context(), issue(trust, "s1")); err != nil {
		t.Fatal(err)
	}
	beginning("an administrator's own", forged, true)
	beginning("the kubeconfig of a server", old, false)
	beginning("an agent's", agent, false)
	book, _ = newBook("s1")
	book.Others = func() ([]*x509.Certificate, *x509.Certificate) {
		return []*x509.Certificate{issue(trust, "other")}, admin
	}
	o.Book = book
	if err := trust.Set(bundle, key, nextKey, account); err != nil {
		t.Fatal(err)
	}
	beginning("while one is under way", forged, false)
	check("while a server records too few keys", forged, true)
	own := issue(trust, "s1")
	if err := book.Publish(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	admin = issue(trust, "barque:admin") // the server renews its kubeconfig
	if err := book.Publish(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		cert *x509.Certificate
		good bool
	}{
		"forged": {forged, false}, "a copied kubeconfig": {old, true}, "the newest kubeconfig": {admin, true},
		"the server's": {own, true}, "an agent's": {agent, true},
		"forged for an agent": {thief, false}, "of an agent that was not seen yet": {unseen, true},
		"an administrator's, forged with an agent's name": {masters, false},
		"that with the agents' group":                     {both, false},
		"forged for a node that is none":                  {unknown, false},
		"forged for a server's node":                      {server, false},
		"by the new CA":                                   {issue(pki.TrustOf(next), "ann"), true},
	} {
		check(what, c.cert, c.good)
	}
	unreadable = errors.New("the store is in quarantine")
	check("forged for an agent, while its record cannot be read", thief, false)
	check("an agent's, while its record cannot be read", agent, true)
	unreadable = nil
	if bundle, err = trust.Advance(time.Now()); err == nil {
		err = trust.Set(bundle, key, nextKey, account)
	}
	if err != nil {
		t.Fatal(err)
	}
	check("forged, when the new CA issues", forged, false)
	check("by the new CA, when it issues", issue(trust, "ann"), true)
}

// TestKeysAreMerged: a server adds the key of its kubeconfig to those in its record, whatever
// happens meanwhile, and notes that an earlier version has run here.
func TestKeysAreMerged(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, other, first, second, third := peer(t, ca, "s1"), peer(t, ca, "x"), peer(t, ca, "admin"), peer(t, ca, "admin"),
		peer(t, ca, "admin")
	book, store := newBook("s1")
	admin, former := first, 0
	book.Others = func() ([]*x509.Certificate, *x509.Certificate) { return []*x509.Certificate{other}, admin }
	book.Former = func(context.Context) error {
		former++
		return nil
	}
	want := func(admins ...*x509.Certificate) {
		t.Helper()
		var is serverKey
		if err := json.Unmarshal(store.values["server/s1"], &is); err != nil || len(is.Admins) != len(admins) ||
			len(is.Keys) != 1 {
			t.Fatalf("%s, %v", store.values["server/s1"], err)
		}
		for i, a := range admins {
			if is.Admins[i].Digest != pki.KeyOf(a) {
				t.Errorf("the key %d is another one", i)
			}
		}
	}
	if err := book.Publish(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	want(first)
	admin = second
	lost := errors.New("no leader")
	store.failOnce = lost
	if err := book.Publish(t.Context(), own); !errors.Is(err, lost) {
		t.Errorf("without a leader: %v", err)
	}
	want(first)
	// Another write of this server is faster.
	store.before = func() {
		admin = third
		if err := book.Publish(t.Context(), own); err != nil {
			t.Error(err)
		}
		admin = second
	}
	if err := book.Publish(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	want(first, third, second)
	if former != 0 {
		t.Errorf("an earlier version was noted %d times", former)
	}
	store.values["server/s1"] = []byte(`{"digest":"ab"}`)
	if ran, may, err := book.Earlier(t.Context(), []string{"s1", "s2"}); err != nil ||
		!slices.Equal(ran, []string{"s1"}) || len(may) > 0 {
		t.Errorf("ran %q, may %q, %v", ran, may, err)
	}
	if err := book.Publish(t.Context(), own); err != nil || former != 1 {
		t.Errorf("%v; an earlier version was noted %d times", err, former)
	}
	book.Unrecorded = func(context.Context) (bool, error) { return true, nil }
	if ran, may, err := book.Earlier(t.Context(), []string{"s1", "s2"}); err != nil || len(ran) > 0 ||
		!slices.Equal(may, []string{"s2"}) {
		t.Errorf("ran %q, may %q, %v", ran, may, err)
	}
}

// TestAnAnnouncedKeyCountsAtOnce: a server records the key of a kubeconfig before it writes the
// file. From then on the key counts, although the server has just looked for another one.
func TestAnAnnouncedKeyCountsAtOnce(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ca.Key()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := pki.NewTrust(pki.NewBundle(ca), key)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(cn string) *x509.Certificate {
		t.Helper()
		i, err := identity.New(t.Context(),
			identity.Config{Name: cn, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
				Issue: trust.Signs(func() pki.Request { return pki.Request{CommonName: cn, Usage: pki.Client} },
					time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		return i.Certificate().Leaf
	}
	book, _ := newBook("s1")
	peer, other, admin, forged := issue("s1"), issue("other"), issue("barque:admin"), issue("barque:admin")
	book.Others = func() ([]*x509.Certificate, *x509.Certificate) { return []*x509.Certificate{other}, admin }
	o := &Overlap{Trust: trust, Book: book, Logger: slog.New(slog.DiscardHandler),
		Members:   func() []string { return []string{"s1"} },
		AgentKeys: func(context.Context) (map[string][]byte, error) { return nil, nil },
		IsAgent:   func(string) bool { return false }}
	for range 100 {
		if err := o.Announce(t.Context(), peer); err != nil {
			t.Fatal(err)
		}
		if !o.recorded(admin) || o.recorded(forged) {
			t.Fatal("want that the announced key counts, and a forged one does not")
		}
		admin = issue("barque:admin") // the server renews its kubeconfig
	}
}
