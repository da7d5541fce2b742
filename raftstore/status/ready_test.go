package status

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

func TestAilments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the cause")
		now := time.Now()
		<-time.After(20 * time.Second)
		for name, c := range map[string]struct {
			Condition
			is   error // nil: none
			text string
		}{
			"well": {Condition{HasLeader: true, LeaderlessSince: now, ElectionTimeout: time.Second},
				nil, ""},
			"an election goes on": {Condition{ElectionTimeout: time.Second}, nil, ""},
			"closed and removed":  {Condition{Closed: true, Removed: cause}, kv.ErrClosed, ""},
			"removed": {Condition{HasLeader: true, Removed: cause, Fatal: errors.New("another")},
				cause, ""},
			"cannot go on": {Condition{HasLeader: true, Fatal: cause}, cause, "this server cannot go on"},
			"superseded": {
				Condition{HasLeader: true, Superseded: cause, Quarantined: errors.New("another")}, cause, ""},
			"in quarantine":  {Condition{HasLeader: true, Quarantined: cause}, cause, ""},
			"its disk hangs": {Condition{HasLeader: true, DiskHangs: cause}, cause, ""},
			"leaderless": {
				Condition{LeaderlessSince: now, ElectionTimeout: time.Second, Member: true, Voters: 3},
				kv.ErrLeaderless, "2 of the 3 servers"},
			"leaderless, not a member": {Condition{LeaderlessSince: now, ElectionTimeout: time.Second},
				kv.ErrLeaderless, "no member of the cluster yet"},
			"elections are slow": {
				Condition{LeaderlessSince: now, ElectionTimeout: 6 * time.Second, Member: true}, kv.ErrUnavailable,
				"no leader has been known for 20s"},
			"elections are slower": {Condition{LeaderlessSince: now, ElectionTimeout: 15 * time.Second}, nil, ""},
		} {
			err := c.Ailment()
			if !errors.Is(err, c.is) || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v, want %v with %q", name, err, c.is, c.text)
			}
			if name == "elections are slow" && errors.Is(err, kv.ErrLeaderless) {
				t.Errorf("%s: %v tells callers not to repeat", name, err)
			}
		}
	})
}

func TestNoLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Condition{LeaderlessSince: time.Now(), ElectionTimeout: time.Second}
		if err := c.NoLeader(); !errors.Is(err, group.ErrNoLeader) {
			t.Errorf("just now: %v", err)
		}
		<-time.After(LeaderlessAfter)
		if err := c.NoLeader(); errors.Is(err, group.ErrNoLeader) || !errors.Is(err, kv.ErrUnavailable) {
			t.Errorf("after %v: %v", LeaderlessAfter, err)
		}
	})
}

func TestExplain(t *testing.T) {
	read := errors.New("the read timed out")
	well := Condition{HasLeader: true, ElectionTimeout: time.Second, Applied: 7, Committed: 7}
	if err := well.Explain(read); !errors.Is(err, read) || !errors.Is(err, kv.ErrUnavailable) ||
		strings.Contains(err.Error(), "(") {
		t.Errorf("nothing is known: %v", err)
	}
	busy := Condition{HasLeader: true, ElectionTimeout: time.Second, Restoring: true, Applied: 5, Committed: 7,
		LogFailed: errors.New("EIO"), DiskFull: true}
	want := " (it is reading a snapshot of the leader; it has applied entry 5 of 7; its last write to the log failed: EIO; its disk is full)"
	if err := busy.Explain(read); !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %q at its end", err, want)
	}
	ill := Condition{Closed: true}
	if err := ill.Explain(read); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("a closed server: %v", err)
	}
}
