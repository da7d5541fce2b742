package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
	"github.com/barque/barque/pki/identity"
)

// TestANodeThatTheNextCAForbidsHoldsTheExchange: a server whose certificates an operator's CA may
// not issue keeps those that it has, and does not take part, so that the exchange waits where it
// can be undone. It says why.
func TestANodeThatTheNextCAForbidsHoldsTheExchange(t *testing.T) {
	ids, _, _ := newServer(t)
	ca := companytest.NewRoot(t).Intermediate("Cluster CA",
		func(x *x509.Certificate) { x.ExcludedDNSDomains = []string{"localhost"} })
	next, err := pki.ParseExternal(ca.Chain(), ca.KeyPEM(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Issues(ids.Requests(), time.Now()); !errors.Is(err, pki.ErrUnfit) ||
		!strings.Contains(err.Error(), `"localhost"`) {
		t.Errorf("at the beginning, with this server's certificates: %v", err)
	}
	account, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	// as if another server did not know this one
	b, err := ids.Trust.Bundle().BeginExternal(next, account.Public(), time.Now())
	if err := errors.Join(err, ids.Home.Hold(pki.CAKey, ca.Key), ids.Home.Hold(pki.AccountKey, account),
		ids.Home.Adopt(b)); err != nil {
		t.Fatal(err)
	}
	had := ids.API.Certificate()
	if err := ids.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "--undo") {
		t.Errorf("renewed: %v", err)
	}
	if proof := ids.GossipProof(); proof.Trust != 1 || ids.API.Certificate() != had {
		t.Errorf("gossip is told generation %d, and the certificate of the API is another one: %v", proof.Trust,
			ids.API.Certificate() != had)
	}
	// It starts as well: else it would never learn that the exchange is given up.
	again, err := NewServer(t.Context(), ids.config)
	if err != nil {
		t.Fatal(err)
	}
	if proof := again.GossipProof(); proof.Trust != 1 {
		t.Errorf("after a start gossip is told generation %d", proof.Trust)
	}
	// Then its store opens, or it becomes a member.
	for when, renew := range map[string]func() error{
		"with its ID": func() error { return again.Hold(t.Context(), "s1.id") },
		"as a member": func() error { return again.RenewAtStart(t.Context()) }} {
		if err := renew(); err != nil || again.GossipProof().Trust != 1 {
			t.Errorf("%s: %v, and gossip is told generation %d", when, err, again.GossipProof().Trust)
		}
	}
	if err := again.Renew(t.Context()); !errors.Is(err, pki.ErrNextCA) {
		t.Errorf("renewed after a start: %v", err)
	}
	if b, err = b.Undo(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ids.Home.Adopt(b), ids.Renew(t.Context())); err != nil || ids.GossipProof().Trust != 3 {
		t.Errorf("after the exchange was undone: %v", err)
	}
}

// TestNodesBelieveNoTwin: the first server loses its disk, and its unit has the flags of the
// beginning: it begins another cluster with the same CA, at the same address. No agent takes it for
// its own cluster, whose pods would be none, on any of its ways.
func TestNodesBelieveNoTwin(t *testing.T) {
	ca := companytest.NewRoot(t).Intermediate("Cluster CA", nil)
	external, err := pki.ParseExternal(ca.Chain(), ca.KeyPEM(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := pki.NewTrust(pki.NewExternalBundle(external), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	twin, err := pki.NewTrust(pki.NewExternalBundle(external), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(t)
	if err := a.Trust.Set(own.Bundle()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		by   *pki.Trust
		good bool
	}{"its own server": {own, true}, "the twin": {twin, false}} {
		request := pki.Request{CommonName: "barque:apiserver", Organization: []string{join.ServersOrganization},
			Usage: pki.Server, Names: []string{"127.0.0.1"}}
		api, err := identity.New(t.Context(),
			identity.Config{Name: "api", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
				Issue: c.by.Signs(func() pki.Request { return request }, time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{*api.Certificate()}}
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are part of the test
		server.StartTLS()
		defer server.Close()
		address := server.Listener.Addr().String()
		requests := func() error {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
			if err != nil {
				return err
			}
			transport := &transport{ids: a}
			defer transport.CloseIdleConnections()
			answer, err := transport.RoundTrip(r)
			if err == nil {
				err = answer.Body.Close()
			}
			return err
		}
		keys := func() error {
			client, err := join.NewClient(address, a.Trust, nil, time.Now)
			if err != nil {
				return err
			}
			defer client.Close()
			_, err = client.SharedKey(t.Context(), "x")
			return err
		}
		for way, err := range map[string]error{"requests": requests(),
			"the balancer": a.ReadyProbe()(t.Context(), netip.MustParseAddrPort(address), 0), "keys": keys()} {
			if c.good && err != nil || !c.good && !errors.Is(err, pki.ErrOtherCluster) {
				t.Errorf("%s, %s: %v", name, way, err)
			}
		}
	}
}
