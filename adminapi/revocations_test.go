package adminapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
)

// deeds are the acts on a book.
type deeds []string

func (d *deeds) RevokeCertificate(
	_ context.Context, serial, name string, _ time.Time, by, _ string,
) (revocation.Entry, error) {
	*d = append(*d, "revoke "+serial+" by "+by)
	return revocation.Entry{ID: serial, Name: name}, nil
}

func (d *deeds) RevokeUser(_ context.Context, name, by, _ string) (revocation.Entry, error) {
	*d = append(*d, "revoke user "+name+" by "+by)
	return revocation.Entry{Kind: revocation.User, Name: name}, nil
}

func (d *deeds) Readmit(_ context.Context, name string, serials []string, by, _ string) (revocation.Entry, error) {
	switch name {
	case "a8":
		return revocation.Entry{}, fmt.Errorf("a8: %w", revocation.ErrNotRevoked)
	case "a9":
		return revocation.Entry{}, fmt.Errorf("a9: %w", revocation.ErrKeyUnknown)
	}
	*d = append(*d, strings.TrimSpace("readmit "+name+" by "+by+" "+strings.Join(serials, " ")))
	return revocation.Entry{Name: name}, nil
}

// inUse are the certificates of a cluster: ca is a CA's, 0c one of a member by its name, 02 that of
// server s2 for others, 03 in admin.kubeconfig of s3. Of others without a name silent is unsure.
func inUse(silent ...string) InUse {
	held := map[string]*Held{
		"02": {"s2", pki.RoleServer, credentials.CertificateInfo{Name: "peer", Subject: "CN=s2,O=barque:servers"}},
		"03": {"s3", pki.RoleServer,
			credentials.CertificateInfo{Name: "admin", Subject: "CN=barque:admin,O=system:masters"}},
		"04": {"a1", pki.RoleAgent,
			credentials.CertificateInfo{Name: "api-client", Subject: "CN=system:node:a1,O=system:nodes"}},
	}
	return InUse{IsCA: func(serial string) bool { return serial == "ca" },
		Needed: func(o revocation.Order) error {
			if o.Serial == "0c" || o.Holder == "s1.x" {
				return errors.New("it is a certificate of a member")
			}
			return nil
		},
		Find: func(_ context.Context, serial string) (*Held, []string) {
			if h := held[serial]; h != nil {
				return h, nil
			}
			return nil, silent
		},
		Serials: func(_ context.Context, agent string) []string {
			if agent == "a1" {
				return []string{"04"}
			}
			return nil
		}}
}

// TestASerialNumberIsLookedUp: a serial number alone shuts out no member without force, nor one
// that may have it, and no CA at all. The answer names the holder.
func TestASerialNumberIsLookedUp(t *testing.T) {
	for what, c := range map[string]struct {
		body   string
		silent []string
		status int
		says   string
	}{
		"a server's":         {`{"serial":"02"}`, nil, http.StatusConflict, `"peer" of server s2`},
		"a server's, forced": {`{"serial":"02","force":true}`, nil, http.StatusOK, `"name":"s2","id":"02"`},
		"an agent's":         {`{"serial":"04"}`, nil, http.StatusConflict, `"api-client" of agent a1`},
		"an agent's, forced": {`{"serial":"04","force":true}`, nil, http.StatusOK,
			`"node":"a1","role":"agent","use":"api-client"`},
		"an administrator's": {`{"serial":"03"}`, []string{"s2"}, http.StatusOK,
			`"node":"s3","role":"server","use":"admin"`},
		"a CA's":         {`{"serial":"ca"}`, nil, http.StatusConflict, "barque cert rotate --ca"},
		"a CA's, forced": {`{"serial":"ca","force":true}`, nil, http.StatusConflict, "barque cert rotate --ca"},
		"nobody's":       {`{"serial":"0b"}`, nil, http.StatusOK, `"id":"0b"`},
		"perhaps a member's": {`{"serial":"0b"}`, []string{"a2", "s3"}, http.StatusConflict,
			"a2, s3; to revoke it all the same, give --force"},
		"that, forced":           {`{"serial":"0b","force":true}`, []string{"a2"}, http.StatusOK, `"id":"0b"`},
		"a user's, by its file":  {`{"serial":"0b","name":"bob"}`, []string{"a2"}, http.StatusOK, `"name":"bob"`},
		"a member's, by another": {`{"serial":"02","name":"bob"}`, nil, http.StatusConflict, `server s2`},
	} {
		var done deeds
		h := RevocationsHandler(func() *revocation.Entries { return &revocation.Entries{} }, &done, inUse(c.silent...),
			slog.New(slog.DiscardHandler))
		w := httptest.NewRecorder()
		h.ServeHTTP(w,
			by(clusterusers.AdminGroup,
				httptest.NewRequestWithContext(t.Context(), http.MethodPost, RevocationsPath,
					strings.NewReader(c.body))))
		if w.Code != c.status || len(done) > 0 != (c.status == http.StatusOK) ||
			!strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d, %q, does %q", what, w.Code, w.Body, done)
		}
	}
}

