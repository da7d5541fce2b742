package node

import (
	"errors"
	"testing"
	"time"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/pki"
)

// newServer is a server with its certificates, which does not run.
func newServer(t *testing.T) (*credentials.Server, *options.Options, *enroll.Record) {
	t.Helper()
	o := testOptions(t, "s1")
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := credentials.NewServer(t.Context(), o.Certificates(o.Settings, r, nil, quiet()))
	if err != nil {
		t.Fatal(err)
	}
	return ids, o, r
}

// nextCA stores the key of a new CA, and returns it with the bundle that spreads it.
func nextCA(t *testing.T, h *credentials.Home) (*pki.Authority, pki.Bundle) {
	t.Helper()
	next, err := pki.NextAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := next.Key()
	if err != nil {
		t.Fatal(err)
	}
	account, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := h.Trust.Bundle().Begin(next, account.Public(), time.Now())
	if err := errors.Join(err, h.Hold(pki.CAKey, key), h.Hold(pki.AccountKey, account)); err != nil {
		t.Fatal(err)
	}
	return next, b
}

// A restart with old flags continues: a token of a retired CA was made for this cluster.
func TestAnOldTokenInTheUnitFileKeepsNobodyFromStarting(t *testing.T) {
	ids, o, r := newServer(t)
	token, err := pki.NewToken(ids.Trust.Digest())
	if err != nil {
		t.Fatal(err)
	}
	_, b := nextCA(t, ids.Home)
	for range 3 {
		if err := ids.Home.Adopt(b); err != nil {
			t.Fatal(err)
		}
		b, _ = ids.Trust.Advance(time.Now())
	}
	if len(r.CA().CAs) != 1 || r.CA().Knows("0") {
		t.Fatalf("%+v", r.CA())
	}
	if saved, err := enroll.Load(o.DataDir); err != nil || saved.CA().Generation != r.CA().Generation {
		t.Fatalf("the next process would believe %+v, %v", saved, err)
	}
	o.Join, o.Token = "https://10.0.0.9:6443", token.String()
	if again, err := enlistServer(t.Context(), o, quiet()); err != nil || again.Cluster.ID != r.Cluster.ID {
		t.Errorf("%+v, %v", again, err)
	}
}
