package credentials

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// restarted is the server of a data directory, as after another start.
func restarted(t *testing.T, dir string) *Server {
	t.Helper()
	ids, err := NewServer(t.Context(),
		ServerConfig{Name: "s1", Address: netip.MustParseAddr("127.0.0.1"), APIPort: 6443, DataDir: dir,
			Names: []string{"localhost"}, ProxyName: "front-proxy", Lifetime: pki.LeafLifetime,
			Record: readRecord(t, filepath.Join(dir, "record.json")), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// keyOfPeer is the digest of the key in the certificate for other servers.
func keyOfPeer(ids *Server) string { return pki.KeyOf(ids.Peer.Certificate().Leaf) }

// TestAServerComesBackWithItsRecordedKey: the key for other servers is the same after a restart. A
// renewal brings another one, which is recorded before it is used. Where that fails, the key stays.
func TestAServerComesBackWithItsRecordedKey(t *testing.T) {
	ids, dir, _ := newServer(t)
	file := filepath.Join(Dir(dir), PeerKeyFile)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	first := keyOfPeer(ids)
	keeps := func(what string, ids *Server, want string) {
		t.Helper()
		if got := ids.Certificates().KeptKey; (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: the key was kept because %q, want %q", what, got, want)
		}
	}
	same := func(what string, ids *Server, want string) {
		t.Helper()
		if got := keyOfPeer(ids); got != want {
			t.Errorf("%s: another key", what)
		}
		if kept := ids.PeerKeys(); len(kept) == 0 || kept[0] != want {
			t.Errorf("%s: it keeps %q", what, kept)
		}
	}
	renew := func(ids *Server) {
		t.Helper()
		if err := ids.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	same("after a restart", restarted(t, dir), first)
	renew(ids)
	same("renewed before the records are open", ids, first)
	var recorded []string
	var fails error
	var crash *Server
	ids.RecordKeysBy(func(context.Context) error {
		recorded = ids.PeerKeys()
		crash = restarted(t, dir)
		return fails
	})
	renew(ids)
	if len(recorded) != 2 || recorded[0] != first || recorded[1] != keyOfPeer(ids) || recorded[1] == first {
		t.Errorf("recorded are %q, and it uses %s after %s", recorded, keyOfPeer(ids), first)
	}
	keeps("with a new key", ids, "")
	same("after a crash, before the new key is used", crash, first)
	second := keyOfPeer(ids)
	same("after a restart with the new key", restarted(t, dir), second)
	fails = errors.New("no quorum, or an exchange has begun")
	renew(ids)
	same("renewed with a key that is not recorded", ids, second)
	keeps("renewed with a key that is not recorded", ids, "no quorum")
	same("after a restart", restarted(t, dir), second)
	if err := ids.RenewAtStart(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("renewed at a start", ids, second)
	if err := errors.Join(DropPeerKey(dir), DropPeerKey(dir)); err != nil {
		t.Fatal(err)
	}
	if keyOfPeer(restarted(t, dir)) == second {
		t.Error("a server that has joined again has the key of before")
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := loadPeerKey(dir); err == nil {
		t.Error("a damaged key counts")
	}
}

// TestAKeyThatCannotBeKept: on a full disk a server starts and renews its certificates. It does not
// record a key that it would not come back with.
func TestAKeyThatCannotBeKept(t *testing.T) {
	ids, dir, _ := newServer(t)
	file := filepath.Join(Dir(dir), PeerKeyFile)
	first := keyOfPeer(ids)
	ids.RecordKeysBy(func(context.Context) error {
		t.Error("a key is recorded that is not on disk")
		return nil
	})
	ids.peerKey.path = filepath.Join(file, "x") // below a file
	if err := ids.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept := ids.PeerKeys(); keyOfPeer(ids) != first || !slices.Equal(kept, []string{first}) {
		t.Errorf("it uses %s, and keeps %q", keyOfPeer(ids), kept)
	}
	k := &peerKey{path: ids.peerKey.path, keys: ids.peerKey.keys}
	if err := k.set(k.keys...); err == nil {
		t.Fatal("it is written")
	}
	if kept, err := k.digests(); err != nil || len(kept) != 0 {
		t.Errorf("it keeps %q, %v", kept, err)
	}
}

// TestInAnExchangeTheNextCAVouches: a server that takes part sends along what the next CA has
// signed. It needs nobody for that, also after a restart.
func TestInAnExchangeTheNextCAVouches(t *testing.T) {
	ids, dir, _ := newServer(t)
	first := keyOfPeer(ids)
	fails := errors.New("no quorum")
	ids.RecordKeysBy(func(context.Context) error { return fails })
	good := func(what string, ids *Server, want bool) {
		t.Helper()
		shown := ids.Peer.Certificate()
		others := make([]*x509.Certificate, 0, len(shown.Certificate))
		for _, der := range shown.Certificate[1:] {
			other, err := x509.ParseCertificate(der)
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, other)
		}
		if got := ids.Trust.Vouched(pki.Peers, shown.Leaf, others, time.Now()); got != want {
			t.Errorf("%s: vouched for: %t", what, got)
		}
	}
	_, b := nextCA(t, ids.Home)
	if err := ids.Home.Adopt(b); err != nil {
		t.Fatal(err)
	}
	good("before the renewal", ids, false)
	if err := ids.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	good("it takes part, with the key of before", ids, true)
	if keyOfPeer(ids) != first {
		t.Error(
			"a key is used that is not recorded: if the exchange is given up, and another one begins, nobody knows it")
	}
	if fails = nil; ids.Renew(t.Context()) != nil || keyOfPeer(ids) == first {
		t.Error("with a quorum it has the key of before")
	}
	good("it takes part, with a new key", ids, true)
	good("after a restart", restarted(t, dir), true)
	issuing, err := ids.Trust.Advance(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := ids.Home.Adopt(issuing); err != nil {
		t.Fatal(err)
	}
	good("a step behind", ids, true)
	if err := ids.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	good("by the new CA", ids, true)
}

// TestNoNewKeyWithoutAVoucher: in an exchange others know a new key by the next CA's word alone. A
// server for which it does not vouch keeps the key that it has recorded.
func TestNoNewKeyWithoutAVoucher(t *testing.T) {
	ids, _, _ := newServer(t)
	first := keyOfPeer(ids)
	ids.RecordKeysBy(func(context.Context) error { return nil })
	_, b := nextCA(t, ids.Home)
	if err := ids.Trust.Set(b, ids.Home.Keys()[:1]...); err != nil { // without the next CA's key
		t.Fatal(err)
	}
	if err := ids.Renew(t.Context()); err == nil && keyOfPeer(ids) != first {
		t.Error("it has a key that nobody knows")
	}
	if got := ids.Certificates().KeptKey; !strings.Contains(got, "does not vouch") {
		t.Errorf("the key was kept because %q", got)
	}
}
