package join_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// middle ends TLS between machines and a server, with a certificate of a server. It records all,
// and may change requests.
type middle struct {
	address  string
	recorded bytes.Buffer
	posted   []byte // body of the last request
	change   func(body []byte) []byte
}

func newMiddle(t *testing.T, c *cluster) *middle {
	t.Helper()
	target, err := url.Parse(c.address)
	if err != nil {
		t.Fatal(err)
	}
	m := &middle{}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		ModifyResponse: func(r *http.Response) error {
			body, err := io.ReadAll(r.Body)
			m.recorded.Write(body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			return err
		}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		if m.change != nil && len(body) > 0 {
			body = m.change(body)
		}
		m.recorded.Write(body)
		m.posted = body
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		proxy.ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{
			*certificate(t, c.ca,
				pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Server,
					Names: []string{"10.0.0.1"}})}}
	server.StartTLS()
	t.Cleanup(server.Close)
	m.address = server.URL
	return m
}

// TestWhoEndsTLSGetsNothing: neither the token, nor the keys, nor a place in the cluster.
func TestWhoEndsTLSGetsNothing(t *testing.T) {
	c := newCluster(t)
	m := newMiddle(t, c)
	real := c.address
	c.address = m.address
	r := c.request()
	r.Attempt = "the machine's own"
	grant, err := c.client(t, nil).Server(t.Context(), r)
	if err != nil || string(grant.Keys["ca.key"]) != "secret" {
		t.Fatalf("%+v, %v", grant, err)
	}
	var request join.SignedRequest
	if err := json.Unmarshal(m.posted, &request); err != nil ||
		!strings.Contains(string(request.Request), `"name":"n1"`) {
		t.Fatalf("nothing was recorded: %s, %v", m.posted, err)
	}
	for name, secret := range map[string]string{"the token": c.token.Secret, "a key": "c2VjcmV0",
		"a key in clear": "ca.key", "the attempt": r.Attempt} {
		if strings.Contains(m.recorded.String()+string(request.Request), secret) {
			t.Errorf("%s was recorded: %s", name, m.recorded.String())
		}
	}

	// It replays the request, or puts its own key, name or role there.
	thief, err := pki.SealingKeyOf("the thief's own")
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*join.Request)) []byte {
		var inner join.Request
		if err := json.Unmarshal(request.Request, &inner); err != nil {
			t.Fatal(err)
		}
		change(&inner)
		data, err := json.Marshal(inner)
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(join.SignedRequest{Request: data, Signature: request.Signature})
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for name, attack := range map[string]struct {
		body   []byte
		status int
	}{
		"replayed":     {m.posted, http.StatusOK}, // sealed to the machine's key again
		"another key":  {with(func(r *join.Request) { r.SealTo = thief.Public() }), http.StatusForbidden},
		"another name": {with(func(r *join.Request) { r.Name = "s9" }), http.StatusForbidden},
		"another role": {with(func(r *join.Request) { r.Role, r.GossipKey = token.Agent, make([]byte, 32) }),
			http.StatusForbidden},
	} {
		response, err := client.Post(real+join.Prefix+"node", "application/json", bytes.NewReader(attack.body))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != attack.status || strings.Contains(string(body), "ca.key") {
			t.Errorf("%s: %s %s, %v", name, response.Status, body, err)
		}
		var sealed join.Sealed
		if json.Unmarshal(body, &sealed) == nil && len(sealed.Sealed) > 0 {
			if plain, err := thief.Open(sealed.Sealed, nil); err == nil {
				t.Errorf("%s: the thief has opened %s", name, plain)
			}
		}
	}
	for _, a := range c.attempts {
		if a != c.attempts[0] {
			t.Errorf("the replay counts as another attempt: %+v", c.attempts)
		}
	}

	// It changes requests under way: the machine is refused, and gets no false answer.
	m.change = func(body []byte) []byte {
		request = join.SignedRequest{}
		if err := json.Unmarshal(body, &request); err != nil {
			panic(err)
		}
		return with(func(r *join.Request) { r.SealTo = thief.Public() })
	}
	var refused *join.RefusedError
	if grant, err := c.client(t, nil).Server(t.Context(), r); !errors.As(err, &refused) || len(grant.Keys) != 0 {
		t.Errorf("%+v, %v", grant, err)
	}
}

