package revocation

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

func person(name string, groups ...string) pki.Request {
	return pki.Request{CommonName: name, Organization: groups, Usage: pki.Client}
}

// TestARevokedUser: all certificates of the name are void, whichever machine has them; those of
// others, and the next one of the name, count.
func TestARevokedUser(t *testing.T) {
	for _, name := range []string{"ann", "a/b", "Ann Ä. <ann@example.org>", "%2e.."} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			first, admin := s.issue(t, person(name, "dev")), s.issue(t, person(name, "barque:admins"))
			other, longer := s.issue(t, person("bob", "barque:admins")), s.issue(t, person(name+"x"))
			s.trust.Dated(func() uint64 { return 0 })
			undated := s.issue(t, person(name))
			server := s.issue(t,
				pki.Request{CommonName: name, Organization: []string{"barque:servers"}, Usage: pki.Client | pki.Server})
			s.trust.Dated(s.records.Revision)
			s.want(t, "before", admin, true)
			e, err := s.RevokeUser(t.Context(), name, "root", "left")
			if err != nil || e.Kind != User || e.Name != name || e.By != "root" || e.Why != "left" {
				t.Fatalf("%+v, %v", e, err)
			}
			s.compile(t)
			s.want(t, "the first", first, false)
			s.want(t, "an administrator's", admin, false)
			s.want(t, "without a date", undated, false)
			s.want(t, "of another", other, true)
			s.want(t, "of a longer name", longer, true)
			s.want(t, "a server of the name, of an earlier version", server, true)
			again := s.issue(t, person(name, "barque:admins"))
			s.want(t, "made since", again, true)
			if _, err := s.RevokeUser(t.Context(), name, "root", ""); err != nil {
				t.Fatal(err)
			}
			s.compile(t)
			s.want(t, "revoked again", again, false)
			if n := len(s.List.Entries().List); n != 1 {
				t.Errorf("%d entries of one user", n)
			}
		})
	}
}

// TestARevokedUserAtAServerThatLags: the server that revokes may be behind the one that issued.
func TestARevokedUserAtAServerThatLags(t *testing.T) {
	s := newSite(t)
	s.records.revision = 50
	cert := s.issue(t, person("ann"))
	behind := *s.Book
	behind.Store = lagging{s.records}
	if _, err := behind.RevokeUser(t.Context(), "ann", "root", ""); err != nil {
		t.Fatal(err)
	}
	s.compile(t)
	s.want(t, "issued by a server that is ahead", cert, false)
	s.want(t, "made since", s.issue(t, person("ann")), true)
}

// lagging is a store whose server has an old state.
type lagging struct{ *records }

func (lagging) Revision() uint64 { return 3 }

// TestTwoRevokeAUser: of two administrators at once neither undoes the act of the other.
func TestTwoRevokeAUser(t *testing.T) {
	s := newSite(t)
	between := s.issue(t, person("ann"))
	s.records.before = func([]Change) {
		if _, err := s.RevokeUser(t.Context(), "ann", "second", ""); err != nil {
			t.Error(err)
		}
		between = s.issue(t, person("ann"))
	}
	if _, err := s.RevokeUser(t.Context(), "ann", "first", ""); err != nil {
		t.Fatal(err)
	}
	s.compile(t)
	s.want(t, "made between both", between, false)
}

// TestTheEntryOfAUserEnds: no certificate of a user lasts longer than the signer gives, and none
// longer than the CA.
func TestTheEntryOfAUserEnds(t *testing.T) {
	s := newSite(t)
	e, err := s.RevokeUser(t.Context(), "ann", "root", "")
	if err != nil {
		t.Fatal(err)
	}
	if want := e.At.Add(usersLast); !e.Until.Equal(want) || !e.Until.Before(s.Ends()) {
		t.Errorf("until %s, want %s", e.Until, want)
	}
	s.compile(t)
	cert := s.issue(t, person("ann"))
	s.later = usersLast + time.Hour
	s.look(t)
	if names := s.records.names(); len(names) > 0 || len(s.List.Entries().List) > 0 {
		t.Errorf("there are still %q, %v", names, s.List.Entries().List)
	}
	s.want(t, "a later one", cert, true)
	s.later = 0
	s.Ends = func() time.Time { return time.Now().Add(time.Hour) }
	if e, err = s.RevokeUser(t.Context(), "bob", "root", ""); err != nil || e.Until.After(s.Ends()) {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestARestoredBackupLacksARevokedUser: the list of a server puts the entry back.
func TestARestoredBackupLacksARevokedUser(t *testing.T) {
	s := newSite(t)
	cert := s.issue(t, person("ann"))
	if _, err := s.RevokeUser(t.Context(), "ann", "root", ""); err != nil {
		t.Fatal(err)
	}
	s.compile(t)
	s.values, s.at = map[string][]byte{}, map[string]uint64{}
	s.look(t)
	if names := s.records.names(); len(names) != 1 || !strings.HasPrefix(names[0], entriesAt+User) {
		t.Errorf("the store has %q", names)
	}
	s.want(t, "after it", cert, false)
}

// TestARestoredBackupLacksAHalfRevocation: the backup is of the time between the two writes of a
// revocation. The entry that comes back voids all certificates until then, as the second write
// would.
func TestARestoredBackupLacksAHalfRevocation(t *testing.T) {
	s, lost, writes := newSite(t), errors.New("the quorum is lost"), 0
	s.records.fail = func([]Change) error {
		if writes++; writes == 2 {
			return lost
		}
		return nil
	}
	s.records.others = 7
	if _, err := s.RevokeUser(t.Context(), "ann", "root", ""); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	s.records.fail = nil
	s.compile(t)
	s.values, s.at = map[string][]byte{}, map[string]uint64{}
	s.look(t)
	made := s.records.at[entriesAt+User+"/ann"]
	s.keeper.tidied = time.Time{}
	s.look(t)
	e, _, err := s.Book.read(t.Context(), User+"/ann")
	if err != nil || e == nil || e.Provisional || made == 0 || e.Revision < made {
		t.Errorf("%+v, %v; it was put back at revision %d", e, err, made)
	}
}

// TestOrdersOfUsers: the cluster's own parts are no users.
func TestOrdersOfUsers(t *testing.T) {
	for _, o := range []Order{{User: "system:node:a1"}, {User: "barque:admin"}, {User: "barque:front-proxy"},
		{User: "ann", Serial: "0a"}, {User: "ann", Readmit: "a1"},
		{User: strings.Repeat("a", maxText+1)}, {User: "a\xff"}} {
		if err := o.Check(); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	for _, name := range []string{"ann", "a/b", "ann@example.org"} {
		if err := (&Order{User: name}).Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
