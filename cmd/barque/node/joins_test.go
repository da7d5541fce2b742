package node

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// exchanging is a server in a cluster of s1 and s2, before or in an exchange of the CA.
type exchanging struct {
	t             *testing.T
	ca            *pki.Authority
	before, begun pki.Bundle
	trust         *pki.Trust
	peers         *admissions.Peers
	book          *admissions.Book
	store         *raftstore.Store
	members       []raftstore.Member
}

func newExchanging(t *testing.T, dir string) *exchanging {
	t.Helper()
	now := time.Now()
	ca, err := pki.NewAuthority("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	e := &exchanging{t: t, ca: ca, before: pki.NewBundle(ca), trust: pki.TrustOf(ca),
		store: raftstore.NewInMemory(raftstore.Options{})}
	t.Cleanup(func() { e.store.Close() })
	e.begun = e.next()
	if e.peers, err = admissions.LoadPeers(dir, e.trust, quiet()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"s1", "s2"} {
		e.members = append(e.members, raftstore.Member{Name: name, ID: name + ".x"})
	}
	e.book = &admissions.Book{Records: register.NewFolder(e.store, joinFolder), Self: "s1", Now: time.Now,
		Logger: quiet(),
		IsServer: func(name string) bool {
			return slices.ContainsFunc(e.members, func(m raftstore.Member) bool { return m.Name == name })
		},
		Unrecorded: func(context.Context) (bool, error) { return false, nil }}
	e.peers.Recorded = func(ctx context.Context) (map[string][]string, []string, error) {
		return recordedPeers(ctx, e.book, e.members)
	}
	return e
}

// next returns another bundle that begins an exchange.
func (e *exchanging) next() pki.Bundle {
	e.t.Helper()
	next, err := pki.NextAuthority("c1", time.Now())
	if err != nil {
		e.t.Fatal(err)
	}
	b, err := e.before.Begin(next, newKey(e.t).Public(), time.Now())
	if err != nil {
		e.t.Fatal(err)
	}
	return b
}

// record writes the record of a server.
func (e *exchanging) record(name, content string) {
	e.t.Helper()
	if _, err := e.store.Put(e.t.Context(), joinFolder+"server/"+name, []byte(content)); err != nil {
		e.t.Fatal(err)
	}
}

// records writes the record of a server that keeps its key.
func (e *exchanging) records(name string, key crypto.Signer) {
	e.t.Helper()
	digest, err := pki.KeyDigest(key)
	if err != nil {
		e.t.Fatal(err)
	}
	e.record(name, `{"digest":"`+digest+`","peer":["`+digest+`"],"id":"`+name+`.x"}`)
}

func (e *exchanging) shows(name, holder string, key crypto.Signer) *x509.Certificate {
	e.t.Helper()
	r := pki.Request{CommonName: name, Organization: []string{join.ServersOrganization}, Usage: pki.Client | pki.Server,
		Holder: holder}
	text, err := pki.TrustOf(e.ca).Issue(r, key.Public(), time.Now())
	if err != nil {
		e.t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		e.t.Fatal(err)
	}
	return cert
}

// begin has the server take part in the exchange.
func (e *exchanging) begin() {
	e.t.Helper()
	if err := errors.Join(e.peers.Begin(e.t.Context(), e.begun), e.trust.Set(e.begun)); err != nil {
		e.t.Fatal(err)
	}
}