// TestRetriesOfAnAttempt of one machine are the same to the cluster, also after a restart; those of
// another machine are not.
func TestRetriesOfAnAttempt(t *testing.T) {
	c := newCluster(t)
	for _, text := range []string{"x", "x", "y", ""} {
		r := c.request()
		r.Attempt = text
		if _, err := c.client(t, nil).Server(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if a := c.attempts; a[0] != a[1] || a[0] == a[2] || a[0] == a[3] || a[2] == a[3] || a[0].Secret == "" {
		t.Errorf("%+v", a)
	}
}

// TestAFormerTokenIsShown to servers of every version, and one of the new form to none.
func TestAFormerTokenIsShown(t *testing.T) {
	c := newCluster(t)
	r := c.request()
	r.Token = pki.Token{CADigest: c.token.CADigest, ID: c.token.ID, Secret: former}.String()
	grant, err := c.client(t, nil).Server(t.Context(), r)
	if err != nil || string(grant.Keys["ca.key"]) != "secret" {
		t.Fatalf("%+v, %v", grant, err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	body := fmt.Sprintf(`{"token":%q,"name":"s2","address":"10.0.0.2"}`, c.token)
	response, err := client.Post(c.address+join.Prefix+"server", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("shown as a former one: %s", response.Status)
	}
}

// TestAnEarlierServer does not know signed requests: the machine says where it can join.
func TestAnEarlierServer(t *testing.T) {
	c := newCluster(t)
	earlier := httptest.NewUnstartedServer(http.NewServeMux())
	earlier.TLS = &tls.Config{
		Certificates: []tls.Certificate{
			*certificate(t, c.ca,
				pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Server})}}
	earlier.StartTLS()
	t.Cleanup(earlier.Close)
	c.address = earlier.URL
	if _, err := c.client(t, nil).Server(t.Context(), c.request()); err == nil ||
		!strings.Contains(err.Error(), "give the address of an upgraded server") ||
		strings.Contains(err.Error(), c.token.Secret) {
		t.Errorf("%v", err)
	}
}

// TestDecisions: grants and refusals are reported with the token and the machine, and logged once a
// minute.
func TestDecisions(t *testing.T) {
	c := newCluster(t)
	now := time.Now()
	c.now = func() time.Time { return now }
	if _, err := c.client(t, nil).Server(t.Context(), c.request()); err != nil {
		t.Fatal(err)
	}
	bad := c.request()
	bad.Token = pki.Token{CADigest: c.token.CADigest, ID: "aaaaaa", Secret: strings.Repeat("0", 26)}.String()
	for range 3 {
		if _, err := c.client(t, nil).Server(t.Context(), bad); err == nil {
			t.Fatal("it got in")
		}
	}
	now = now.Add(time.Minute)
	if _, err := c.client(t, nil).Server(t.Context(), bad); err == nil {
		t.Fatal("it got in")
	}
	if len(c.decided) != 5 {
		t.Fatalf("%+v", c.decided)
	}
	granted, refused := c.decided[0], c.decided[1]
	host, _, err := net.SplitHostPort(granted.Client)
	if err != nil || host != "127.0.0.1" {
		t.Errorf("from %q", granted.Client)
	}
	granted.Client = ""
	if want := (join.Decision{Act: join.ActJoin, Granted: true, Role: token.Server, Name: "n1", Address: "10.0.0.5",
		TokenID: c.token.ID}); granted != want {
		t.Errorf("%+v, want %+v", granted, want)
	}
	if refused.Granted || refused.TokenID != "aaaaaa" || refused.Reason == "" {
		t.Errorf("%+v", refused)
	}
	log := c.log.String()
	if n := strings.Count(log, "join request refused"); n != 2 || !strings.Contains(log, "unsaidBefore=2") ||
		!strings.Contains(log, "tokenID="+c.token.ID) {
		t.Errorf("%d refusals are logged:\n%s", n, log)
	}
}
