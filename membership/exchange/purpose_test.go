package exchange

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

// format is that of the state in the store.
func (c *cluster) format() int {
	c.t.Helper()
	value, _, err := c.store.Get(c.t.Context())
	var is rollover.Envelope
	if err != nil || json.Unmarshal(value, &is) != nil {
		c.t.Fatalf("the state is %q, %v", value, err)
	}
	return is.Format
}

// knows are the forms of bundles that the servers' versions handle, until they are updated.
func (c *cluster) knows(forms map[string]int) {
	for _, n := range c.nodes {
		if n.exchange == nil {
			continue
		}
		n.exchange.cas.EarlierCAs = func(form int) (earlier []string) {
			for name, of := range forms {
				if of < form {
					earlier = append(earlier, name)
				}
			}
			slices.Sort(earlier)
			return earlier
		}
	}
}

// TestAnUpgradedClusterGetsSeparateCAs: while a server is of an earlier version, an exchange works
// as that version knows it. With the last one updated, the next exchange brings a CA for each
// purpose, in a form that earlier versions leave alone. An exchange for one CA leads back.
func TestAnUpgradedClusterGetsSeparateCAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 2)
		forms := map[string]int{"s1": pki.BundleForm, "s2": pki.BundleForm, "s3": pki.ExternalForm}
		c.knows(forms)
		synctest.Wait()
		c.apply(c.nodes[0], Begin)
		if c.format() != format {
			t.Errorf("with an earlier version the format is %d", c.format())
		}
		c.lead(c.nodes[1], time.Minute)
		c.settled(4)
		if is := c.nodes[0].exchange.Status(); is.Separate ||
			!strings.Contains(c.said.String(), "one for all purposes") {
			t.Errorf("with an earlier version: %+v", is)
		}
		forms["s3"] = pki.BundleForm
		c.apply(c.nodes[2], Begin)
		if is := c.nodes[0].exchange.Status(); c.format() != separateFormat || !is.Separate {
			t.Errorf("the format is %d: %+v", c.format(), is)
		}
		c.apply(c.nodes[2], Undo)
		if c.format() != format {
			t.Errorf("given up: the format is %d", c.format())
		}
		c.lead(c.nodes[1], time.Minute)
		c.settled(6)
		c.apply(c.nodes[1], Begin)
		c.lead(c.nodes[1], time.Minute)
		c.settled(9)
		if b := c.nodes[3].home.trust.Bundle(); !b.Separate() || c.format() != separateFormat {
			t.Errorf("an agent has %d and %d CAs, the format is %d", len(b.Peers), len(b.FrontProxy), c.format())
		}
		// A server that was not seen since a start does not lead back by itself.
		forms["s3"] = 0
		c.apply(c.nodes[0], Begin)
		c.lead(c.nodes[0], time.Minute)
		c.settled(12)
		if c.format() != separateFormat {
			t.Errorf("the format is %d", c.format())
		}
		c.apply(c.nodes[0], BeginJoint)
		if c.format() != separateFormat {
			t.Errorf("while certificates of before count, the format is %d", c.format())
		}
		c.lead(c.nodes[2], time.Minute)
		c.settled(15)
		if is := c.nodes[1].exchange.Status(); c.format() != format || is.Separate {
			t.Errorf("back: the format is %d, %+v", c.format(), is)
		}
		c.apply(c.nodes[0], BeginJoint) // which it is
		c.lead(c.nodes[2], time.Minute)
		c.settled(18)
	})
}

// TestAnOperatorsCAIsForClients: the CAs of peers and of the front proxy are the cluster's own, and
// exchanged at the same time.
func TestAnOperatorsCAIsForClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		root := companytest.NewRoot(t)
		var before []string
		for i, name := range []string{"Cluster CA 1", "Cluster CA 2"} {
			ca := root.Intermediate(name, nil)
			if _, err := c.nodes[i].exchange.Apply(t.Context(),
				Request{Change: BeginExternal, Given: Given{ca.Chain(), ca.KeyPEM()}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			c.lead(c.nodes[2], time.Minute)
			c.settled(uint64(4 + 3*i))
			trust := c.nodes[1].home.trust
			for _, p := range pki.Purposes() {
				own := trust.CAsFor(p)[0]
				if own.External() != (p == pki.Clients) || slices.Contains(before, own.Digest()) {
					t.Errorf("%s: the CA of %s is %s", name, p, own.Certificate().Subject)
				}
				before = append(before, own.Digest())
			}
		}
	})
}

