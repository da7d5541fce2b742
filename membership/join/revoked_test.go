package join_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
)

// TestARevokedAgentGetsNothing: neither keys nor certificates, and the reason is said.
func TestARevokedAgentGetsNothing(t *testing.T) {
	c := newCluster(t)
	a := c.agent(t) // n1
	client := c.client(t, a.identity(t))
	acts := map[string]func(context.Context) error{
		"keys of gossip": func(ctx context.Context) error { _, err := client.GossipKeys(ctx, ""); return err },
		"the list":       func(ctx context.Context) error { _, err := client.Revoked(ctx, 0); return err },
		"certificates": func(ctx context.Context) error {
			_, err := client.Renew(ctx, a.renewal())
			return err
		},
	}
	for what, act := range acts {
		if err := act(t.Context()); err != nil {
			t.Errorf("%s, before: %v", what, err)
		}
	}
	c.revoked = func(cert *x509.Certificate) error {
		if cert.Subject.CommonName != "system:node:n1" {
			return nil
		}
		return &revocation.Error{
			Entry: revocation.Entry{Kind: revocation.Agent, Name: "n1", Why: "its Node was deleted"}}
	}
	for what, act := range acts {
		var refused *join.RefusedError
		if err := act(t.Context()); !errors.As(err, &refused) || refused.Status != http.StatusForbidden ||
			!strings.Contains(refused.Reason, "its Node was deleted") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := c.client(t, certificate(t, c.ca, join.NodeClient("a2"))).Revoked(t.Context(), 0); err != nil {
		t.Errorf("another agent: %v", err)
	}
	var refused *join.RefusedError
	if _, err := c.client(t, nil).Revoked(t.Context(), 0); !errors.As(err, &refused) ||
		refused.Status != http.StatusUnauthorized {
		t.Errorf("nobody: %v", err)
	}
}

// TestCertificatesAreDated: with the revision of the store, and never before the certificate that a
// renewal follows.
func TestCertificatesAreDated(t *testing.T) {
	c := newCluster(t)
	revision := uint64(7)
	c.trust.Dated(func() uint64 { return revision })
	a := c.agent(t)
	own := a.identity(t)
	if got := pki.RevisionOf(own.Leaf); got != 7 || !slices.Equal(c.admitted, []string{"n1 with 32 bytes"}) {
		t.Errorf("dated %d, admitted %q", got, c.admitted)
	}
	revision = 5 // of a server that lags
	renewed, err := c.client(t, own).Renew(t.Context(), a.renewal())
	if err != nil {
		t.Fatal(err)
	}
	again, err := tls.X509KeyPair(renewed.Client, a.keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if got := pki.RevisionOf(again.Leaf); got != 7 {
		t.Errorf("renewed, dated %d", got)
	}
}

// TestAForgedAgentIsNotRenewed: a thief of the CA's key can sign a certificate for an agent's name,
// with a key of its own. That gets no certificate of the next CA.
func TestAForgedAgentIsNotRenewed(t *testing.T) {
	c := newCluster(t)
	a, own := c.agent(t), func(a *agent) *join.Client { return c.client(t, a.identity(t)) }
	other := c.agent(t)
	swapped := a.renewal()
	swapped.CSR = other.csr
	var refused *join.RefusedError
	if _, err := own(a).Renew(t.Context(), swapped); !errors.As(err, &refused) ||
		!strings.Contains(refused.Reason, "for its own key only") {
		t.Errorf("for another key: %v", err)
	}
	for why, text := range map[error]string{revocation.ErrOtherKey: "another key", revocation.ErrNoKey: "join again"} {
		c.otherKey = why
		for what, act := range map[string]func() error{
			"certificates":   func() error { _, err := own(a).Renew(t.Context(), a.renewal()); return err },
			"keys of gossip": func() error { _, err := own(a).GossipKeys(t.Context(), ""); return err },
		} {
			if err := act(); !errors.As(err, &refused) || refused.Status != http.StatusForbidden ||
				!strings.Contains(refused.Reason, text) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

// TestAgentsGetWhatTheyNeed: an agent that has the list gets it no second time, and none gets
// its texts.
func TestAgentsGetWhatTheyNeed(t *testing.T) {
	c := newCluster(t)
	c.entries = &revocation.Entries{Version: 7,
		List: []revocation.Entry{
			{Kind: revocation.Agent, Name: "a9", Revision: 5, By: "ann", Why: "it was lost", Key: "ab",
				CAs: []string{"cd"}}}}
	client := c.client(t, c.agent(t).identity(t))
	for have, want := range map[uint64][]revocation.Entry{6: {{Kind: revocation.Agent, Name: "a9", Revision: 5}},
		7: nil, 8: nil} {
		got, err := client.Revoked(t.Context(), have)
		if err != nil || got.Version != 7 || !reflect.DeepEqual(got.List, want) {
			t.Errorf("with version %d: %+v, %v", have, got, err)
		}
	}
}

// TestARevokedAgentIsAStranger: a former node guesses tokens no faster than any stranger.
func TestARevokedAgentIsAStranger(t *testing.T) {
	c := newCluster(t)
	now := time.Now()
	c.now = func() time.Time { return now }
	removed := c.client(t, certificate(t, c.ca, join.NodeClient("n1")))
	c.revoked = func(cert *x509.Certificate) error {
		return &revocation.Error{Entry: revocation.Entry{Kind: revocation.Agent, Name: "n1"}}
	}
	guess := c.request()
	guess.Token = pki.Token{CADigest: c.token.CADigest, ID: "aaaaaa", Secret: strings.Repeat("0", 26)}.String()
	for range 1000 {
		var refused *join.RefusedError
		if _, err := removed.Server(t.Context(), guess); !errors.As(err, &refused) {
			t.Fatal(err)
		}
		if refused.Status == http.StatusTooManyRequests {
			return
		}
	}
	t.Error("a thousand guesses are answered")
}

// TestAnUnsignedRequestVoidsNothing: a request for certificates whose signature is not by its own
// key voids no certificates of the name, and costs no use of the token.
func TestAnUnsignedRequestVoidsNothing(t *testing.T) {
	c := newCluster(t)
	good := c.agent(t)
	c.admitted, c.uses = nil, nil
	block, _ := pem.Decode(good.csr)
	forged := slices.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1 // within the signature
	for name, csr := range map[string][]byte{
		"forged":     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: forged}),
		"other kind": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}),
		"cut off": pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: block.Bytes[:len(block.Bytes)-9]}),
		"no PEM": block.Bytes,
		"none":   nil,
	} {
		r := c.request()
		r.CSR, r.GossipKey = csr, good.gossip
		var refused *join.RefusedError
		if _, err := c.client(t, nil).Agent(t.Context(), r); !errors.As(err, &refused) ||
			refused.Status != http.StatusBadRequest {
			t.Errorf("%s: %v, want a refusal with 400", name, err)
		}
		if len(c.admitted) > 0 || len(c.uses) > 0 {
			t.Errorf("%s: admitted %q with uses %q of the token", name, c.admitted, c.uses)
		}
		renewal := good.renewal()
		renewal.CSR = csr
		if _, err := c.client(t, good.identity(t)).Renew(t.Context(), renewal); !errors.As(err, &refused) ||
			refused.Status != http.StatusBadRequest {
			t.Errorf("%s: renewed with %v, want a refusal with 400", name, err)
		}
		c.admitted, c.uses = nil, nil
	}
}