// TestFind: certificates are found at servers and agents. A member that does not answer, shows its
// credential for gossip alone, or is not known to gossip may have any.
func TestFind(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string, serials ...string) credentials.NodeCertificates {
		n := credentials.NodeCertificates{Node: name, Role: pki.RoleServer}
		for _, serial := range serials {
			n.Certificates = append(n.Certificates,
				credentials.CertificateInfo{Name: "peer", Subject: "CN=" + name, Serial: serial})
		}
		return n
	}
	s := &Certificates{Self: "s1", Own: func() credentials.NodeCertificates { return of("s1", "a1") },
		Exchange: &exchanges{}, Trust: pki.TrustOf(ca),
		Servers: func() []string { return []string{"s1", "s2", "s3"} },
		Agents:  func() []string { return []string{"a1", "a9"} },
		Call: func(_ context.Context, _, name, _ string, out any) error {
			if name == "s3" {
				return errors.New("it is off")
			}
			*out.(*credentials.NodeCertificates) = of(name, "b2", "c2")
			return nil
		},
		Pool: agentReports{"a1": `[{"name":"api-client","subject":"CN=system:node:a1,O=system:nodes","serial":"d"}]`,
			"a2": ""}}
	for serial, want := range map[string]string{"a1": "s1", "c2": "s2", "0d": "a1"} {
		if held, _ := s.Find(t.Context(), serial); held == nil || held.Node != want {
			t.Errorf("%s: %+v", serial, held)
		}
	}
	if held, silent := s.Find(t.Context(), "77"); held != nil || !slices.Equal(silent, []string{"a2", "a9", "s3"}) {
		t.Errorf("an unknown one: %+v, %q", held, silent)
	}
	if got := s.Serials(t.Context(), "a1"); !slices.Equal(got, []string{"0d"}) {
		t.Errorf("of an agent: %q", got)
	}
	if !s.IsCA(revocation.SerialOf(ca.Certificate())) || s.IsCA("0d") {
		t.Error("the CA is not known by its serial number")
	}
}

// agentReports are agents with their reports; one without a report is dead.
type agentReports map[string]string

func (p agentReports) Members() (all []gossip.Member) {
	for name, report := range p {
		m := gossip.Member{Name: name, Role: pki.RoleAgent, State: gossip.Alive}
		if report == "" {
			m.State = gossip.Dead
		}
		all = append(all, m)
	}
	return all
}

func (p agentReports) AboutOf(_ context.Context, name string) (json.RawMessage, error) {
	return json.RawMessage(p[name]), nil
}

// TestRevokedCertificatesAreMarked: the list of certificates says which are revoked, and the way
// out.
func TestRevokedCertificatesAreMarked(t *testing.T) {
	var entries revocation.Entries
	if err := json.Unmarshal(
		[]byte(
			`{"entries":[{"kind":"certificate","id":"0d","name":"system:node:n1"},{"kind":"certificate","id":"0e","readmitted":true},{"kind":"certificate","id":"0f"}]}`), &entries); err != nil {
		t.Fatal(err)
	}
	for role, says := range map[string]string{pki.RoleServer: "barque cert rotate --server n1",
		pki.RoleAgent: "barque cert readmit n1"} {
		n := credentials.NodeCertificates{Node: "n1", Role: role,
			Certificates: []credentials.CertificateInfo{{Serial: "d"}, {Serial: "e"}, {}, {Serial: "f"}}}
		MarkRevoked(&n, &entries)
		c := n.Certificates
		if !strings.Contains(c[0].Warning, says) || c[1].Warning != "" || c[2].Warning != "" {
			t.Errorf("%s: %+v", role, c)
		}
		// An entry without the agent's name is not taken back for it.
		if role == pki.RoleAgent && !strings.Contains(c[3].Warning, "--rejoin") {
			t.Errorf("without a name: %+v", c[3])
		}
	}
}

