package revocation

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// TestADeposedLeaderChangesNothing: each kind of the leader's writes is refused in a later term.
func TestADeposedLeaderChangesNothing(t *testing.T) {
	admit := func(t *testing.T, s *site, name string) {
		t.Helper()
		if _, err := s.Admit(t.Context(), name, "key of "+name, make([]byte, ed25519.PublicKeySize)); err != nil {
			t.Fatal(err)
		}
	}
	earlier := func(s *site, ran ...string) {
		s.keeper.Earlier = func(context.Context) ([]string, []string, error) { return ran, nil, nil }
		s.keeper.Settled = func() bool { return true }
	}
	for what, change := range map[string]func(t *testing.T, s *site){
		"notes a Node":      func(t *testing.T, s *site) { _ = s.setNode("a2", "uid-2") },
		"revokes an agent":  func(t *testing.T, s *site) { _ = s.setNode("a1", "") },
		"notes the mixture": func(t *testing.T, s *site) { earlier(s, "s2") },
		"records anew": func(t *testing.T, s *site) {
			earlier(s)
			if err := s.NoteMixed(t.Context(), 0, "s2"); err != nil {
				t.Fatal(err)
			}
		},
		"records a server": func(
			t *testing.T, s *site,
		) {
			s.compile(t, Removed{ID: "id-2", Name: "s2", At: time.Now()})
		},
		"drops what is over": func(t *testing.T, s *site) {
			if _, err := s.RevokeCertificate(t.Context(), "ab", "ann", time.Now().Add(-time.Hour), "bob",
				""); err != nil {
				t.Fatal(err)
			}
		},
		"puts back": func(t *testing.T, s *site) {
			admit(t, s, "a1")
			s.compile(t)
			delete(s.records.values, "entry/agent/a1")
			delete(s.records.at, "entry/agent/a1")
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t)
			admit(t, s, "a1")
			_ = s.setNode("a1", "uid-1")
			s.look(t)
			change(t, s)
			s.keeper.tidied = time.Time{}
			s.records.term++
			before := maps.Clone(s.records.values)
			if err := s.lead(t, s.records.term-1); !errors.Is(err, errTerm) {
				t.Errorf("the look of a deposed leader ended with %v", err)
			}
			if !maps.EqualFunc(before, s.records.values, slices.Equal) || len(s.revoked) > 0 {
				t.Errorf("a deposed leader made %q of %q, and revoked %q", s.records.values, before, s.revoked)
			}
			s.look(t)
			if maps.EqualFunc(before, s.records.values, slices.Equal) {
				t.Error("the leader that follows has nothing to do")
			}
		})
	}
}

// TestAHalfRevocationIsFinished: the second write of a revocation fails. The revocation holds. The
// same leader, or the next one, finishes it, and it is reported once.
func TestAHalfRevocationIsFinished(t *testing.T) {
	lost := errors.New("the quorum is lost")
	revoke := func(t *testing.T, s *site) error {
		_ = s.setNode("a1", "")
		s.keeper.tidied = time.Now()
		return s.lead(t, 1)
	}
	admit := func(t *testing.T, s *site) error {
		_, err := s.Admit(t.Context(), "a1", "other key", make([]byte, ed25519.PublicKeySize))
		return err
	}
	user := func(t *testing.T, s *site) error {
		_, err := s.RevokeUser(t.Context(), "a1", "bob", "")
		return err
	}
	for what, c := range map[string]struct {
		act      func(t *testing.T, s *site) error
		record   string
		fails    int  // the write that fails
		applied  bool // the write is made, and its outcome is not known
		next     bool // another leader follows
		reported []string
	}{
		"the same leader":    {revoke, "agent/a1", 2, false, false, []string{"a1"}},
		"the next leader":    {revoke, "agent/a1", 2, false, true, []string{"a1"}},
		"an unknown outcome": {revoke, "agent/a1", 1, true, false, []string{"a1"}},
		"the same, and next": {revoke, "agent/a1", 1, true, true, []string{"a1"}},
		"an admission":       {admit, "agent/a1", 2, false, false, nil},
		"one of a user":      {user, "user/a1", 2, false, true, nil},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t)
			if _, err := s.Admit(t.Context(), "a1", "key of a1", make([]byte, ed25519.PublicKeySize)); err != nil {
				t.Fatal(err)
			}
			_ = s.setNode("a1", "uid-1")
			s.look(t)
			writes := 0
			s.records.fail = func([]Change) error {
				if writes++; writes == c.fails && !c.applied {
					return lost
				}
				return nil
			}
			s.records.after = func() error {
				if writes == c.fails && c.applied {
					return lost
				}
				return nil
			}
			s.records.others = 7 // the store goes on before the write
			if err := c.act(t, s); err == nil || !strings.Contains(err.Error(), lost.Error()) {
				t.Fatalf("it ended with %v", err)
			}
			s.records.fail, s.records.after = nil, nil
			made := s.records.at["entry/"+c.record]
			if c.next {
				s.records.term++
				keeper := s.keeper
				s.keeper = Keeper{Book: keeper.Book, Nodes: keeper.Nodes, Node: keeper.Node, Delete: keeper.Delete,
					Revoked: keeper.Revoked, Waiting: keeper.Waiting}
			}
			if c.record != "agent/a1" || c.reported == nil {
				s.keeper.tidied = time.Time{} // the leader sees it within the interval
			}
			for range 2 {
				if err := s.lead(t, s.records.term); err != nil {
					t.Fatal(err)
				}
			}
			e, _, err := s.Book.read(t.Context(), c.record)
			if err != nil || e == nil || e.Revision < made || e.Provisional {
				t.Errorf("the entry is %+v, %v; want the revision %d", e, err, made)
			}
			if !slices.Equal(s.revoked, c.reported) {
				t.Errorf("reported are %q, want %q", s.revoked, c.reported)
			}
		})
	}
}

