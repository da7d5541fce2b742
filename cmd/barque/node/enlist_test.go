package node

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// host serves the joining protocol of a cluster as its only server does.
type host struct {
	ca    *pki.Authority
	token pki.Token
	keys  func() (map[string][]byte, error)
	addr  netip.AddrPort
	taken error // why a name is
}

func newHost(t *testing.T) *host {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now().Add(-400*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{ca: ca}
	if h.token, err = pki.NewToken(ca.Digest()); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(join.NewHandler(join.Config{
		Authority:    ca,
		CheckToken:   func(context.Context, pki.Token, string) error { return nil },
		UseToken:     func(context.Context, pki.Token, string) error { return nil },
		AddressTaken: func(string, netip.Addr) error { return nil },
		NameTaken:    func(string) error { return h.taken },
		Replace:      func(context.Context, string) error { h.taken = nil; return nil },
		Cluster: func() join.Cluster {
			return join.Cluster{ID: "c1", CA: ca.PEM(), Servers: []join.Server{{Name: "s1", API: h.addr}}}
		},
		Keys:   func() (map[string][]byte, error) { return h.keys() },
		Logger: quiet(), Now: time.Now,
	}))
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	serving, err := pki.NewIdentity(t.Context(), pki.IdentityConfig{Name: "s1", Key: key, Now: time.Now, Logger: quiet(), Issue: ca.Issuer(func() pki.Request {
		return pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Server, Names: []string{"127.0.0.1"}}
	}, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{*serving.Certificate()}, ClientAuth: tls.RequestClientCert}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	h.addr = server.Listener.Addr().(*net.TCPAddr).AddrPort()
	return h
}

// A server that was killed while it asked to be let in must never begin a cluster of its own.
func TestAJoinerThatWasKilledDoesNotBeginACluster(t *testing.T) {
	h := newHost(t)
	o := options(t, "s2")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	h.keys = func() (map[string][]byte, error) { panic("the joiner's connection breaks") }
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil {
		t.Fatal("joined without an answer")
	}
	alone := *o
	alone.Join, alone.Token = "", ""
	if r, err := enlistServer(t.Context(), &alone, quiet()); err == nil || !strings.Contains(err.Error(), o.Join) {
		t.Fatalf("got %+v, %v", r, err)
	}
	h.keys = func() (map[string][]byte, error) { return nil, nil }
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil || r.Phase != phaseJoining || r.Cluster.ID != "c1" {
		t.Fatalf("the second try: %+v, %v", r, err)
	}
	if r, err = enlistServer(t.Context(), &alone, quiet()); err != nil || r.Phase != phaseJoining {
		t.Fatalf("a restart goes on without a token: %+v, %v", r, err)
	}
}

// An agent that was off while its certificate came near its end gets new ones when it starts.
func TestAnAgentThatStartsLateRenews(t *testing.T) {
	h := newHost(t)
	o := options(t, "a1")
	gossip, err := gossipKeyOf(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.LoadOrCreateKey(filepath.Join(pkiDir(o.DataDir), "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	longAgo := time.Now().Add(-300 * 24 * time.Hour)
	issue := func(r pki.Request) []byte {
		cert, err := h.ca.Issue(r, key.Public(), longAgo)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	ends := longAgo.Add(pki.LeafLifetime)
	credential, err := h.ca.SignCredential(pki.Credential{Name: "a1", Role: roleAgent, Public: gossip.Public().(ed25519.PublicKey), NotAfter: ends})
	if err != nil {
		t.Fatal(err)
	}
	if err := saveCertificates(o.DataDir, join.Certificates{Client: issue(join.NodeClient("a1")), Serving: issue(join.NodeServing("a1", o.addr())), Credential: credential}); err != nil {
		t.Fatal(err)
	}
	if err := h.ca.Save(pkiDir(o.DataDir)); err != nil {
		t.Fatal(err)
	}
	r := &record{dir: o.DataDir, Phase: phaseMember, Name: "a1", Role: roleAgent,
		Cluster: join.Cluster{ID: "c1", CA: h.ca.PEM(), Settings: []byte("{}"), Servers: []join.Server{{Name: "s1", API: h.addr}}}}
	if err := r.save(); err != nil {
		t.Fatal(err)
	}

	a := &agent{options: o, logger: quiet(), stack: lifecycle.New(quiet())}
	if err := a.enlist(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer a.stack.Stop()
	for name, cert := range map[string]*x509.Certificate{"client": a.client.Certificate().Leaf, "serving": a.serving.Certificate().Leaf} {
		if !cert.NotAfter.After(ends) {
			t.Errorf("the %s certificate still ends at %v", name, cert.NotAfter)
		}
	}
	if shown, err := h.ca.VerifyCredential(a.proof.proof().Credential, time.Now()); err != nil || !shown.NotAfter.After(ends) {
		t.Errorf("gossip is shown %+v, %v", shown, err)
	}
}

// With a certificate for a name or an address of the API a node could pass for the API server.
func TestNodesGetNoNameOfTheAPI(t *testing.T) {
	s := &server{options: options(t, "s1"), settings: DefaultSettings()}
	for _, name := range []string{"kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"} {
		if err := s.nameTaken(name); err == nil {
			t.Errorf("a node may be called %s", name)
		}
	}
	for _, addr := range []string{"10.43.0.1", "10.42.7.7"} {
		if err := s.addressTaken("a1", netip.MustParseAddr(addr)); err == nil {
			t.Errorf("a node may have the address %s", addr)
		}
	}
}

// A server whose store nobody counts on joins as a new one; a crash between the two is finished by the next
// start, with or without the flag.
func TestWipe(t *testing.T) {
	h := newHost(t)
	h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
	o := options(t, "s2")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	old := &record{dir: o.DataDir, Phase: phaseMember, Name: "s2", Role: roleServer, Cluster: join.Cluster{ID: "before", CA: h.ca.PEM()}}
	lived := filepath.Join(storeDir(o.DataDir), "server.json")
	begin := func() {
		t.Helper()
		if err := errors.Join(old.save(), os.MkdirAll(storeDir(o.DataDir), 0o700), os.WriteFile(lived, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	if r, err := enlistServer(t.Context(), o, quiet()); err != nil || r.Phase != phaseMember {
		t.Fatalf("without --wipe: %+v, %v", r, err)
	}
	o.Wipe = true
	h.taken = errors.New("a server named s2 is a member of the store")
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil || !strings.Contains(err.Error(), "nothing was wiped") {
		t.Fatalf("a member was wiped: %v", err)
	}
	if _, err := os.Stat(lived); err != nil {
		t.Fatal(err)
	}
	h.taken = nil
	check := func(o *Options) {
		t.Helper()
		r, err := enlistServer(t.Context(), o, quiet())
		if err != nil || r.Phase != phaseJoining || r.Cluster.ID != "c1" {
			t.Fatalf("%+v, %v", r, err)
		}
		if _, err := os.Stat(lived); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the old store: %v", err)
		}
		if again, err := loadRecord(o.DataDir); err != nil || again.Phase != phaseJoining {
			t.Errorf("on disk %+v, %v", again, err)
		}
	}
	check(o)
	begin()
	crashed := &record{dir: o.DataDir, Phase: phaseWiping, Name: "s2", Role: roleServer, Cluster: join.Cluster{ID: "c1", CA: h.ca.PEM()}}
	if err := crashed.save(); err != nil {
		t.Fatal(err)
	}
	plain := *o
	plain.Wipe, plain.Join, plain.Token = false, "", ""
	check(&plain)
}

func TestReplaceTakesThePlaceOfADeadServer(t *testing.T) {
	h := newHost(t)
	h.keys = func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil }
	h.taken = errors.New("a server named s2 is a member of the store")
	o := options(t, "s2")
	o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil || !strings.Contains(err.Error(), "is a member") {
		t.Fatalf("a second s2 joined: %v", err)
	}
	o.Replace = true
	if r, err := enlistServer(t.Context(), o, quiet()); err != nil || r.Phase != phaseJoining {
		t.Fatalf("%+v, %v", r, err)
	}
}
