package join_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

// TestEarlierServersDoNotJoinAnOperatorsCA: a server of an earlier version would lose the new
// fields of the CA, and exchange it without a word. Agents join as before.
func TestEarlierServersDoNotJoinAnOperatorsCA(t *testing.T) {
	ca := companytest.NewRoot(t).Intermediate("Cluster CA", nil)
	external, err := pki.ParseExternal(ca.Chain(), ca.KeyPEM(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	bundle := pki.NewExternalBundle(external)
	peers, err := pki.CAOf(pki.Peers, "c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	separate := bundle.WithCA(pki.Peers, peers)
	for name, c := range map[string]struct {
		form     int
		external *pki.Bundle
		refused  bool
	}{"an earlier version": {0, &bundle, true}, "this version": {pki.BundleForm, &bundle, false},
		"a built-in CA":                    {0, nil, false},
		"one that knows operators' CAs":    {pki.ExternalForm, &bundle, false},
		"the same, and a CA for peers":     {pki.ExternalForm, &separate, true},
		"this version, and a CA for peers": {pki.BundleForm, &separate, false}} {
		all := newCluster(t)
		all.external = c.external
		r := all.request()
		r.CAs = c.form
		_, err := all.client(t, nil).Server(t.Context(), r)
		var is *join.RefusedError
		if refused := errors.As(err, &is) && is.Status == http.StatusConflict &&
			strings.Contains(is.Reason, "install the cluster's version"); refused != c.refused ||
			err != nil && !refused {
			t.Errorf("%s: %v", name, err)
		}
		if (len(all.uses) == 0) != c.refused {
			t.Errorf("%s: %d uses of the token", name, len(all.uses))
		}
	}
}

// TestAnExchangeBeginsWhileAServerJoins: a server of an earlier version that was admitted before
// does not get the CAs that it does not know, nor any key.
func TestAnExchangeBeginsWhileAServerJoins(t *testing.T) {
	for form, refused := range map[int]bool{pki.ExternalForm: true, pki.BundleForm: false} {
		c := newCluster(t)
		peers, err := pki.CAOf(pki.Peers, "c1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.used = func() { c.external = new(pki.NewBundle(c.ca).WithCA(pki.Peers, peers)) }
		r := c.request()
		r.CAs = form
		grant, err := c.client(t, nil).Server(t.Context(), r)
		var is *join.RefusedError
		if got := errors.As(err, &is) && is.Status == http.StatusConflict; got != refused || err != nil && !refused ||
			len(grant.Keys) > 0 == refused {
			t.Errorf("a server of form %d: %v, with %d keys", form, err, len(grant.Keys))
		}
	}
}