// TestACertificateFromWithinARevocation: a server that does not know the first write of a
// revocation issues a certificate. It proves no later admission, before the second write and after.
func TestACertificateFromWithinARevocation(t *testing.T) {
	s := newSite(t)
	_ = s.setNode("a1", "uid-1")
	s.look(t)
	var within *x509.Certificate
	s.records.before = func([]Change) { // of the first write
		s.records.mu.Lock()
		s.records.revision += 5 // the store goes on meanwhile
		s.records.mu.Unlock()
		within = s.issue(t, agent("a1"))
		s.records.before = func([]Change) { // of the second one
			s.compile(t)
			if s.List.Proves("a1", pki.RevisionOf(within)) {
				t.Error("it proves a later admission")
			}
			if err := s.Prove(t.Context(), "a1", pki.RevisionOf(within)); err != nil {
				t.Error(err)
			}
		}
	}
	_ = s.setNode("a1", "")
	s.look(t)
	s.look(t)
	if e, _, err := s.Book.read(t.Context(), "agent/a1"); err != nil || e == nil || e.admits() || e.Provisional ||
		e.Revision < pki.RevisionOf(within) {
		t.Errorf("the entry is %+v, %v; the certificate of %d", e, err, pki.RevisionOf(within))
	}
	s.want(t, "from within", within, false)
	if err := s.List.CheckCredential(
		pki.Credential{Name: "a1", Role: pki.RoleAgent, Public: make([]byte, ed25519.PublicKeySize)}); err == nil {
		t.Error("gossip believes the removed agent")
	}
	if !slices.Equal(s.revoked, []string{"a1"}) {
		t.Errorf("reported are %q", s.revoked)
	}
}

// TestAnotherWriteWithinARevocation: the second write of a revocation does not win. The entry is
// finished in the same look all the same, unless an admission has; the reported entry is final.
func TestAnotherWriteWithinARevocation(t *testing.T) {
	for what, c := range map[string]struct {
		write    func(t *testing.T, s *site)
		reported []string
	}{
		"another one, not final": {func(t *testing.T, s *site) {
			e, at, err := s.Book.read(t.Context(), "agent/a1")
			if err != nil {
				t.Fatal(err)
			}
			e.Why = "it was noted by an earlier version"
			change, err := put(*e, at)
			if err != nil {
				t.Fatal(err)
			}
			if _, won, err := s.Commit(t.Context(), 0, change); err != nil || !won {
				t.Fatal(won, err)
			}
		}, []string{"a1"}},
		"an admission": {func(t *testing.T, s *site) {
			if _, err := s.Admit(t.Context(), "a1", "other key", make([]byte, ed25519.PublicKeySize)); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"an operator lets it in again": {func(t *testing.T, s *site) {
			if _, err := s.Readmit(t.Context(), "a1", nil, "bob", ""); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSite(t)
			if _, err := s.Admit(t.Context(), "a1", "key of a1", make([]byte, ed25519.PublicKeySize)); err != nil {
				t.Fatal(err)
			}
			_ = s.setNode("a1", "uid-1")
			s.look(t)
			revoked := s.keeper.Revoked
			s.keeper.Revoked = func(e Entry) {
				if is, _, err := s.Book.read(t.Context(), "agent/a1"); err != nil || is == nil || is.Provisional ||
					is.Revision != e.Revision || e.Provisional {
					t.Errorf("reported is %+v, and recorded %+v, %v", e, is, err)
				}
				revoked(e)
			}
			_ = s.setNode("a1", "")
			s.keeper.tidied = time.Now()
			s.records.others = 7
			s.records.before = func([]Change) { // of the first write
				s.records.before = func([]Change) { c.write(t, s) } // of the second one
			}
			if err := s.lead(t, s.records.term); err != nil {
				t.Fatal(err)
			}
			if e, _, err := s.Book.read(t.Context(), "agent/a1"); err != nil || e == nil || e.Provisional {
				t.Errorf("the entry is %+v, %v", e, err)
			}
			if !slices.Equal(s.revoked, c.reported) {
				t.Errorf("reported are %q, want %q", s.revoked, c.reported)
			}
		})
	}
}