// TestAnOperatorsCAIsForAllPurposes on wish: earlier versions that know CAs of operators handle the
// outcome.
func TestAnOperatorsCAIsForAllPurposes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		root := companytest.NewRoot(t)
		for i, begin := range []Change{BeginExternalJoint, BeginBuiltIn, BeginExternalJoint} {
			ca := root.Intermediate(fmt.Sprintf("Cluster CA %d", i), nil)
			if _, err := c.nodes[i].exchange.Apply(t.Context(),
				Request{Change: begin, Given: Given{ca.Chain(), ca.KeyPEM()}}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			c.lead(c.nodes[2], time.Minute)
			c.settled(uint64(4 + 3*i))
			is, joint := c.nodes[1].exchange.Status(), begin == BeginExternalJoint
			if is.External != joint || is.Separate == joint || (c.format() == externalFormat) != joint {
				t.Errorf("%s: the format is %d, %+v", begin, c.format(), is)
			}
		}
	})
}

// TestExtensionsAreTold: no server shows a certificate of the next CA of the front proxy before
// extension API servers know that CA. The leader alone knows that they do.
func TestExtensionsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		var told atomic.Bool
		var asked atomic.Value
		c.told = func(cas []byte) error {
			if asked.Store(string(cas)); !told.Load() {
				return errors.New("not yet")
			}
			return nil
		}
		c.apply(c.nodes[0], Begin)
		led := make(chan struct{})
		go func() { c.lead(c.nodes[1], time.Minute); close(led) }()
		synctest.Wait()
		is, b := c.nodes[1].exchange.Status(), c.nodes[1].home.trust.Bundle()
		if !is.Spreading() || !slices.Equal(is.Waiting, []string{"the next CA of the front proxy: not yet"}) ||
			asked.Load() != strings.Join(b.FrontProxy, "") {
			t.Errorf("before that, at the leader: %+v", is)
		}
		if is := c.nodes[0].exchange.Status(); !is.Spreading() || len(is.Waiting) > 0 {
			t.Errorf("before that, at another server: %+v", is)
		}
		<-led
		if is := c.nodes[1].exchange.Status(); !is.Spreading() || len(is.Waiting) > 0 {
			t.Errorf("at the leader of before: %+v", is)
		}
		told.Store(true)
		c.lead(c.nodes[1], time.Minute)
		c.settled(4)
		if strings.Contains(c.said.String(), "without extension API servers") {
			t.Error("the log says that they were not waited for")
		}
	})
}

// TestExtensionsAreNotWaitedForForEver: a ConfigMap that the leader cannot write, such as for a
// webhook, holds an exchange off for two minutes, and a forced one not at all.
func TestExtensionsAreNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		c.told = func([]byte) error { return errors.New("a webhook refuses it") }
		c.apply(c.nodes[0], Begin)
		c.lead(c.nodes[1], toldPatience-time.Second)
		if is := c.nodes[1].exchange.Status(); !is.Spreading() {
			t.Errorf("too early: %+v", is)
		}
		c.lead(c.nodes[1], time.Minute)
		c.settled(4)
		if said := c.said.String(); strings.Count(said, "without extension API servers") != 1 ||
			!strings.Contains(said, "a webhook refuses it") {
			t.Errorf("the log: %s", said)
		}
		c.apply(c.nodes[0], Begin)
		c.lead(c.nodes[1], time.Minute)
		if is := c.nodes[1].exchange.Status(); !is.Spreading() {
			t.Errorf("not forced: %+v", is)
		}
		c.apply(c.nodes[2], Force)
		c.lead(c.nodes[1], time.Second)
		if is := c.nodes[1].exchange.Status(); is.Spreading() {
			t.Errorf("forced: %+v", is)
		}
		c.lead(c.nodes[1], time.Minute)
		c.settled(8)
	})
}

// TestTheKeyOfAPurposeIsLost: the only server with the keys of the new CAs is gone. The exchange
// is given up, and the CAs of before are whole.
func TestTheKeyOfAPurposeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 1)
		synctest.Wait()
		c.apply(c.nodes[0], Begin)
		c.lead(c.nodes[1], time.Minute)
		c.settled(4)
		for _, n := range c.nodes[1:3] {
			c.kill(n)
		}
		c.apply(c.nodes[0], Begin)
		c.kill(c.nodes[0])
		c.start(c.nodes[1])
		c.start(c.nodes[2])
		c.lead(c.nodes[1], time.Minute)
		if is := c.nodes[1].exchange.Status(); is.Step != pki.Spreading ||
			!strings.Contains(is.Problem, "nobody who lives has it") {
			t.Errorf("without the keys: %+v", is)
		}
		c.apply(c.nodes[2], Undo)
		c.lead(c.nodes[1], time.Minute)
		c.settled(6)
		c.start(c.nodes[0])
		c.lead(c.nodes[1], time.Minute)
		c.settled(6)
	})
}
