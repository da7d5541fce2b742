package clustertest

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// TestAThiefOfTheOldCA has the CAs' keys while the CA is exchanged. The old CA is believed for as
// long as a node is off, and the thief signs for whomever it likes. It gets nothing that is good
// after the exchange, and the operators go on.
func TestAThiefOfTheOldCA(t *testing.T) {
	needs.AllTests(t)
	c := Start(t, Options{Servers: 3, Agents: 1})
	b := newBuilding(t, c)
	masters := b.issue(pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client})
	proxy := b.issueFor(pki.FrontProxy, pki.Request{CommonName: "barque:front-proxy", Usage: pki.Client})
	b.proxies = map[*tls.Certificate]bool{proxy: true}
	controllers := b.issue(pki.Request{CommonName: "system:kube-controller-manager", Usage: pki.Client})
	agent := b.issue(pki.Request{CommonName: "system:node:a1", Organization: []string{"system:nodes"}, Usage: pki.Client})
	server := b.issueFor(pki.Peers, pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Client | pki.Server})
	if answer, err := doors["API: Secrets"](b, masters); answer != yes || err != nil {
		t.Fatalf("before the exchange the forged certificate is good: %s, %v", answer, err)
	}
	watch := b.watch(masters)
	b.Dev(t, "stop", "a1") // the exchange waits for it
	began := make(chan Result, 1)
	go func() { // ends with the exchange
		began <- b.BarqueResult(t.Context(), "cert", "rotate", "--ca", "--yes")
	}()
	Eventually(t, deadline, "the exchange is under way, at all servers", func(ctx context.Context) error {
		for _, s := range []string{"s1", "s2", "s3"} {
			pem := string(read(t, b.DataDir(s)+"/pki/ca.crt"))
			if strings.Count(pem, "BEGIN CERTIFICATE") != 2 {
				return fmt.Errorf("%s believes one CA", s)
			}
		}
		return nil
	})
	for what, cert := range map[string]*tls.Certificate{"an administrator": masters, "the front proxy": proxy, "a controller": controllers, "an agent": agent, "a server": server} {
		for _, door := range []string{"API: Secrets", "API: Nodes"} {
			if answer, err := doors[door](b, cert); answer != unknown || err != nil {
				t.Errorf("%s, forged as %s: %s, %v", door, what, answer, err)
			}
		}
		for _, door := range []string{"keys of gossip", "the CA's key"} {
			want := unknown // it is of no CA for this door
			if cert == server || cert == agent && door == "keys of gossip" {
				want = no
			}
			if answer, err := doors[door](b, cert); answer != want || err != nil {
				t.Errorf("%s, forged as %s: %s, %v", door, what, answer, err)
			}
		}
	}
	if !watch.ended(t) {
		t.Error("its watch goes on")
	}
	if err := b.renewAs(agent, b.at["a1"]); !refusedWith(err, http.StatusForbidden, "a key that the cluster has not recorded") {
		t.Errorf("renewed as an agent: %v", err)
	}
	// Who has a certificate that the cluster has made goes on: by any of the servers' kubeconfigs.
	for _, who := range []*tls.Certificate{b.admin(), b.agentsOwn("a1")} {
		if answer, err := doors["API: Nodes"](b, who); answer != yes || err != nil {
			t.Errorf("%s: %s, %v", who.Leaf.Subject, answer, err)
		}
	}
	b.Dev(t, "start", "a1")
	select {
	case r := <-began:
		if r.Error != nil {
			t.Errorf("the exchange: %s%s", r.Out, r.Err)
		}
	case <-time.After(3 * time.Minute):
		t.Error("the exchange does not end")
	}
	c.useServersKubeconfig(t)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	newCA, err := pki.ParseAuthority(read(t, b.DataDir("s1")+"/pki/ca.crt"), nil)
	if err != nil {
		t.Fatal(err)
	}
	b.ca = newCA
	for what, cert := range map[string]*tls.Certificate{"an administrator": masters, "the front proxy": proxy, "a server": server} {
		if answer, err := doors["API: Secrets"](b, cert); answer != unknown || err != nil {
			t.Errorf("after the exchange, forged as %s: %s, %v", what, answer, err)
		}
	}
}

// renewAs asks for an agent's new certificates.
func (b *building) renewAs(cert *tls.Certificate, address string) error {
	b.Helper()
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		b.Fatalf("a key of type %T", cert.PrivateKey)
	}
	csr, err := pki.SigningRequest(key)
	if err != nil {
		b.Fatal(err)
	}
	client, err := join.NewClient(b.at["s1"]+":6443", b.ca, cert, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	_, err = client.Renew(b.Context(), join.Renewal{CSR: csr, GossipKey: make([]byte, 32), Address: address})
	return err
}

// refusedWith reports whether an error of package join is that refusal.
func refusedWith(err error, status int, text string) bool {
	var refused *join.RefusedError
	return errors.As(err, &refused) && refused.Status == status && strings.Contains(refused.Reason, text)
}
