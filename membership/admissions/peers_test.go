package admissions

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// port is a server's port for other servers, with its knowledge of these.
type port struct {
	*Peers
	t        *testing.T
	trust    *pki.Trust
	keys     []crypto.Signer // of the CAs
	dir      string
	recorded map[string][]string
	all      bool
	fails    error
	said     log
	mu       sync.Mutex // of the fields that a test changes while Retry or Watch runs
}

// log is a log that is read while it is written.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// change changes the state of Retry and Watch, and look reads it.
func (p *port) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func look[T any](p *port, of *T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	return *of
}

func newPort(t *testing.T) *port {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ca.Key()
	if err != nil {
		t.Fatal(err)
	}
	p := &port{t: t, keys: []crypto.Signer{key}, dir: t.TempDir(), recorded: map[string][]string{}, all: true}
	if p.trust, err = pki.NewTrust(pki.NewBundle(ca), key); err != nil {
		t.Fatal(err)
	}
	p.restart()
	return p
}

// restart loads the file on disk.
func (p *port) restart() {
	p.t.Helper()
	peers, err := LoadPeers(p.dir, p.trust, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	peers.Recorded = func(context.Context) (map[string][]string, []string, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.all {
			return nil, []string{"s3"}, p.fails
		}
		return p.recorded, nil, p.fails
	}
	peers.Logger = slog.New(slog.NewTextHandler(&p.said, nil))
	p.Peers = peers
}

// begin returns the bundle that begins an exchange.
func (p *port) begin() pki.Bundle {
	p.t.Helper()
	next, err := pki.NextAuthority("c1", time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	account, err := pki.GenerateKey()
	if err != nil {
		p.t.Fatal(err)
	}
	key, err := next.Key()
	if err != nil {
		p.t.Fatal(err)
	}
	b, err := p.trust.Bundle().Begin(next, account.Public(), time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	p.keys = append(p.keys, key, account)
	return b
}

// adopt believes a bundle, as a server does.
func (p *port) adopt(b pki.Bundle) {
	p.t.Helper()
	if err := p.Begin(p.t.Context(), b); err != nil {
		p.t.Fatal(err)
	}
	if err := p.trust.Set(b, p.keys...); err != nil {
		p.t.Fatal(err)
	}
}

// shows is a certificate of a server, and the one that the next CA adds to it.
func (p *port) shows(
	name string, key crypto.Signer, vouched bool,
) (leaf *x509.Certificate, others []*x509.Certificate) {
	p.t.Helper()
	r := pki.Request{CommonName: name, Organization: []string{join.ServersOrganization}, Usage: pki.Client | pki.Server,
		Holder: name + ".x"}
	text, err := p.trust.IssueFor(pki.Peers, r, key.Public(), time.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	leaf = parsed(p.t, text)
	if vouched {
		if text, err = p.trust.Vouch(pki.Peers, r, key.Public(), time.Now()); err != nil {
			p.t.Fatal(err)
		}
		others = append(others, parsed(p.t, text))
	}
	return leaf, others
}

func parsed(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (p *port) key(t *testing.T) (key crypto.Signer, digest string) {
	t.Helper()
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	if digest, err = pki.KeyDigest(key); err != nil {
		t.Fatal(err)
	}
	return key, digest
}

func (p *port) check(what, name string, key crypto.Signer, vouched, good bool) {
	p.t.Helper()
	err := p.Check(p.shows(name, key, vouched))
	if (err == nil) != good {
		p.t.Errorf("%s: %v", what, err)
	}
	// A member in that place gets a certificate in a moment, so its calls are not refused for good.
	if reason, ok := err.(interface{ Passing() bool }); err != nil && (!ok || !reason.Passing()) {
		p.t.Errorf("%s: the reason does not pass: %v", what, err)
	}
}

// TestPeersInAnExchange: from its beginning a thief of the old CA's key passes for no server. Each
// server is believed that takes part, by whatever key, and each that was off, by its recorded one.
// It holds without the store, after a restart, and until the end.
func TestPeersInAnExchange(t *testing.T) {
	p := newPort(t)
	s2, s2s := p.key(t)
	s2next, s2nexts := p.key(t)
	thief, _ := p.key(t)
	unheld := pki.Request{CommonName: "s2", Organization: []string{join.ServersOrganization},
		Usage: pki.Client | pki.Server}
	p.recorded["s2.x"] = []string{s2s, s2nexts}
	p.check("before, with any key", "s2", thief, false, true)
	p.adopt(p.begin())
	look := func(step string) {
		t.Helper()
		p.check(step+": forged", "s2", thief, false, false)
		p.check(step+": forged for a server that there is not", "s9", thief, false, false)
		p.check(step+": the recorded key, by another name", "s3", s2, false, false)
		p.check(step+": its recorded key", "s2", s2, false, true)
		p.check(step+": the one that it was about to use", "s2", s2next, false, true)
		text, err := p.trust.IssueFor(pki.Peers, unheld, s2.Public(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Check(parsed(t, text), nil); err == nil {
			t.Errorf("%s: a certificate that names no server counts", step)
		}
	}
	look("spreading")
	any, _ := p.key(t)
	p.check("one that takes part, with a new key", "s2", any, true, true)
	p.check("one that joined meanwhile", "s4", any, true, true)
	// No quorum, and nothing of the store: the file on disk suffices.
	p.all, p.recorded = false, nil
	p.restart()
	look("after a restart")
	p.check("one that takes part, after a restart", "s2", any, true, true)
	old, err := pki.NewTrust(p.trust.Bundle(), p.keys...)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.trust.Advance(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	issuing, is := p.trust, p.Peers
	p.adopt(b)
	p.check("by the new CA", "s4", any, false, true)
	p.trust = old // the issuer of these certificates is a step behind
	p.check("that is a step behind", "s2", any, true, true)
	p.check("forged, when the new CA issues", "s2", thief, false, false)
	p.check("with its recorded key, when the new CA issues", "s2", s2, false, true)
	if p.trust = issuing; is != p.Peers {
		t.Fatal("these are other peers")
	}
	if b, err = p.trust.Advance(time.Now()); err != nil {
		t.Fatal(err)
	}
	p.adopt(b)
	p.check("after the end", "s4", any, false, true)
	// The next exchange is another one.
	s4, s4s := p.key(t)
	p.all, p.recorded = true, map[string][]string{"s4.x": {s4s}}
	p.adopt(p.begin())
	p.check("a key of the exchange before", "s2", s2, false, false)
	p.check("a key of this exchange", "s4", s4, false, true)
	if b, err = p.trust.Bundle().Undo(); err != nil {
		t.Fatal(err)
	}
	p.adopt(b)
	p.check("given up, with any key", "s2", thief, false, true)
}

// TestPeersOfEarlierVersions: a server of an earlier version has another key after each start.
// Nothing is judged while one is a member, and all is from when none is.
func TestPeersOfEarlierVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t)
		p.all = false
		any, _ := p.key(t)
		s2, s2s := p.key(t)
		p.adopt(p.begin())
		p.check("with a server of an earlier version", "s2", any, false, true)
		ctx, stop := context.WithCancel(t.Context())
		lagging, rechecked := true, 0
		p.Changed = func() { p.change(func() { rechecked++ }) }
		running := make(chan error, 1)
		go func() {
			running <- p.Retry(ctx, func(context.Context) error {
				if look(p, &lagging) {
					return errors.New("no leader")
				}
				return nil
			})
		}()
		time.Sleep(time.Minute)
		p.check("after a while", "s2", any, false, true)
		said := p.said.String()
		if !strings.Contains(said, "s3") {
			t.Errorf("it names no server: %s", said)
		}
		time.Sleep(warnAgain)
		if p.said.String() == said {
			t.Error("it is not said again")
		}
		p.change(func() { p.all, p.recorded = true, map[string][]string{"s2.x": {s2s}} })
		time.Sleep(time.Minute)
		p.check("while this server may not know the newest records", "s2", any, false, true)
		p.change(func() { lagging = false })
		time.Sleep(time.Minute)
		p.check("when all servers are of this version, forged", "s2", any, false, false)
		p.check("its recorded key", "s2", s2, false, true)
		if n := look(p, &rechecked); n != 1 {
			t.Errorf("connections were judged anew %d times", n)
		}
		stop()
		if err := <-running; err != nil {
			t.Error(err)
		}
	})
}

// TestAnExchangeThatIsGivenUpMeanwhile: s3 takes part in an exchange, and is off while it is given
// up. The others have no voucher and other keys then. s3 learns of it: without a leader that it
// believes, it believes them before long. It judges again when a leader confirms the exchange.
func TestAnExchangeThatIsGivenUpMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPort(t)
		_, s2s := p.key(t)
		s2new, _ := p.key(t)
		p.recorded["s2.x"] = []string{s2s}
		settled, begun := p.trust.Bundle(), p.begin()
		p.adopt(begun)
		p.restart()
		led, rechecked, confirms := true, 0, errors.New("the store has no exchange, or another one")
		p.Led = func() bool { return look(p, &led) }
		p.Confirm = func(context.Context, pki.Bundle) error { return look(p, &confirms) }
		p.Changed = func() { p.change(func() { rechecked++ }) }
		ctx, stop := context.WithCancel(t.Context())
		running := make(chan error, 1)
		go func() { running <- p.Watch(ctx) }()
		time.Sleep(time.Hour)
		p.check("with a leader", "s2", s2new, false, false)
		cert, _ := p.shows("s2", s2new, false)
		p.change(func() { led = false })
		time.Sleep(leaderless / 2)
		p.check("in an election", "s2", s2new, false, false)
		p.change(func() { led = true })
		time.Sleep(leaderless)
		p.change(func() { led = false })
		time.Sleep(leaderless / 2)
		p.check("in another election", "s2", s2new, false, false)
		time.Sleep(leaderless)
		p.check("s2 after the end, as s3 has no leader", "s2", s2new, false, true)
		if err := p.Asks("s2.x", cert); err == nil || errors.Is(err, join.ErrNotCurrent) {
			t.Errorf("without a leader it gives keys away: %v", err)
		}
		if _, err := p.Grant(); err == nil {
			t.Error("without a leader it lets servers join")
		}
		p.change(func() { led = true })
		time.Sleep(time.Hour)
		p.check("until s3 knows by its leader that the exchange goes on", "s2", s2new, false, true)
		p.change(func() { confirms = nil })
		time.Sleep(time.Minute)
		p.check("the exchange goes on", "s2", s2new, false, false)
		if n := look(p, &rechecked); n != 1 {
			t.Errorf("connections were judged anew %d times", n)
		}
		p.change(func() { led = false })
		time.Sleep(2 * leaderless)
		p.check("without a leader again", "s2", s2new, false, true)
		// The store shows s3 that another exchange has begun.
		settled.Generation = begun.Generation + 1
		if err := p.trust.Set(settled, p.keys...); err != nil {
			t.Fatal(err)
		}
		p.adopt(p.begin())
		p.check("in the next exchange, forged", "s2", s2new, false, false)
		stop()
		if err := <-running; err != nil {
			t.Error(err)
		}
	})
}

// TestAServerThatJoinsInAnExchange has the file of the server that admits it, in place of one that
// it had before: it judges from its first connection on.
func TestAServerThatJoinsInAnExchange(t *testing.T) {
	p := newPort(t)
	if granted, err := p.Grant(); granted != nil || err != nil {
		t.Errorf("without an exchange: %s, %v", granted, err)
	}
	s2, s2s := p.key(t)
	thief, _ := p.key(t)
	p.recorded["s2.x"] = []string{s2s}
	p.adopt(p.begin())
	granted, err := p.Grant()
	if err != nil {
		t.Fatal(err)
	}
	p.dir = t.TempDir()
	if err := os.WriteFile(PeersPath(p.dir), []byte(`{"format":1,"next":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := TakePeers(p.dir, granted); err != nil {
		t.Fatal(err)
	}
	p.restart()
	p.check("forged", "s2", thief, false, false)
	p.check("a server that was off", "s2", s2, false, true)
	p.check("one that takes part", "s9", thief, true, true)
	if err := errors.Join(TakePeers(p.dir, nil), TakePeers(p.dir, nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(PeersPath(p.dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of before: %v", err)
	}
}

// TestAThiefThatRecordsAKey in an exchange, for a member of before, gets none of the keys that all
// servers share. The member does, and one that joined meanwhile.
func TestAThiefThatRecordsAKey(t *testing.T) {
	p := newPort(t)
	s2, s2s := p.key(t)
	thief, _ := p.key(t)
	p.recorded["s2.x"] = []string{s2s}
	asks := func(id string, key crypto.Signer) error {
		cert, _ := p.shows("s2", key, false)
		return p.Asks(id, cert)
	}
	if err := asks("s2.x", thief); err != nil {
		t.Errorf("without an exchange: %v", err)
	}
	b := p.begin()
	p.adopt(b)
	if err := asks("s2.x", s2); err != nil {
		t.Errorf("the member: %v", err)
	}
	for what, id := range map[string]string{"another key": "s2.x", "an ID that is not the member's": "s2.y"} {
		if err := asks(id, thief); !errors.Is(err, join.ErrNotCurrent) {
			t.Errorf("%s: %v", what, err)
		}
	}
	cert, _ := p.shows("s9", thief, false)
	if err := p.Asks("s9.x", cert); err != nil {
		t.Errorf("one that joined meanwhile, whose key is looked up in the store: %v", err)
	}
}

// TestTheFileOfPeers: without it, or with a damaged one, a server is judged by nothing, so that the
// others reach this one. Keys that cannot be written down begin no exchange here.
func TestTheFileOfPeers(t *testing.T) {
	p := newPort(t)
	any, _ := p.key(t)
	p.recorded["s2.x"] = []string{"ab"}
	b := p.begin()
	p.fails = errors.New("the store is closed")
	if err := p.Begin(t.Context(), b); !errors.Is(err, p.fails) {
		t.Errorf("without the store: %v", err)
	}
	p.fails = nil
	path := p.Path
	p.Path = filepath.Join(p.dir, "a file", "x")
	if err := os.WriteFile(filepath.Dir(p.Path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Begin(t.Context(), b); err == nil {
		t.Error("what is not on disk begins an exchange")
	}
	p.Path = path
	p.adopt(b)
	p.check("forged", "s2", any, false, false)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for _, content := range []string{"", "{", `{"format":99}`, "gone"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if content == "gone" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		p.restart()
		p.check("with the file "+content, "s2", any, false, true)
	}
	if err := p.Begin(t.Context(), p.trust.Bundle()); err != nil {
		t.Fatal(err)
	}
	p.check("forged, with a new file", "s2", any, false, false)
}

// TestKeptKeys: a server records the keys that it comes back with, and its ID. Both keys count
// where the keys are given that all servers share.
func TestKeptKeys(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	book, store := newBook("s1")
	own, next := peer(t, ca, "s1"), peer(t, ca, "s1")
	kept := []string{pki.KeyOf(own), pki.KeyOf(next)}
	book.Kept = func() []string { return kept }
	if err := book.Publish(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	for what, cert := range map[string]*x509.Certificate{"the key in use": own, "the next one": next} {
		if err := book.Current(t.Context(), cert); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if keys, err := book.PeerKeys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("of a certificate that names no server: %v, %v", keys, err)
	}
	store.values["server/s1"] = []byte(`{"digest":"a","peer":["a","b"],"id":"s1.x"}`)
	store.values["server/s2"] = []byte(`{"digest":"c","keys":["d"]}`) // of an earlier version
	keys, err := book.PeerKeys(t.Context())
	if err != nil || len(keys) != 1 || !slices.Contains(keys["s1.x"], "a") || !slices.Contains(keys["s1.x"], "b") {
		t.Errorf("%v, %v", keys, err)
	}
	if kept = nil; book.Publish(t.Context(), own) != nil || string(store.values["server/s1"]) == "" {
		t.Error("without keys on disk it has no record")
	}
	if keys, err := book.PeerKeys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("of a key that is in memory only: %v, %v", keys, err)
	}
}

// TestForwardedRecords: no server writes down the key of another one.
func TestForwardedRecords(t *testing.T) {
	for key, good := range map[string]bool{"/join/server/s1": true, "/join/server/s2": false, "/join/server/": false,
		"/join/server/s1/x": false,
		"/join/joined/a1":   true, "/join/token/x": true, "/registry/pods/x": true} {
		for _, keys := range [][]string{{key}, {"/registry/x", key}} {
			if err := Forwarded("s1", "/join/", slices.Values(keys)); (err == nil) != good {
				t.Errorf("%q: %v", keys, err)
			}
		}
	}
}
