package enroll

import (
	"crypto"
	"encoding/json"
	"testing"
	"time"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/pki"
)

// TestTrustIn: the CAs in a backup open what they have sealed, and nothing of another CA.
func TestTrustIn(t *testing.T) {
	ca, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := ca.Key()
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string][]byte{}
	if secrets[credentials.CAKey], err = pki.MarshalKeys([]crypto.Signer{key}); err != nil {
		t.Fatal(err)
	}
	if secrets[secretCA], err = json.Marshal(pki.NewBundle(ca)); err != nil {
		t.Fatal(err)
	}
	trust, err := TrustIn(secrets)
	if err != nil {
		t.Fatal(err)
	}
	for who, want := range map[*pki.Authority]bool{ca: true, other: false} {
		sealed, err := who.Seal("a test", []byte("x"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := trust.Open("a test", sealed, nil); (err == nil) != want || want && string(plain) != "x" {
			t.Errorf("%t: %q, %v", want, plain, err)
		}
	}
	for _, name := range []string{secretCA, credentials.CAKey} {
		has := secrets[name]
		secrets[name] = []byte("x")
		if _, err := TrustIn(secrets); err == nil {
			t.Errorf("without %s there is one", name)
		}
		secrets[name] = has
	}
}
