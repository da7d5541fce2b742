package credentials

import (
	"crypto/ed25519"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// newAgent is an agent of a new cluster.
func newAgent(t *testing.T) *Agent {
	t.Helper()
	dir, addr := t.TempDir(), netip.MustParseAddr("127.0.0.1")
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	gossip, err := GossipKeyOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.LoadOrCreateKey(filepath.Join(Dir(dir), "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	issue := func(r pki.Request) []byte {
		cert, err := ca.Issue(r, key.Public(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	credential, err := ca.SignCredential(
		pki.Credential{Name: "a1", Role: pki.RoleAgent, Public: gossip.Public().(ed25519.PublicKey),
			NotAfter: time.Now().Add(pki.LeafLifetime)})
	if err != nil {
		t.Fatal(err)
	}
	r := &diskRecord{path: filepath.Join(dir, "record.json")}
	err = SaveCertificates(dir,
		join.Certificates{Client: issue(join.NodeClient("a1")), Serving: issue(join.NodeServing("a1", addr)),
			Credential: credential})
	if err := errors.Join(err, r.Believe(pki.NewBundle(ca))); err != nil {
		t.Fatal(err)
	}
	a, err := LoadAgent(AgentConfig{Address: addr, DataDir: dir, Record: r, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// An agent that has believed new CAs and then cannot write its certificates down, as on a full
// disk, asks for them again: the exchange of the CA waits for it.
func TestAnAgentThatCannotWriteItsCertificatesAsksAgain(t *testing.T) {
	a := newAgent(t)
	next, err := pki.NextAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	account, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := a.Trust.Bundle().Begin(next, account.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	proof := a.GossipProof()
	renewed := join.Certificates{CA: bundle, Credential: proof.Credential,
		Client: pki.ChainPEM(a.Client.Certificate()), Serving: pki.ChainPEM(a.Serving.Certificate())}
	if why := a.wanted(); why != "" {
		t.Errorf("before: %s", why)
	}
	blocked := filepath.Join(Dir(a.config.DataDir), servingFile)
	if err := errors.Join(os.Remove(blocked), os.MkdirAll(filepath.Join(blocked, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := a.use(renewed); err == nil {
		t.Fatal("a certificate is written where a directory is")
	}
	if why, told := a.wanted(), a.GossipProof().Trust; why == "" || told != proof.Trust {
		t.Errorf("new certificates are wanted because %q, and gossip is told generation %d", why, told)
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	if err := a.use(renewed); err != nil {
		t.Fatal(err)
	}
	if why, told := a.wanted(), a.GossipProof().Trust; why != "" || told != bundle.Generation {
		t.Errorf("afterwards they are wanted because %q, and gossip is told generation %d", why, told)
	}
}
