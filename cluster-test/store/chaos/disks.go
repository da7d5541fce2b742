package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/barque/barque/cluster-test/damage"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/raftstore/faultpoint"
)

func diskFaults() []fault {
	power := (*store.Member).CutPower
	return []fault{
		{name: "power off: leader", needs: store.DisksPossible, run: killed(theLeader, power)},
		{name: "power off: follower", needs: store.DisksPossible, run: killed(aFollower, power)},
		{name: "power off: majority", needs: store.DisksPossible, run: killed(theMajority, power)},
		{name: "power off: all", needs: store.DisksPossible, run: killed(everyone, power)},
		{name: "power off at a point", needs: store.DisksPossible, run: func(ctx context.Context, t *trial) error { return killAtPoint(ctx, t, true) }},
		{name: "disk full: leader", needs: store.DisksPossible, run: full(theLeader)},
		{name: "disk full: follower", needs: store.DisksPossible, run: full(aFollower)},
		{name: "disk full: all", needs: store.DisksPossible, run: full(everyone)},
		{name: "flipped bytes: log", run: flipped(damage.Log)},
		{name: "flipped bytes: snapshot", run: flipped(damage.Snapshots)},
		{name: "garbage after the log", run: garbage},
	}
}

// full leaves no room on disks while much is written.
func full(whom func(*trial) []*store.Member) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		members := whom(t)
		t.say("%s", names(members))
		if err := each(members, (*store.Member).Fill); err != nil {
			return err
		}
		t.much.Store(true) // what the log has allocated before takes a while to fill
		defer t.much.Store(false)
		t.hold(ctx, 2*time.Second, 5*time.Second)
		restart := t.rnd.IntN(3) == 0
		if restart { // a machine that is started again for its disk being full
			t.say("%s, killed and started while it is full", names(members))
			if err := each(members, (*store.Member).Kill); err != nil {
				return err
			}
			for _, m := range members {
				if err := m.Start(ctx); err != nil {
					t.say("%s; %s: %v", t.note, m.Name, brief(err))
				}
			}
		}
		if err := each(members, (*store.Member).Free); err != nil {
			return err
		}
		for _, m := range members {
			if !m.Running() && restart {
				if err := m.Start(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// springs is how long a trap may take to be stepped into before something else is done.
const springs = 4 * time.Second

// killAtPoint has a member kill itself at a point, at a hit that is drawn, and cuts its power there if asked to.
func killAtPoint(ctx context.Context, t *trial, power bool) error {
	points := slices.DeleteFunc(faultpoint.All(), func(p string) bool { return strings.HasPrefix(p, "identity.") })
	point, m, hit := points[t.rnd.IntN(len(points))], t.any(), 1
	if strings.HasPrefix(point, "log.") && strings.HasSuffix(point, "-sync") {
		hit += t.rnd.IntN(200)
	}
	if err := m.Trap(ctx, point, hit); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, springs)
	defer cancel()
	if err := t.provoke(waiting, m, point); err != nil {
		return err
	}
	if _, err := m.Exited(waiting); err != nil {
		err := m.Trap(ctx, "", 0)
		switch {
		case err == nil:
			t.say("%s did not come to %s, hit %d", m.Name, point, hit)
			return nil
		case !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrDown):
			return err
		}
		if _, err := m.Exited(ctx); err != nil { // it came to it at the last moment
			return err
		}
	}
	t.say("%s at %s, hit %d", m.Name, point, hit)
	if power {
		if err := m.CutPower(); err != nil {
			return err
		}
	}
	t.hold(ctx, 100*time.Millisecond, time.Second)
	return m.Start(ctx)
}

// provoke makes a member come to a point.
func (t *trial) provoke(ctx context.Context, m *store.Member, point string) error {
	switch kind, _, _ := strings.Cut(point, "."); {
	case kind == "snapshot" || strings.HasSuffix(point, "truncate"):
		// Its error is that of a process that is killed, or it is too early for another snapshot.
		_ = m.Change(ctx, member.Change{Kind: member.Snapshot})
	case kind == "term" || kind == "vote":
		return t.transfer(ctx)
	}
	return nil
}

// killInStart kills a member, and once more in its start.
func killInStart(ctx context.Context, t *trial) error {
	m := t.any()
	if err := m.Kill(); err != nil {
		return err
	}
	points := faultpoint.All()
	point := points[t.rnd.IntN(len(points))]
	t.say("%s at %s", m.Name, point)
	fresh := strings.HasPrefix(point, "identity.")
	if fresh { // a new server, with an empty directory, gets its identity
		if err := t.expel(ctx, m); err != nil {
			return err
		}
	}
	if err := m.Trap(ctx, point, 1); err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil && !errors.Is(err, store.ErrGone) {
		return err
	}
	t.hold(ctx, 200*time.Millisecond, time.Second)
	if m.Running() {
		if err := m.Kill(); err != nil {
			return err
		}
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	if fresh {
		return t.join(ctx, m)
	}
	return nil
}

// flipped flips bytes of one kind of file of a member that was killed. It must refuse them at its start or
// find them later; at the latest when it serves, the audit finds what it did not. It is replaced after that
// in any case: what lies damaged and unread might be read at any time.
func flipped(kind damage.Kind) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		m := t.any()
		var refused error
		if kind == damage.Snapshots { // so that there is one; it is refused when there is one of just now
			limited, cancel := context.WithTimeout(ctx, patience/4)
			refused = m.Change(limited, member.Change{Kind: member.Snapshot})
			cancel()
		}
		if err := m.Kill(); err != nil {
			return err
		}
		if err := m.Files(func(dir string) (err error) {
			t.note, err = damage.Flip(t.rnd, dir, kind)
			return err
		}); err != nil {
			return errors.Join(err, refused)
		}
		err := m.Start(ctx)
		switch {
		case errors.Is(err, store.ErrGone):
			return fmt.Errorf("%s, %s: it crashed instead of refusing: %w; its log ends with:\n%s", m.Name, t.note, err, tail(m.LogFile()))
		case err != nil:
			t.say("%s, %s: refused: %s", m.Name, t.note, brief(err))
		default:
			t.say("%s, %s: not seen at the start", m.Name, t.note)
			t.hold(ctx, time.Second, 2*time.Second)
			if !m.Running() {
				state, err := m.Exited(ctx)
				if err != nil {
					return err
				}
				t.say("%s; ended with %v", t.note, state)
				if ws, ok := state.Sys().(syscall.WaitStatus); !ok || ws.ExitStatus() != member.ExitFatal {
					return fmt.Errorf("%s, %s: it crashed; its log ends with:\n%s", m.Name, t.note, tail(m.LogFile()))
				}
			} else if status, _, err := m.Status(ctx); err == nil && status.Quarantined != "" {
				t.say("%s; in quarantine: %s", t.note, status.Quarantined)
			}
		}
		return t.renew(ctx, m)
	}
}

// brief is the first line of an error, and not too much of it.
func brief(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text[:min(len(text), 300)]
}

// garbage leaves, behind the end of the newest log file of a killed member, what a write that was torn apart leaves.
func garbage(ctx context.Context, t *trial) error {
	m := t.any()
	if err := m.Kill(); err != nil {
		return err
	}
	err := m.Files(func(dir string) error {
		note, err := damage.Tear(t.rnd, dir)
		t.say("%s, %s", m.Name, note)
		return err
	})
	if err != nil {
		return err
	}
	return m.Start(ctx)
}
