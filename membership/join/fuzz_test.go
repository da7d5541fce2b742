package join_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// answer is one whose request may have a deadline.
type answer struct{ *httptest.ResponseRecorder }

func (answer) SetReadDeadline(time.Time) error { return nil }

// FuzzRequests sends whatever bodies to each path of joining. No machine gets in without a token's
// signature, no body makes the server fail, and each is answered in JSON.
func FuzzRequests(f *testing.F) {
	c := newCluster(f)
	paths := []string{"node", "server", "agent", "renew", "gossip-keys", "shared-key", "revoked", "ca", ""}
	sealing, err := pki.SealingKeyOf("an attempt")
	if err != nil {
		f.Fatal(err)
	}
	request, err := json.Marshal(
		join.Request{Name: "n1", Address: "10.0.0.5", Clock: time.Now(), Role: "agent", TokenID: c.token.ID,
			Nonce: []byte("n"), SealTo: sealing.Public(),
			GossipKey: make([]byte, ed25519.PublicKeySize),
			CSR:       []byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")})
	if err != nil {
		f.Fatal(err)
	}
	for _, in := range []any{join.SignedRequest{Request: request, Signature: make([]byte, ed25519.SignatureSize)},
		join.SignedRequest{Request: []byte("null")},
		join.SignedRequest{Request: bytes.ReplaceAll(request, []byte(`"agent"`), []byte(`"server"`)),
			Signature: []byte("x")},
		join.Request{Token: "b1." + c.ca.Digest() + ".abcdef.0000000000000000", Name: "n1"},
		join.Renewal{CSR: []byte("x"), Address: "10.0.0.5"},
		map[string]any{"cluster": "c1", "have": 1, "digest": "x"}} {
		body, err := json.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		for i := range paths {
			f.Add(byte(i), body)
		}
	}
	f.Add(byte(0), []byte(strings.Repeat("[", 10_000)))
	f.Fuzz(func(t *testing.T, path byte, body []byte) {
		r := httptest.NewRequest(http.MethodPost, join.Prefix+paths[int(path)%len(paths)], bytes.NewReader(body))
		r.RemoteAddr = "127.0.0.1:1"
		r.TLS = nil
		w := answer{httptest.NewRecorder()}
		// A handler of its own would not run out of an address' allowance.
		handler := join.NewHandler(c.config)
		handler.ServeHTTP(w, r)
		for len(c.audited) > 0 {
			<-c.audited
		}
		if w.Code < 400 || w.Code >= 500 {
			t.Errorf("%s %q: %d %s", r.URL.Path, body, w.Code, w.Body)
		}
		if len(c.uses)+len(c.admitted) > 0 {
			t.Errorf("%q took a use of a token: %v, %v", body, c.uses, c.admitted)
		}
	})
}

// FuzzSigned: a request whose signature is good, with whatever is in it. No holder of a token makes
// the server fail, or gets anything for a name or an address that is no machine's.
func FuzzSigned(f *testing.F) {
	c := newCluster(f)
	key, err := c.token.Key()
	if err != nil {
		f.Fatal(err)
	}
	own, err := pki.GenerateKey()
	if err != nil {
		f.Fatal(err)
	}
	csr, err := pki.SigningRequest(own)
	if err != nil {
		f.Fatal(err)
	}
	sealing, err := pki.SealingKeyOf("an attempt")
	if err != nil {
		f.Fatal(err)
	}
	for _, role := range []string{"agent", "server", "", "Agent"} {
		request, err := json.Marshal(
			join.Request{Name: "n1", Address: "10.0.0.5", Clock: time.Now(), Role: role, TokenID: c.token.ID,
				Nonce: []byte("n"), SealTo: sealing.Public(),
				GossipKey: make([]byte, ed25519.PublicKeySize), CSR: csr, Labels: map[string]string{"a": "b"}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(request)
		for from, to := range map[string]string{"10.0.0.5": "::ffff:10.0.0.5", `"n1"`: `"kubernetes"`,
			`"name"`: `"Name"`, "n1": "../n1"} {
			f.Add(bytes.ReplaceAll(request, []byte(from), []byte(to)))
		}
	}
	f.Fuzz(func(t *testing.T, request []byte) {
		signature := ed25519.Sign(key, append([]byte("barque join request v2\x00"), request...))
		body, err := json.Marshal(join.SignedRequest{Request: request, Signature: signature})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, join.Prefix+"node", bytes.NewReader(body))
		r.RemoteAddr = "127.0.0.1:1"
		w := answer{httptest.NewRecorder()}
		join.NewHandler(c.config).ServeHTTP(w, r)
		for len(c.audited) > 0 {
			<-c.audited
		}
		if w.Code >= 500 {
			t.Errorf("%q: %d %s", request, w.Code, w.Body)
		}
		if w.Code != http.StatusOK {
			return
		}
		var in join.Request
		if err := json.Unmarshal(request, &in); err != nil || in.TokenID != c.token.ID ||
			strings.ContainsAny(in.Name, "/ \x00") || in.Name == "" || in.Name == "taken" || in.Address == "10.0.0.1" {
			t.Errorf("%q got in (%v)", request, err)
		}
	})
}