// TestRevocationsAreGuarded: an administrator shuts out neither itself nor a present member without
// force, and others than administrators may do nothing.
func TestRevocationsAreGuarded(t *testing.T) {
	var done deeds
	h := RevocationsHandler(func() *revocation.Entries { return &revocation.Entries{} }, &done, inUse(),
		slog.New(slog.DiscardHandler))
	for what, c := range map[string]struct {
		body   string
		groups string
		status int
		does   string
	}{
		"another one":        {`{"serial":"0b"}`, "system:masters", http.StatusOK, "revoke 0b by ann"},
		"her own":            {`{"serial":"0a"}`, "system:masters", http.StatusConflict, ""},
		"her own, forced":    {`{"serial":"0a","force":true}`, "system:masters", http.StatusOK, "revoke 0a by ann"},
		"a member's":         {`{"serial":"0c"}`, "system:masters", http.StatusConflict, ""},
		"a member's, by ID":  {`{"serial":"0d","holder":"s1.x"}`, "system:masters", http.StatusConflict, ""},
		"a member's, forced": {`{"serial":"0c","force":true}`, "system:masters", http.StatusOK, "revoke 0c by ann"},
		"a user":             {`{"user":"bob"}`, "system:masters", http.StatusOK, "revoke user bob by ann"},
		"a user, by ann":     {`{"user":"bob"}`, "barque:admins", http.StatusOK, "revoke user bob by ann"},
		"herself":            {`{"user":"ann"}`, "barque:admins", http.StatusConflict, ""},
		"herself, forced": {`{"user":"ann","force":true}`, "barque:admins", http.StatusOK,
			"revoke user ann by ann"},
		"a part": {`{"user":"barque:front-proxy","force":true}`, "system:masters", http.StatusBadRequest,
			""},
		"a node":               {`{"user":"system:node:a1","force":true}`, "system:masters", http.StatusBadRequest, ""},
		"a user and serial":    {`{"user":"bob","serial":"0b"}`, "system:masters", http.StatusBadRequest, ""},
		"a user, by somebody":  {`{"user":"bob"}`, "users", http.StatusForbidden, ""},
		"an agent":             {`{"readmit":"a1"}`, "system:masters", http.StatusOK, "readmit a1 by ann 04"},
		"not revoked":          {`{"readmit":"a8"}`, "system:masters", http.StatusNotFound, ""},
		"without a key":        {`{"readmit":"a9"}`, "system:masters", http.StatusConflict, ""},
		"an impossible name":   {`{"readmit":"../a1"}`, "system:masters", http.StatusBadRequest, ""},
		"both":                 {`{"readmit":"a1","serial":"0b"}`, "system:masters", http.StatusBadRequest, ""},
		"nothing":              {`{}`, "system:masters", http.StatusBadRequest, ""},
		"by somebody":          {`{"serial":"0b"}`, "users", http.StatusForbidden, ""},
		"readmit, by somebody": {`{"readmit":"a1"}`, "users", http.StatusForbidden, ""},
	} {
		done = nil
		r := httptest.NewRequestWithContext(
			request.WithUser(t.Context(), &user.DefaultInfo{Name: "ann", Groups: []string{c.groups}}), http.MethodPost,
			RevocationsPath, strings.NewReader(c.body))
		r.TLS = &tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{
				{SerialNumber: big.NewInt(10), Subject: pkix.Name{CommonName: "ann"}}}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var want deeds
		if c.does != "" {
			want = deeds{c.does}
		}
		if w.Code != c.status || !slices.Equal(done, want) {
			t.Errorf("%s: %d, %q, does %q", what, w.Code, w.Body, done)
		}
	}
}
