package credentials

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

// TestCAWarning: the warning comes in time for the CA's own life, and says how it is mended.
func TestCAWarning(t *testing.T) {
	now, day := time.Now(), 24*time.Hour
	builtIn, err := pki.NewAuthority("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	external := func(days int) *pki.Authority {
		ca := companytest.NewRoot(t).Intermediate("Cluster CA",
			func(c *x509.Certificate) { c.NotAfter = now.AddDate(0, 0, days) })
		e, err := pki.ParseExternal(ca.Chain(), ca.KeyPEM(), now)
		if err != nil {
			t.Fatal(err)
		}
		return e.Authority()
	}
	for name, c := range map[string]struct {
		ca       *pki.Authority
		brought  bool // the CA for clients
		lifetime time.Duration
		left     time.Duration // of the CA's life
		want     string        // empty: no warning
	}{
		"built-in, in its first years": {builtIn, false, 365 * day, 731 * day, ""},
		"built-in, in its last years":  {builtIn, false, 365 * day, 729 * day, "with `barque cert rotate --ca`"},
		"built-in, beside one brought": {builtIn, true, 365 * day, 729 * day,
			"both with `barque cert rotate --ca --ca-file CHAIN"},
		"external, of a year":       {external(360), true, 365 * day, 125 * day, ""},
		"external, its last third":  {external(360), true, 365 * day, 115 * day, "--ca-file CHAIN"},
		"external, of months":       {external(60), true, 365 * day, 31 * day, ""},
		"external, its last month":  {external(60), true, 365 * day, 29 * day, "--ca-file CHAIN"},
		"in the status":             {external(360), true, 0, 31 * day, ""},
		"in the status, last month": {external(360), true, 0, 29 * day, "a CA with a new key signed"},
	} {
		got := CAWarning(c.ca, c.brought, c.lifetime, c.ca.Certificate().NotAfter.Add(-c.left))
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	registry, ca := prometheus.NewPedanticRegistry(), external(90)
	if err := (&Server{Trust: pki.TrustOf(ca)}).RegisterCA(registry); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 ||
		int64(families[0].Metric[0].GetGauge().GetValue()) != ca.Certificate().NotAfter.Unix() {
		t.Errorf("%v: %v", families, err)
	}
}
