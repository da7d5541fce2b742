package revocation

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// FuzzFile: no content of revoked.json keeps a node from starting, but that of a newer version. A
// damaged one is set aside, and a readable one is written as it was.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", `{"format":1}`, `{"format":2}`, `{"format":1,"Entries":null}`, `{"format":1,"Entries":{}}`,
		`{"format":"x"}`, `{"format":1,"Entries":{"list":null,"version":-1}}`,
		`{"format":1,"Entries":{"version":9,"list":[{"kind":"agent","name":"gone","upTo":7},{"kind":"server","name":"s3.1"},{"kind":"certificate","name":"0a"},{"kind":"user","name":"ann","admitted":["x"]}]}}`, strings.Repeat("[", 20_000),
	} {
		f.Add([]byte(seed))
	}
	key, err := pki.GenerateKey()
	if err != nil {
		f.Fatal(err)
	}
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	issued, err := ca.Issue(
		pki.Request{CommonName: "system:node:gone", Organization: []string{"system:nodes"}, Usage: pki.Client},
		key.Public(), time.Now())
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(issued)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(Path(dir), data, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := Load(dir, slog.New(slog.DiscardHandler))
		var is struct{ Format int }
		if err != nil {
			if json.Unmarshal(data, &is) != nil || is.Format <= listFormat {
				t.Fatalf("%q: %v", data, err)
			}
			return
		}
		verdict := list.Check(cert)
		_ = list.CheckCredential(pki.Credential{Name: "gone", Role: pki.RoleAgent})
		_, _ = list.Entries().ForAgents(), list.Proves("gone", 1)
		list.Set(list.Entries().Version+1, list.Entries().List)
		again, err := Load(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatalf("%q, written again: %v", data, err)
		}
		if (again.Check(cert) == nil) != (verdict == nil) {
			t.Errorf("%q: %v, and written again: %v", data, verdict, again.Check(cert))
		}
	})
}

// FuzzOrder: whatever an administrator sends, an order that is taken names the certificates that
// it revokes.
func FuzzOrder(f *testing.F) {
	for _, seed := range []string{`{"serial":"0A","why":"x"}`, `{"user":"ann"}`, `{"user":"system:masters"}`, "{}",
		"null", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "0x1f", "1f:2e"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = ParseSerial(string(data))
		_, _ = OrderFor(data)
		var o Order
		if json.Unmarshal(data, &o) != nil || o.Check() != nil {
			return
		}
		if strings.HasPrefix(o.User, "system:") || strings.HasPrefix(o.User, "barque:") {
			t.Errorf("%q was taken", data)
		}
	})
}