// TestRecordedPeers: each member counts by its ID, not by its name, and one without a key that it
// keeps is missing.
func TestRecordedPeers(t *testing.T) {
	for what, c := range map[string]struct {
		records map[string]string // by the servers' names
		members []raftstore.Member
		keys    map[string][]string
		missing []string
		fails   bool
	}{
		"all": {
			records: map[string]string{"s1": `{"digest":"a","peer":["b"],"id":"s1.x"}`,
				"s2": `{"digest":"c","peer":["c","d"],"id":"s2.x"}`},
			keys: map[string][]string{"s1.x": {"b", "a"}, "s2.x": {"c", "d", "c"}}},
		"none": {keys: map[string][]string{}, missing: []string{"s1", "s2"}},
		"an earlier version": {records: map[string]string{"s1": `{"digest":"a"}`, "s2": `{"digest":"c","keys":["k"]}`},
			keys: map[string][]string{}, missing: []string{"s1", "s2"}},
		"a damaged record": {records: map[string]string{"s1": `{"digest":"a","peer":["b"],"id":"s1.x"}`, "s2": `{`},
			keys: map[string][]string{"s1.x": {"b", "a"}}, missing: []string{"s2"}},
		"of a machine of before with the name": {
			records: map[string]string{"s1": `{"digest":"a","peer":["b"],"id":"s1.old"}`,
				"s2": `{"digest":"c","peer":["c"],"id":"s2.x"}`},
			keys: map[string][]string{"s2.x": {"c", "c"}}, missing: []string{"s1"}},
		"of a server that is a member no more": {
			records: map[string]string{"s1": `{"digest":"a","peer":["b"],"id":"s1.x"}`,
				"s2": `{"digest":"c","peer":["c"],"id":"s2.x"}`, "s3": `{"digest":"e","peer":["e"],"id":"s3.x"}`},
			keys: map[string][]string{"s1.x": {"b", "a"}, "s2.x": {"c", "c"}}},
		"without members": {records: map[string]string{"s1": `{"digest":"a","peer":["b"],"id":"s1.x"}`},
			members: []raftstore.Member{}, fails: true},
	} {
		t.Run(what, func(t *testing.T) {
			e := newExchanging(t, t.TempDir())
			for name, content := range c.records {
				e.record(name, content)
			}
			members := e.members
			if c.members != nil {
				members = c.members
			}
			keys, missing, err := recordedPeers(t.Context(), e.book, members)
			if (err != nil) != c.fails || !maps.EqualFunc(keys, c.keys, slices.Equal) ||
				!slices.Equal(missing, c.missing) {
				t.Errorf("%v, missing %q, %v", keys, missing, err)
			}
		})
	}
	e := newExchanging(t, t.TempDir())
	e.store.Close()
	if keys, missing, err := recordedPeers(t.Context(), e.book, e.members); err == nil || keys != nil ||
		missing != nil {
		t.Errorf("of a store that is closed: %v, %q, %v", keys, missing, err)
	}
}

// unavailable is a store without a leader: reads wait for one, and fail with their context.
type unavailable struct{ register.Store }

func (unavailable) View(ctx context.Context, _ raftstore.ViewOptions) (raftstore.View, error) {
	<-ctx.Done()
	return nil, raftstore.ErrUnavailable
}

