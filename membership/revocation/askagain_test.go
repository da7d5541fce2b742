package revocation

import (
	"crypto/ed25519"
	"crypto/x509"
	"testing"
)

// TestAMachineAsksAgainMeanwhile: a machine whose first request is slow asks again. The answers to
// both count, whichever it takes.
func TestAMachineAsksAgainMeanwhile(t *testing.T) {
	s := newSite(t)
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	old := s.issue(t, agent("a1"))
	_ = s.setNode("a1", "")
	s.look(t)
	key := make([]byte, ed25519.PublicKeySize)
	ask := func(what string) *x509.Certificate {
		revision, err := s.Admit(t.Context(), "a1", "digest", key)
		if err != nil {
			t.Fatal(err)
		}
		if is := s.records.Revision(); is < revision {
			t.Errorf("%s: the store is at %d, and the certificate waits for %d", what, is, revision)
		}
		return s.issue(t, agent("a1"))
	}
	var between *x509.Certificate
	s.records.before = func([]Change) { // of the admission
		s.records.before = func([]Change) { between = ask("meanwhile") } // of the write that voids earlier ones
	}
	first := ask("first")
	later := ask("later")
	s.compile(t)
	s.want(t, "of the first answer", first, true)
	s.want(t, "of the answer meanwhile", between, true)
	s.want(t, "of a later answer", later, true)
	s.want(t, "from before", old, false)
}