// TestAnAgentHearsWhyItIsRefused: also while the CA is exchanged, and its key is not recorded.
func TestAnAgentHearsWhyItIsRefused(t *testing.T) {
	c := newCluster(t)
	for name, of := range map[string]pki.Request{"an agent": join.NodeClient("n1"),
		"a server": {CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Client}} {
		client := c.client(t, certificate(t, c.ca, of))
		c.revoked = func(*x509.Certificate) error { return errors.New("the CA is exchanged") }
		var refused *join.RefusedError
		if _, err := client.GossipKeys(t.Context(), ""); !errors.As(err, &refused) ||
			refused.Reason != "the CA is exchanged" {
			t.Errorf("%s asks for the keys of gossip: %v", name, err)
		}
		if _, err := client.Revoked(t.Context(), 0); !errors.As(err, &refused) ||
			refused.Reason != "the CA is exchanged" {
			t.Errorf("%s asks for the list: %v", name, err)
		}
	}
}

// TestTheConnectionOfARevokedAgent: it was one of the cluster, and is bounded like a stranger's
// from the refusal on.
func TestTheConnectionOfARevokedAgent(t *testing.T) {
	c := newCluster(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := certificate(t, c.ca,
		pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Server,
			Names: []string{"127.0.0.1"}})
	server := httpserver.New(httpserver.Config{Listener: listener, Logger: quiet(), Handler: c.handler,
		TLS: &tls.Config{Certificates: []tls.Certificate{*serving}, ClientAuth: tls.RequestClientCert}})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve() }() // ends with Close
	defer func() {
		_ = server.Close()
		<-ended
	}()
	c.address = "https://" + listener.Addr().String()
	agent := c.client(t, certificate(t, c.ca, join.NodeClient("n1")))
	if _, err := agent.Revoked(t.Context(), 0); err != nil || server.Strangers() != 0 {
		t.Fatalf("%v; %d strangers", err, server.Strangers())
	}
	c.revoked = func(*x509.Certificate) error {
		return &revocation.Error{Entry: revocation.Entry{Kind: revocation.Agent, Name: "n1"}}
	}
	var refused *join.RefusedError
	if _, err := agent.Revoked(t.Context(), 0); !errors.As(err, &refused) || server.Strangers() != 1 {
		t.Errorf("%v; %d strangers, want its connection", err, server.Strangers())
	}
}
