package join_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// TestRequestsAreAudited: each grant and each refusal has its record, with a user that was proven
// and without a secret.
func TestRequestsAreAudited(t *testing.T) {
	c := newCluster(t)
	other := newCluster(t)
	servers := []string{join.ServersOrganization}
	server := func(name string) *tls.Certificate {
		return certificate(t, c.ca, pki.Request{CommonName: name, Organization: servers, Usage: pki.Client})
	}
	unknown := c.request()
	unknown.Token = pki.Token{CADigest: c.token.CADigest, ID: "aaaaaa", Secret: "0123456789abcdef"}.String()
	taken := c.request()
	taken.Name = "taken"
	garbage := fmt.Sprintf(`{"token":"not-a-token-but-secret","name":%q}`, strings.Repeat("x", 1000))
	a := c.agent(t)
	for name, do := range map[string]struct {
		call   func() error
		path   string
		user   string
		group  string
		status int
		claims map[string]string
	}{
		"a server joins": {func() error { _, err := c.client(t, nil).Server(t.Context(), c.request()); return err },
			"node", "system:bootstrap:" + c.token.ID, "system:bootstrappers", http.StatusOK,
			map[string]string{join.ClaimToken: c.token.ID, join.ClaimNode: "n1", join.ClaimRole: token.Server,
				join.ClaimAddress: "10.0.0.5"}},
		"an unknown token": {func() error { _, err := c.client(t, nil).Server(t.Context(), unknown); return err },
			"server", "", "", http.StatusForbidden, map[string]string{join.ClaimToken: "aaaaaa", join.ClaimNode: "n1"}},
		"a taken name": {func() error { _, err := c.client(t, nil).Server(t.Context(), taken); return err },
			"node", "", "", http.StatusConflict, map[string]string{join.ClaimNode: "taken"}},
		"no token": {func() error { return post(c.address+join.Prefix+"server", garbage) },
			"server", "", "", http.StatusBadRequest, map[string]string{join.ClaimToken: ""}},
		"a shared key": {func() error { _, err := c.client(t, server("s1")).SharedKey(t.Context(), "d1"); return err },
			"shared-key", "s1", servers[0], http.StatusOK,
			map[string]string{join.ClaimKey: "d1", join.ClaimNode: "s1"}},
		"a shared key for a server that is no member": {
			func() error { _, err := c.client(t, server("ghost")).SharedKey(t.Context(), "d1"); return err },
			"shared-key", "ghost", servers[0], http.StatusForbidden, map[string]string{join.ClaimNode: "ghost"}},
		"a shared key with a forged certificate": {func() error {
			forged := certificate(t, other.ca, pki.Request{CommonName: "s1", Organization: servers, Usage: pki.Client})
			_, err := c.client(t, forged).SharedKey(t.Context(), "d1")
			return err
		}, "shared-key", "", "", http.StatusUnauthorized, map[string]string{join.ClaimNode: "s1"}},
		"gossip keys": {func() error {
			_, err := c.client(t, certificate(t, c.ca, join.NodeClient("a1"))).GossipKeys(t.Context(), "c1")
			return err
		}, "gossip-keys", "system:node:a1", "system:nodes", http.StatusOK, nil},
		"gossip keys of a removed agent": {func() error {
			_, err := c.client(t, certificate(t, c.ca, join.NodeClient("removed"))).GossipKeys(t.Context(), "c1")
			return err
		}, "gossip-keys", "system:node:removed", "system:nodes", http.StatusForbidden, nil},
		"a renewal": {func() error {
			_, err := c.client(t, a.identity(t)).Renew(t.Context(),
				join.Renewal{CSR: a.csr, GossipKey: a.gossip, Address: "10.0.0.7"})
			return err
		}, "renew", "system:node:n1", "system:nodes", http.StatusOK, map[string]string{join.ClaimAddress: "10.0.0.7"}},
	} {
		t.Run(name, func(t *testing.T) {
			for len(c.audited) > 0 {
				<-c.audited
			}
			if err := do.call(); (err == nil) != (do.status == http.StatusOK) {
				t.Fatal(err)
			}
			if len(c.audited) != 1 {
				t.Fatalf("%d records, want one", len(c.audited))
			}
			got := <-c.audited
			if got.User != do.user || got.Status != do.status || got.Request.URL.Path != join.Prefix+do.path ||
				strings.Join(got.Groups, ",") != do.group {
				t.Errorf("%s %v %d %s, want %s %s %d", got.User, got.Groups, got.Status, got.Request.URL.Path, do.user,
					do.group, do.status)
			}
			if (got.Reason == "") != (do.status == http.StatusOK) || got.Received.IsZero() {
				t.Errorf("reason %q, at %s", got.Reason, got.Received)
			}
			for claim, want := range do.claims {
				if got.Claims[claim] != want {
					t.Errorf("%s is %q, want %q", claim, got.Claims[claim], want)
				}
			}
			got.Request = nil
			text := fmt.Sprintf("%+v", got)
			if len(text) > 2000 {
				t.Errorf("%d bytes", len(text))
			}
			for _, secret := range []string{c.token.Secret, c.token.String(), "0123456789abcdef", "not-a-token",
				"key of d1", "a key", "BEGIN"} {
				if strings.Contains(text, secret) {
					t.Errorf("the record has %q: %s", secret, text)
				}
			}
		})
	}
}

// post sends a request that no client of package join sends. It returns an error unless it is
// granted.
func post(url, body string) error {
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	response, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}
