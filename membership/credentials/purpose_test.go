package credentials

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// ownFiles are the files of the keys of purposes beside the clients'.
var ownFiles = map[pki.Purpose]struct {
	use  pki.KeyUse
	name string
}{pki.Peers: {pki.PeersKey, PeersKey}, pki.FrontProxy: {pki.FrontProxyKey, FrontProxyKey}}

// separate holds the keys of new CAs for all purposes, and returns the bundle that makes them
// known.
func separate(t *testing.T, h *Home) pki.Bundle {
	t.Helper()
	_, b := nextCA(t, h)
	for purpose, file := range ownFiles {
		ca, err := pki.CAOf(purpose, "c1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		key, err := ca.Key()
		if err := errors.Join(err, h.Hold(file.use, key)); err != nil {
			t.Fatal(err)
		}
		if b, err = b.BeginFor(purpose, ca); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// TestSeparateCAsOnDisk: whatever the moment of a crash, a server finds the CAs of each purpose
// with the key of the one that issues. A key that is of no use any more leaves no file.
func TestSeparateCAsOnDisk(t *testing.T) {
	ids, dir, r := newServer(t)
	h := ids.Home
	again := func(step string, keys int) *Home {
		t.Helper()
		restarted, err := LoadHome(dir, readRecord(t, filepath.Join(dir, "record.json")))
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		for _, purpose := range pki.Purposes() {
			if _, err := restarted.Trust.CAsFor(purpose)[0].Key(); err != nil {
				t.Errorf("%s: it cannot issue for %s: %v", step, purpose, err)
			}
		}
		for purpose, file := range ownFiles {
			path := filepath.Join(Dir(dir), file.name)
			info, err := os.Stat(path)
			if keys == 0 && !errors.Is(err, os.ErrNotExist) || keys > 0 && (err != nil || info.Mode().Perm() != 0o600) {
				t.Errorf("%s: %s: %v, %v", step, path, info, err)
			}
			if got := len(restarted.keys[file.use]); got != keys {
				t.Errorf("%s: %d keys for %s, want %d", step, got, purpose, keys)
			}
		}
		return restarted
	}
	advance := func() pki.Bundle {
		t.Helper()
		b, err := h.Trust.Advance(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	crashes := func(step string, b pki.Bundle, held, kept int) {
		t.Helper()
		if err := r.Believe(b); err != nil { // and then the power went
			t.Fatal(err)
		}
		again(step+", a crash between the record and the keys", held)
		if err := h.Adopt(b); err != nil {
			t.Fatal(err)
		}
		if err := again(step+", a crash before keys are dropped", held).Tidy(); err != nil {
			t.Fatal(err)
		}
		again(step+", a crash after keys were dropped", kept)
		if err := h.Tidy(); err != nil {
			t.Fatal(err)
		}
	}
	again("one CA", 0)
	b := separate(t, h)
	again("the keys are held", 1)
	crashes("spreading", b, 1, 1)
	crashes("issuing", advance(), 1, 1)
	crashes("separate", advance(), 1, 1)
	b = separate(t, h)
	again("the next keys are held", 2)
	crashes("spreading again", b, 2, 2)
	undone, err := h.Trust.Bundle().Undo()
	if err != nil {
		t.Fatal(err)
	}
	crashes("given up", undone, 2, 1)
	keys, err := ClusterKeys(dir)
	if err != nil || len(keys) != len(KeyFiles()) {
		t.Errorf("a server that joins gets %d keys, want %d: %v", len(keys), len(KeyFiles()), err)
	}
	for _, file := range ownFiles {
		path := filepath.Join(Dir(dir), file.name)
		has, err := os.ReadFile(path)
		if err := errors.Join(err, os.Remove(path)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadHome(dir, r); err == nil || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "copy the file from another server") {
			t.Errorf("without %s: %v", path, err)
		}
		if err := os.WriteFile(path, has, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// One CA for all again, as earlier versions know it.
	next, b := nextCA(t, h)
	for purpose := range ownFiles {
		if b, err = b.BeginFor(purpose, next); err != nil {
			t.Fatal(err)
		}
	}
	crashes("for one CA, spreading", b, 1, 1)
	crashes("for one CA, issuing", advance(), 1, 0)
	crashes("one CA again", advance(), 0, 0)
	if keys, err := ClusterKeys(dir); err != nil || len(keys) != 2 {
		t.Errorf("%d keys are left, %v", len(keys), err)
	}
}

// TestEachCertificateIsOfItsCA: at each step a server's certificates count at the doors that they
// are for, at the end at no other ones.
func TestEachCertificateIsOfItsCA(t *testing.T) {
	ids, dir, _ := newServer(t)
	purposes := map[string]pki.Purpose{}
	for _, k := range ids.kinds() {
		purposes[k.name] = k.purpose
	}
	if purposes["peer"] != pki.Peers || purposes["front-proxy"] != pki.FrontProxy || len(purposes) != 7 {
		t.Fatalf("%v", purposes)
	}
	counts := func(cert *x509.Certificate) (at []pki.Purpose) {
		for _, p := range pki.Purposes() {
			if ids.Trust.VerifyFor(p, cert, nil, x509.ExtKeyUsageAny, time.Now()) == nil {
				at = append(at, p)
			}
		}
		return at
	}
	b := separate(t, ids.Home)
	for _, step := range []string{"spreading", "issuing", "settled"} {
		if err := ids.Home.Adopt(b); err != nil {
			t.Fatal(err)
		}
		for _, i := range ids.identities() { // those of the step before
			if !slices.Contains(counts(i.Certificate().Leaf), purposes[i.Name()]) {
				t.Errorf("%s: the certificate %s of the step before does not count", step, i.Name())
			}
		}
		if err := ids.upkeep().Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, i := range ids.identities() {
			at := counts(i.Certificate().Leaf)
			if !slices.Contains(at, purposes[i.Name()]) || step == "settled" && len(at) != 1 {
				t.Errorf("%s: the certificate %s counts for %v", step, i.Name(), at)
			}
		}
		if got := ids.proof.proof().Trust; got != b.Generation {
			t.Errorf("%s: the generation %d is proven, want %d", step, got, b.Generation)
		}
		if step != "settled" {
			var err error
			if b, err = ids.Trust.Advance(time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	names := map[string]int{}
	for _, ca := range ids.Trust.EveryCA() {
		names[NameOf(ids.Trust, ca)]++
	}
	if len(names) != 3 || names["ca"] != 1 || names["peers-ca"] != 1 || names["front-proxy-ca"] != 1 {
		t.Errorf("the CAs are called %v", names)
	}
	// What the API server shows to extensions is in files.
	text, err := os.ReadFile(filepath.Join(dir, "front-proxy.crt"))
	if err != nil || string(text) != string(pki.ChainPEM(ids.proxy.Certificate())) {
		t.Errorf("the file has another certificate, %v", err)
	}
}
