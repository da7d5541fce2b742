package companytest

import (
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// TestACAThatHasEnded: a server starts when an operator's CA has ended, as with a built-in CA.
// Otherwise the CA could not be replaced.
func TestACAThatHasEnded(t *testing.T) {
	ca := NewRoot(t).Intermediate("Cluster CA", nil)
	external, err := pki.ParseExternal(ca.Chain(), ca.KeyPEM(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	trust, err := pki.NewTrust(pki.NewExternalBundle(external), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trust.Issue(pki.Request{CommonName: "s1", Usage: pki.Server, Names: []string{"s1"}}, key.Public(),
		time.Now().AddDate(50, 0, 0)); err != nil {
		t.Error(err)
	}
}
