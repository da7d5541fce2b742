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
		{name: "power off at a point", needs: store.DisksPossible,
			run: func(ctx context.Context, t *trial) error { return killAtPoint(ctx, t, true) }},
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
		t.much.Store(true) // the space that the log has allocated before takes a while to fill
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

const (
	// armedFor is how long a fault point stays armed before another one is armed.
	armedFor = 10 * time.Second
	// mostArmed is how many points are armed before the store, or the harness, is at fault.
	mostArmed = 4
	// nudge is the time between two attempts to make a member come to a point.
	nudge = time.Second
)

// inWork are the points that a member comes to while it works, given a reason. It comes to the
// others in a start: with another kind of log, after a quarantine, with an empty directory.
func inWork() []string {
	return slices.DeleteFunc(faultpoint.All(), func(p string) bool {
		return strings.HasPrefix(p, "identity.") || strings.HasPrefix(p, "transfer.") || strings.HasSuffix(p, "-switch")
	})
}

// killAtPoint has a member kill itself at a point, at a hit that is drawn, and cuts its power there
// if asked to. A member may not come there in time, as one that takes no part in an election. That
// is reported, and another point is armed.
func killAtPoint(ctx context.Context, t *trial, power bool) error {
	for range mostArmed {
		m, killed, err := t.arm(ctx)
		if err != nil {
			return err
		}
		if !killed {
			continue
		}
		if power {
			if err := m.CutPower(); err != nil {
				return err
			}
		}
		t.hold(ctx, 100*time.Millisecond, time.Second)
		return m.Start(ctx)
	}
	return fmt.Errorf("no member came to any of %d points in %v each: %s", mostArmed, armedFor, t.note)
}

// arm arms one fault point of a member, and reports whether the member was killed there.
func (t *trial) arm(ctx context.Context) (m *store.Member, killed bool, err error) {
	points := inWork()
	point, hit := points[t.rnd.IntN(len(points))], 1
	if m = t.any(); strings.HasPrefix(point, "log.") && strings.HasSuffix(point, "-sync") {
		hit += t.rnd.IntN(200)
	}
	if t.note != "" {
		t.note += "; "
	}
	t.note += fmt.Sprintf("%s at %s, hit %d", m.Name, point, hit)
	if err := m.Arm(ctx, point, hit); err != nil {
		return m, false, err
	}
	for end := time.Now().Add(armedFor); time.Now().Before(end); { // brief: then another point is armed
		t.provoke(ctx, m, point)
		waiting, cancel := context.WithTimeout(ctx, nudge) // brief: then it is provoked again
		_, err := m.Exited(waiting)
		cancel()
		if err == nil {
			return m, true, nil
		}
	}
	err = m.Arm(ctx, "", 0)
	switch {
	case err == nil:
		t.note += ": it did not come there"
		t.missed++
		return m, false, nil
	case !errors.Is(err, store.ErrGone) && !errors.Is(err, store.ErrDown):
		return m, false, err
	}
	_, err = m.Exited(ctx) // it came to it at the last moment
	return m, err == nil, err
}

// provoke gives a member a reason to come to a point. It may be the wrong moment for it, and the
// member may be killed in the middle, so that errors say nothing: whether it came there does.
func (t *trial) provoke(ctx context.Context, m *store.Member, point string) {
	ctx, cancel := context.WithTimeout(ctx, armedFor) // brief: as long as the point is armed
	defer cancel()
	switch kind, _, _ := strings.Cut(point, "."); {
	case kind == "snapshot" || strings.HasSuffix(point, "truncate"):
		_ = m.Change(ctx, member.Change{Kind: member.Snapshot})
	case kind == "term" || kind == "vote": // of the elected server as of its voters
		leader, err := t.group.AwaitLeader(ctx)
		if err != nil {
			return
		}
		next := m
		if leader == m {
			next = t.others[0]
			if next == leader {
				next = t.leader
			}
		}
		_ = leader.Change(ctx, member.Change{Kind: member.Transfer, ID: next.ID()})
	}
}

// killInStart kills a member, and once more in its start.
func killInStart(ctx context.Context, t *trial) error {
	m := t.any()
	if err := m.Kill(); err != nil {
		return err
	}
	points := append(inWork(), faultpoint.IdentityBeforeRename, faultpoint.IdentityAfterRename)
	point := points[t.rnd.IntN(len(points))]
	t.say("%s at %s, or a while later", m.Name, point)
	fresh := strings.HasPrefix(point, "identity.")
	if fresh { // a new server, with an empty directory, gets its identity
		if err := t.expel(ctx, m); err != nil {
			return err
		}
	}
	if err := m.Arm(ctx, point, 1); err != nil {
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

// flipped flips bytes of one kind of file of a member that was killed. It must refuse them at its
// start or find them later; at the latest when it serves, its answers are found wrong. It is
// replaced in any case: damaged data that was not read yet might be read at any time.
func flipped(kind damage.Kind) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		m := t.any()
		var refused error
		if kind == damage.Snapshots { // so that there is one; it is refused when there is one of just now
			limited, cancel := context.WithTimeout(ctx, patience/2)
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
			return fmt.Errorf("%s, %s: it crashed instead of refusing: %w; its log ends with:\n%s", m.Name, t.note, err,
				tail(m.LogFile()))
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

// garbage leaves the bytes of a torn write behind the end of the newest log file of a
// killed member.
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
