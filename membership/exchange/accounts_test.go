package exchange

import (
	"crypto"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// signs returns the public key, DER, with whose private key a server signs the tokens of service
// accounts, and all by which it verifies them.
func (n *node) signs(t *testing.T) (signs string, verifies []string) {
	t.Helper()
	key, others := n.home.trust.AccountKeys(time.Now())
	for _, public := range append([]crypto.PublicKey{key.Public()}, others...) {
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		verifies = append(verifies, string(der))
	}
	return verifies[0], verifies
}

// TestTheKeyOfServiceAccountsAlone: the CA, and with it every certificate and join token, stays.
// Dead agents hold nothing up; a dead server does, unless that is forced, and follows when it is
// back. No server ever signs by a key that a living one does not verify by.
func TestTheKeyOfServiceAccountsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		ca := c.nodes[0].signer
		old, _ := c.nodes[0].signs(t)
		all := func() {
			t.Helper()
			for _, n := range c.nodes[:3] {
				signs, _ := n.signs(t)
				for _, other := range c.nodes[:3] {
					if _, verifies := other.signs(t); n.alive && other.alive && !slices.Contains(verifies, signs) {
						t.Errorf("%s signs by a key by which %s does not verify", n.name, other.name)
					}
				}
			}
		}
		c.kill(c.nodes[3])
		c.kill(c.nodes[2])
		c.apply(c.nodes[0], BeginAccounts)
		c.lead(c.nodes[1], time.Minute)
		all()
		if is := c.nodes[1].exchange.Status(); !is.Spreading() || !is.Accounts ||
			!slices.Equal(is.Waiting, []string{"server s3 shows no life"}) {
			t.Errorf("while s3 is away: %+v", is)
		}
		if signs, _ := c.nodes[0].signs(t); signs != old {
			t.Error("s1 signs with a key that s3 does not know")
		}
		c.apply(c.nodes[1], Force)
		c.lead(c.nodes[0], time.Minute)
		all()
		c.start(c.nodes[2])
		c.start(c.nodes[3])
		synctest.Wait()
		all()
		c.settled(5)
		for _, n := range c.nodes {
			if n.signer != ca || len(n.home.trust.Bundle().Former) != 0 || len(n.home.trust.Bundle().Bridges) != 0 {
				t.Errorf("the CA of %s is another one: %+v", n.name, n.home.trust.Bundle())
			}
		}
		signs, verifies := c.nodes[2].signs(t)
		if signs == old || !slices.Contains(verifies, old) {
			t.Errorf("s3 signs by %x, and verifies by %x; the old key is %x", signs, verifies, old)
		}
		if is := c.nodes[2].exchange.Status(); is.Accounts || is.Signer != c.nodes[0].home.trust.Bundle().Signer() {
			t.Errorf("settled: %+v", is)
		}
		c.apply(c.nodes[0], Begin) // an exchange of the CA goes on as ever
		c.lead(c.nodes[1], time.Minute)
		c.settled(8)
	})
}

// TestUndoOfTheKeyOfServiceAccounts: the old key goes on to sign, and the new one verifies nothing.
func TestUndoOfTheKeyOfServiceAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		ca := c.nodes[0].signer
		old, _ := c.nodes[0].signs(t)
		c.apply(c.nodes[0], BeginAccounts)
		before := c.nodes[1].exchange.Status()
		if _, err := c.nodes[1].exchange.Apply(t.Context(), Request{Change: Begin}); !errors.Is(err, pki.ErrStep) {
			t.Errorf("the CA at the same time: %v", err)
		}
		c.apply(c.nodes[1], Undo)
		c.lead(c.nodes[2], time.Minute)
		c.settled(3)
		if is := c.nodes[1].exchange.Status(); !is.GivenUp(&before) {
			t.Errorf("%+v is not given up", is)
		}
		if signs, verifies := c.nodes[2].signs(t); signs != old || len(verifies) != 1 || c.nodes[2].signer != ca {
			t.Errorf("it signs by %x, and verifies by %x; the old key is %x", signs, verifies, old)
		}
	})
}

// TestTheKeyOfServiceAccountsWithEarlierServers: they would drop the CA for it.
func TestTheKeyOfServiceAccountsWithEarlierServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, 0)
		synctest.Wait()
		n := c.nodes[0]
		e := New(
			Config{Trust: n.home.trust, Home: n.home, Members: c.members, Fetch: c.fetch,
				Earlier: func() []string { return []string{"s2"} },
				Server:  rollover.Server{Cluster: "c1", Store: c.store, Changed: c.gossip}})
		_, err := e.Apply(t.Context(), Request{Change: BeginAccounts})
		if _, is := errors.AsType[*EarlierError](err); !is || !strings.Contains(err.Error(), "s2") ||
			c.store.Writes() != 0 || len(n.home.Keys()) != 2 {
			t.Errorf("%v; %d writes, %d keys", err, c.store.Writes(), len(n.home.Keys()))
		}
	})
}
