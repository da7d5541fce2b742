package join_test

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// Who gets the keys of the gossip pool: nodes of this cluster that still belong to it.
func TestGossipKeys(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	agent := func(ca *pki.Authority, name string) *tls.Certificate {
		return certificate(t, ca, join.NodeClient(name))
	}
	server := func(name string) *tls.Certificate {
		return certificate(t, c.ca,
			pki.Request{CommonName: name, Organization: []string{join.ServersOrganization}, Usage: pki.Client})
	}
	onRequest := func(r pki.Request) *tls.Certificate {
		k, err := pki.GenerateKey()
		if err != nil {
			t.Fatal(err)
		}
		signed, err := c.ca.Sign(
			&x509.Certificate{Subject: pkix.Name{CommonName: r.CommonName, Organization: r.Organization},
				NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, k.Public(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(signed)
		return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: k}
	}
	for what, w := range map[string]struct {
		identity *tls.Certificate
		status   int // 200: it gets them
		cluster  string
	}{
		"an agent":                  {agent(c.ca, "a1"), 200, ""},
		"a server":                  {server("s2"), 200, ""},
		"a removed agent":           {agent(c.ca, "removed"), http.StatusForbidden, ""},
		"a removed server":          {server("removed"), http.StatusForbidden, ""},
		"one that is not known yet": {agent(c.ca, "early"), http.StatusServiceUnavailable, ""},
		"nobody":                    {nil, http.StatusUnauthorized, ""},
		"another cluster's agent":   {agent(other.ca, "a1"), http.StatusUnauthorized, ""},
		"an administrator": {
			certificate(t, c.ca,
				pki.Request{CommonName: "admin", Organization: []string{"system:masters"}, Usage: pki.Client}),
			http.StatusForbidden, ""},
		"an agent's server certificate": {
			certificate(t, c.ca, join.NodeServing("a1", netip.MustParseAddr("10.0.0.7"))), http.StatusUnauthorized, ""},
		"a kubelet's by a request":        {onRequest(join.NodeClient("a1")), http.StatusForbidden, ""},
		"an agent of what was recovered":  {agent(c.ca, "a1"), 200, "ancestor"},
		"a server of what was recovered":  {server("s2"), http.StatusConflict, "ancestor"},
		"an agent of a third one":         {agent(c.ca, "a1"), http.StatusConflict, "third"},
		"an agent that does not say it":   {agent(c.ca, "a1"), 200, "-"},
		"a removed agent of the ancestor": {agent(c.ca, "removed"), http.StatusForbidden, "ancestor"},
	} {
		keys, err := c.client(t, w.identity).GossipKeys(t.Context(), strings.Trim(cmp.Or(w.cluster, "c1"), "-"))
		if follows := w.cluster == "ancestor" && w.status == 200; follows != (keys.Successor != nil) ||
			follows && (keys.Successor.ID != "c1") {
			t.Errorf("%s: it is to follow %+v", what, keys.Successor)
		}
		var refused *join.RefusedError
		switch {
		case w.status == 200 &&
			(err != nil || keys.Generation != 7 || len(keys.Keys) != 1 || string(keys.Keys[0]) != "a key"):
			t.Errorf("%s: %+v, %v", what, keys, err)
		case w.status != 200 && (!errors.As(err, &refused) || refused.Status != w.status || len(keys.Keys) != 0):
			t.Errorf("%s: %+v, %v, want status %d", what, keys, err, w.status)
		}
	}
	if want := map[string]string{"s2": "ancestor", "a1": ""}; c.unrelated["s2"] != want["s2"] ||
		c.unrelated["a1"] == "" ||
		len(c.unrelated) != len(want) {
		t.Errorf("unrelated are %v", c.unrelated)
	}
}

// An agent of the cluster from which this one was recovered asks every few seconds, and stays there
// where that one is well. So it is told now and then that it asks, and that it has followed when it
// has.
func TestAgentsThatAskTheHeirAreToldNowAndThen(t *testing.T) {
	c := newCluster(t)
	agents := map[string]*join.Client{}
	for _, name := range []string{"a1", "a2"} {
		agents[name] = c.client(t, certificate(t, c.ca, join.NodeClient(name)))
	}
	at := time.Now().Add(time.Hour)
	c.now = func() time.Time { return at }
	for i, step := range []struct {
		after       time.Duration
		agent, of   string
		asks, comes int // lines that are told
	}{
		{agent: "a1", of: "ancestor", asks: 1},
		{after: time.Second, agent: "a1", of: "ancestor"},
		{after: time.Second, agent: "a2", of: "ancestor", asks: 1},
		{after: time.Minute, agent: "a1", of: "ancestor"},
		{after: 10 * time.Minute, agent: "a1", of: "ancestor", asks: 1},
		{agent: "a2", of: "c1", comes: 1},
		{agent: "a2", of: "c1"},
		{agent: "a1", of: "ancestor"},
		{after: -30 * time.Minute, agent: "a1", of: "ancestor", asks: 1}, // the clock was set
	} {
		at = at.Add(step.after)
		before := c.log.String()
		if _, err := agents[step.agent].GossipKeys(t.Context(), step.of); err != nil {
			t.Fatal(err)
		}
		said := strings.TrimPrefix(c.log.String(), before)
		asks, comes := strings.Count(said, "asks for the keys"), strings.Count(said, "has followed")
		if asks != step.asks || comes != step.comes || strings.Count(said, "name="+step.agent) != asks+comes {
			t.Errorf("step %d: told\n%s", i, said)
		}
	}
}
