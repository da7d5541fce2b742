package exchange

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

// TestTheCAIsExchangedForAnExternalOne: all servers get the key of a CA that an operator brings,
// and drop that of the one before. From there it goes to another external CA, and to a built-in one
// only if an operator says so.
func TestTheCAIsExchangedForAnExternalOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := companytest.NewRoot(t)
		c := newCluster(t, 3, 1)
		synctest.Wait()
		give := func(n *node, ca *companytest.CA) error {
			_, err := n.exchange.Apply(t.Context(),
				Request{Change: BeginExternal, Given: Given{ca.Chain(), ca.KeyPEM()}})
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
		writes := c.store.Writes()
		for what, bad := range map[string]error{"one from before": give(c.nodes[0], one),
			"the same one": give(c.nodes[0], two)} {
			if !errors.Is(bad, pki.ErrUnfit) {
				t.Errorf("%s: %v", what, bad)
			}
		}
		if _, err := c.nodes[1].exchange.Apply(t.Context(), Request{Change: Begin}); !errors.Is(err, ErrExternal) ||
			c.store.Writes() != writes {
			t.Errorf("back to a built-in CA, without a word: %v; %d writes", err, c.store.Writes()-writes)
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
		n.exchange.cas.Certificates = func() []pki.Request {
			return []pki.Request{
				{Names: []string{"kubernetes", "s1"}, Usage: pki.Server}}
		}
		synctest.Wait()
		narrow := root.Intermediate("Cluster CA",
			func(x *x509.Certificate) { x.PermittedDNSDomains = []string{"example.com"} })
		good := root.Intermediate("Cluster CA", nil)
		for what, given := range map[string]Given{
			"nothing": {}, "another key": {good.Chain(), narrow.KeyPEM()},
			"forbids names":           {narrow.Chain(), narrow.KeyPEM()},
			"the key is in the chain": {slices.Concat(good.Chain(), good.KeyPEM()), good.KeyPEM()},
		} {
			if _, err := n.exchange.Apply(t.Context(), Request{Change: BeginExternal, Given: given}); !errors.Is(err,
				pki.ErrUnfit) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if c.store.Writes() != 0 || len(n.home.Keys()) != 2 {
			t.Errorf("%d writes, %d keys", c.store.Writes(), len(n.home.Keys()))
		}
	})
}

// TestEarlierVersionsTakeNoPart: an External CA is not made known while a server is of a version
// that does not know it. The state with it is of a format that such a version leaves alone; a state
// without it is read by all.
func TestEarlierVersionsTakeNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 0)
		n, earlier := c.nodes[0], []string{"s2"}
		n.exchange.cas.EarlierCAs = func(form int) []string {
			if form == pki.ExternalForm {
				return earlier
			}
			return []string{"s3"} // which knows operators' CAs alone
		}
		synctest.Wait()
		ca := companytest.NewRoot(t).Intermediate("Cluster CA", nil)
		begin := func() error {
			_, err := n.exchange.Apply(t.Context(),
				Request{Change: BeginExternal, Given: Given{ca.Chain(), ca.KeyPEM()}})
			synctest.Wait()
			return err
		}
		var refused *EarlierError
		if err := begin(); !errors.As(err, &refused) || !slices.Equal(refused.Servers, earlier) ||
			c.store.Writes() != 0 || len(n.home.Keys()) != 2 {
			t.Errorf("with a server of an earlier version: %v; %d writes, %d keys", err, c.store.Writes(),
				len(n.home.Keys()))
		}
		earlier = nil
		formats := func(want int) {
			t.Helper()
			value, _, err := c.store.Get(t.Context())
			var is rollover.Envelope
			if err != nil || json.Unmarshal(value, &is) != nil || is.Format != want {
				t.Errorf("the format of the state is %d, want %d (%v)", is.Format, want, err)
			}
		}
		c.apply(n, Begin) // no version refuses it
		formats(2)
		c.apply(n, Undo)
		if err := begin(); err != nil {
			t.Fatal(err)
		}
		formats(3)
		c.lead(n, time.Minute)
		formats(3)
		c.apply(n, BeginBuiltIn)
		formats(3)
		c.lead(n, time.Minute)
		formats(2)
		if is := n.exchange.Status(); is.UnderWay() || is.External || is.Problem != "" {
			t.Errorf("in the end: %+v", is)
		}
	})
}
