package enroll

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// watched is an agent's absences, and the time that passes for it.
type watched struct {
	*Absences
	t   *testing.T
	now time.Time
}

func newWatched(t *testing.T) *watched {
	r := &Record{Dir: t.TempDir(), Phase: PhaseMember, Name: "a1", Role: pki.RoleAgent}
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	return &watched{NewAbsences(r), t, time.Now()}
}

// watch looks at the servers for so long, and returns who is gone in the end.
func (w *watched) watch(span time.Duration, seen map[string]bool) (gone []string) {
	w.t.Helper()
	for end := w.now.Add(span); w.now.Before(end); {
		w.now = w.now.Add(forgetEvery)
		var err error
		if gone, err = w.Look(seen, w.now); err != nil {
			w.t.Fatal(err)
		}
	}
	return gone
}

// restart is of the agent, after it was off for some time.
func (w *watched) restart(off time.Duration) {
	w.t.Helper()
	r, err := Load(w.record.Dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Absences, w.now = NewAbsences(r), w.now.Add(off)
}

const day = 24 * time.Hour

var (
	only1     = map[string]bool{"s1": true, "s2": false, "s3": false}
	without3  = map[string]bool{"s1": true, "s2": true, "s3": false}
	noServers = map[string]bool{"s1": false, "s2": false, "s3": false}
)

func TestAnAgentForgetsAServerThatItHasMissedForAWeek(t *testing.T) {
	w := newWatched(t)
	if gone := w.watch(ServerAwayAfter-forgetEvery, without3); gone != nil {
		t.Errorf("before a week %v are gone", gone)
	}
	if gone := w.watch(2*forgetEvery, without3); !slices.Equal(gone, []string{"s3"}) {
		t.Errorf("after a week %v are gone", gone)
	}
	if gone := w.watch(forgetEvery, map[string]bool{"s1": true, "s2": true}); gone != nil || len(w.missed) > 0 ||
		len(w.record.missed()) > 0 {
		t.Errorf("once it is forgotten %v are gone, %v are missed, %v in the record", gone, w.missed, w.record.missed())
	}
}

// One that comes back in between begins anew.
func TestAServerThatComesBackIsNotMissed(t *testing.T) {
	w := newWatched(t)
	for range 3 {
		if gone := w.watch(6*day, only1); gone != nil {
			t.Errorf("%v are gone", gone)
		}
		w.watch(forgetEvery, map[string]bool{"s1": true, "s2": true, "s3": true})
	}
}

// What nobody watched is no absence: a site that was off comes up server after server, a machine
// sleeps, a clock is set.
func TestTimeThatNobodyWatchedIsNoAbsence(t *testing.T) {
	w := newWatched(t)
	w.watch(time.Minute, without3)
	for range 10 {
		w.restart(10 * day)
		if gone := w.watch(time.Minute, only1); gone != nil {
			t.Fatalf("after ten days in which all was off %v are gone", gone)
		}
		w.now = w.now.Add(10 * day)
		if gone := w.watch(time.Minute, only1); gone != nil {
			t.Fatalf("after a step of the clock, or ten days of sleep, %v are gone", gone)
		}
		w.now = w.now.Add(-20 * day)
		if gone := w.watch(time.Minute, only1); gone != nil {
			t.Fatalf("after a step of the clock back %v are gone", gone)
		}
		if gone := w.watch(day, noServers); gone != nil {
			t.Fatalf("of an agent that was cut off %v are gone", gone)
		}
	}
	if w.missed["s2"] > time.Hour {
		t.Errorf("s2 was missed for %s", w.missed["s2"])
	}
}

// Restarts lose no more than the hour that had begun, and the record is written once an hour.
func TestAbsencesAreRemembered(t *testing.T) {
	w := newWatched(t)
	for i := range 7 {
		if gone := w.watch(day+time.Minute, without3); (gone != nil) != (i == 6) {
			t.Errorf("after %d days %v are gone", i+1, gone)
		}
		w.restart(time.Minute)
	}
	w = newWatched(t)
	if err := os.Remove(w.record.Path()); err != nil {
		t.Fatal(err)
	}
	for range 100 { // it flaps
		w.watch(5*time.Minute, only1)
		w.watch(forgetEvery, without3)
		w.watch(forgetEvery, map[string]bool{"s1": true, "s2": true, "s3": true})
	}
	w.watch(59*time.Minute, without3)
	if _, err := os.Stat(w.record.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absences of minutes are written: %v", err)
	}
	w.watch(2*time.Minute, without3)
	if want := map[string]int{"s3": 1}; !maps.Equal(w.record.missed(), want) {
		t.Errorf("the record has %v, want %v", w.record.missed(), want)
	}
	// A record that cannot be written says so, until it can be.
	if err := errors.Join(os.Remove(w.record.Path()),
		os.MkdirAll(filepath.Join(w.record.Path(), "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if gone, err := w.Look(map[string]bool{"s1": true}, w.now); err == nil || gone != nil ||
			len(w.record.missed()) != 1 {
			t.Errorf("%v are gone, the record has %v: %v", gone, w.record.missed(), err)
		}
	}
	if err := os.RemoveAll(w.record.Path()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Look(map[string]bool{"s1": true}, w.now); err != nil || len(w.record.missed()) != 0 {
		t.Errorf("the record has %v: %v", w.record.missed(), err)
	}
}

// A server lives that gossip sees, and one whose API answers or is in use where gossip does not get
// through; not one whose address another server has now.
func TestWhichServersAreSeen(t *testing.T) {
	api := func(i int) netip.AddrPort { return netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:6443", i)) }
	member := func(name, role string, at int, state gossip.State) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: state, Addr: netip.AddrPortFrom(api(at).Addr(), 7946),
			Facts: gossip.Facts{APIPort: 6443}}
	}
	members := []gossip.Member{
		member("s1", pki.RoleServer, 1, gossip.Alive),
		member("s2", pki.RoleServer, 2, gossip.Dead),
		member("s3", pki.RoleServer, 3, gossip.Left),
		member("new5", pki.RoleServer, 5, gossip.Alive),
		member("a1", pki.RoleAgent, 7, gossip.Alive),
		member("a2", pki.RoleAgent, 8, gossip.Dead),
	}
	known := []join.Server{{Name: "s1", API: api(1)}, {Name: "s2", API: api(2)}, {Name: "s4", API: api(4)},
		{Name: "old5", API: api(5)}, {Name: "s6", API: api(6)}}
	for what, c := range map[string]struct {
		living []netip.AddrPort
		want   map[string]bool
	}{
		"by gossip": {nil,
			map[string]bool{"s1": true, "s2": false, "s3": false, "s4": false, "new5": true, "old5": false,
				"s6": false}},
		"by their APIs": {[]netip.AddrPort{api(1), api(2), api(4), api(5), api(9)},
			map[string]bool{"s1": true, "s2": true, "s3": false, "s4": true, "new5": true, "old5": false, "s6": false}},
	} {
		if got := SeenServers(members, known, c.living); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
