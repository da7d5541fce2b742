package exchange

import (
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

// TestTheCAIsExchangedForAnExternalOne: all servers get the key of a CA that an operator brings,
// and drop that of the one before. From there it goes to another external CA, and to a built-in one
// only if somebody says so.
func TestTheCAIsExchangedForAnExternalOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := companytest.NewRoot(t)
		c := newCluster(t, 3, 1)
		synctest.Wait()
		give := func(n *node, ca *companytest.CA) error {
			_, err := n.exchange.Apply(t.Context(), Request{BeginExternal, Given{ca.Chain(), ca.KeyPEM()}})
			synctest.Wait()
			return err
		}
		one, two := root.Intermediate("Cluster CA 1", nil), root.Intermediate("Cluster CA 2", nil)
		for i, ca := range []*companytest.CA{one, two} {
			if err := give(c.nodes[i], ca); err != nil {
				t.Fatal(err)
			}
			c.lead(c.nodes[2], time.Minute)
			c.settled(uint64(4 + 3*i))
			want, err := pki.KeyDigest(ca.Key)
			for _, n := range c.nodes {
				if err != nil || n.signer != want || n.exchange != nil && !n.exchange.Status().External {
					t.Errorf("%s has certificates of %.8s, want %.8s (%v)", n.name, n.signer, want, err)
				}
			}
		}
		writes := c.shelf.Writes()
		for what, bad := range map[string]error{"one from before": give(c.nodes[0], one), "the same one": give(c.nodes[0], two)} {
			if !errors.Is(bad, pki.ErrUnfit) {
				t.Errorf("%s: %v", what, bad)
			}
		}
		if _, err := c.nodes[1].exchange.Apply(t.Context(), Request{Change: Begin}); !errors.Is(err, ErrExternal) || c.shelf.Writes() != writes {
			t.Errorf("back to a built-in CA, without a word: %v; %d writes", err, c.shelf.Writes()-writes)
		}
		c.apply(c.nodes[1], BeginBuiltIn)
		c.lead(c.nodes[0], time.Minute)
		c.settled(10)
		if is := c.nodes[2].exchange.Status(); is.External {
			t.Errorf("the CA is built-in: %+v", is)
		}
	})
}

// TestAnUnfitCAChangesNothing: neither the store nor the keys of the server.
func TestAnUnfitCAChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := companytest.NewRoot(t)
		c := newCluster(t, 1, 0)
		n := c.nodes[0]
		n.exchange.cas.Names = func() []string { return []string{"kubernetes", "s1"} }
		synctest.Wait()
		narrow := root.Intermediate("Cluster CA", func(x *x509.Certificate) { x.PermittedDNSDomains = []string{"example.com"} })
		good := root.Intermediate("Cluster CA", nil)
		for what, given := range map[string]Given{
			"nothing": {}, "another key": {good.Chain(), narrow.KeyPEM()}, "forbids names": {narrow.Chain(), narrow.KeyPEM()},
			"the key is in the chain": {slices.Concat(good.Chain(), good.KeyPEM()), good.KeyPEM()},
		} {
			if _, err := n.exchange.Apply(t.Context(), Request{BeginExternal, given}); !errors.Is(err, pki.ErrUnfit) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if c.shelf.Writes() != 0 || len(n.home.Keys()) != 2 {
			t.Errorf("%d writes, %d keys", c.shelf.Writes(), len(n.home.Keys()))
		}
	})
}