// TestConfirmExchange: only the state in the leader's store confirms an exchange, and only this
// one.
func TestConfirmExchange(t *testing.T) {
	e := newExchanging(t, t.TempDir())
	state := func(b pki.Bundle) string {
		data, err := json.Marshal(exchange.State{Bundle: b})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for what, c := range map[string]struct {
		state string
		good  bool
	}{
		"the same exchange": {state(e.begun), true},
		"another one":       {state(e.next()), false},
		"it is given up":    {state(e.before), false},
		"no state":          {"", false},
		"not JSON":          {"{", false},
		"another kind":      {`[]`, false},
		"no bundle":         {`{}`, false},
		"no CAs":            {`{"bundle":{"generation":2}}`, false},
		"CAs of nonsense":   {`{"bundle":{"generation":2,"cas":["x"]}}`, false},
	} {
		if _, err := e.store.Put(t.Context(), caKey, []byte(c.state)); err != nil {
			t.Fatal(err)
		}
		if err := confirmExchange(t.Context(), e.store, e.begun); (err == nil) != c.good {
			t.Errorf("%s: %v", what, err)
		}
		if err := confirmExchange(t.Context(), e.store, pki.Bundle{}); err == nil {
			t.Errorf("%s: it confirms a bundle without CAs", what)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := confirmExchange(ctx, unavailable{e.store}, e.begun); !errors.Is(err, raftstore.ErrUnavailable) {
		t.Errorf("without a leader: %v", err)
	}
	e.store.Close()
	if err := confirmExchange(t.Context(), e.store, e.begun); err == nil {
		t.Error("a store that is closed confirms")
	}
}

// TestCurrent: the keys that all servers share are for the recorded key of a member. In an exchange
// the key is also that of its beginning.
func TestCurrent(t *testing.T) {
	own, other := newKey(t), newKey(t)
	unsure := errors.New("it is not known")
	for what, c := range map[string]struct {
		record   string // of s2; "" is that of own
		none     bool   // s2 has no record
		may      func(context.Context) (bool, error)
		name     string // shown; "" is s2
		holder   string // shown; "" is s2.x
		key      crypto.Signer
		exchange bool
		later    crypto.Signer // the key that s2 records in the exchange
		closed   bool
		want     error // any is any other
	}{
		"a member":         {key: own},
		"with another key": {key: other, want: join.ErrNotCurrent},
		"no member":        {key: own, name: "s3", want: join.ErrNotCurrent},
		"no name":          {key: own, name: " ", want: join.ErrNotCurrent},
		"without a record": {key: own, none: true, want: join.ErrNotCurrent},
		"of an earlier version perhaps": {key: own, none: true,
			may: func(context.Context) (bool, error) { return true, nil }},
		"not known": {key: own, none: true,
			may: func(context.Context) (bool, error) { return false, unsure }, want: unsure},
		"a damaged record":          {key: own, record: "{", want: errAny},
		"a closed store":            {key: own, closed: true, want: errAny},
		"with another's ID":         {key: own, holder: "s1.x"}, // outside of an exchange the key proves it
		"in an exchange":            {key: own, exchange: true},
		"in one, with another key":  {key: other, exchange: true, want: join.ErrNotCurrent},
		"in one, with another's ID": {key: own, holder: "s1.x", exchange: true, want: join.ErrNotCurrent},
		"in one, no member": {key: own, name: "s3", holder: "s3.x", exchange: true,
			want: join.ErrNotCurrent},
		"in one, a thief has recorded": {key: other, exchange: true, later: other, want: join.ErrNotCurrent},
		"in one, the thief's victim":   {key: own, exchange: true, later: other, want: join.ErrNotCurrent},
	} {
		t.Run(what, func(t *testing.T) {
			e := newExchanging(t, t.TempDir())
			e.records("s1", newKey(t))
			switch {
			case c.record != "":
				e.record("s2", c.record)
			case !c.none:
				e.records("s2", own)
			}
			if c.may != nil {
				e.book.Unrecorded = c.may
			}
			if c.exchange {
				e.begin()
			}
			if c.later != nil {
				e.records("s2", c.later)
			}
			name, holder := "s2", "s2.x"
			if c.name != "" {
				name = c.name
			}
			if c.holder != "" {
				holder = c.holder
			}
			if c.closed {
				e.store.Close()
			}
			err := current(t.Context(), e.peers, e.book, e.members, e.shows(name, holder, c.key))
			switch {
			case errors.Is(c.want, errAny) && (err == nil || errors.Is(err, join.ErrNotCurrent)),
				!errors.Is(c.want, errAny) && !errors.Is(err, c.want):
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

var errAny = errors.New("any error that says nothing about the certificate")

// TestCurrentWithoutALeader: a server that has had no leader for a while gives none of the keys
// away in an exchange. With a leader that confirms the exchange it does again.
func TestCurrentWithoutALeader(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		e, own := newExchanging(t, dir), newKey(t)
		e.records("s1", newKey(t))
		e.records("s2", own)
		e.begin()
		led, confirms := false, false
		e.peers.Led = func() bool { return led }
		e.peers.Confirm = func(ctx context.Context, b pki.Bundle) error {
			if !confirms {
				return confirmExchange(ctx, unavailable{e.store}, b)
			}
			return confirmExchange(ctx, e.store, b)
		}
		data, err := json.Marshal(exchange.State{Bundle: e.begun})
		if err == nil {
			_, err = e.store.Put(t.Context(), caKey, data)
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.peers.Watch(ctx) }()
		cert := e.shows("s2", "s2.x", own)
		ask := func() error { return current(ctx, e.peers, e.book, e.members, cert) }
		if err := ask(); err != nil {
			t.Errorf("at first: %v", err)
		}
		for _, step := range []struct {
			what          string
			led, confirms bool
			good          bool
		}{
			{"without a leader", false, false, false},
			{"with one that is lost at once", true, false, false},
			{"with one", true, true, true},
			{"and without it again", false, false, false},
		} {
			synctest.Wait()
			led, confirms = step.led, step.confirms
			time.Sleep(time.Minute) // virtual
			synctest.Wait()
			if err := ask(); (err == nil) != step.good || errors.Is(err, join.ErrNotCurrent) {
				t.Errorf("%s: %v", step.what, err)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		e.store.Close()
	})
}
