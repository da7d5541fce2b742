package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/damage"
	"github.com/barque/barque/cluster-test/disk"
)

func diskFaults() []fault {
	return []fault{
		{name: "disk hangs: leader", needs: disk.Possible, run: hung(theLeader)},
		{name: "disk hangs: follower", needs: disk.Possible, run: hung(aFollower)},
		{name: "disk slow: leader", needs: disk.Possible, run: slowDisk(theLeader)},
		{name: "disk slow: follower", needs: disk.Possible, run: slowDisk(aFollower)},
		{name: "disk full: leader", needs: disk.Possible, run: full(theLeader)},
		{name: "disk full: follower", needs: disk.Possible, run: full(aFollower)},
		{name: "disk full: all", needs: disk.Possible, run: full((*trial).all)},
		{name: "power off: leader", needs: disk.Possible, run: powerOff(theLeader)},
		{name: "power off: follower", needs: disk.Possible, run: powerOff(aFollower)},
		{name: "power off: all servers", needs: disk.Possible, run: powerOff((*trial).all)},
		{name: "flipped bytes: log", damages: true, run: spoilt((*trial).anyReplaceable, flip(damage.Log))},
		{name: "flipped bytes: snapshot", damages: true, run: spoilt((*trial).awaitSnapshot, flip(damage.Snapshots))},
		{name: "torn log", run: torn},
		{name: "torn snapshot", damages: true, run: spoilt((*trial).awaitSnapshot, damage.TearSnapshot)},
	}
}

// eachDisk calls f for the disks of servers, in turn.
func (t *trial) eachDisk(servers []string, f func(*disk.Disk) error) (err error) {
	for _, s := range servers {
		err = errors.Join(err, f(t.Cluster.Disk(s)))
	}
	return err
}

// hung makes nothing be written to a disk for longer than the store bears.
func hung(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		nodes := whom(t)
		t.meet(nodes...)
		var disks []*disk.Disk
		for _, n := range nodes {
			disks = append(disks, t.Cluster.Disk(n))
		}
		return disk.Frozen(func() { t.hold(ctx, 4*time.Second, 8*time.Second) }, disks...)
	}
}

// slowDisk lets a disk write for some milliseconds of each hundred only.
func slowDisk(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node := whom(t)[0]
		t.meet(node)
		d := t.Cluster.Disk(node)
		for range 30 {
			if err := disk.Frozen(func() { t.hold(ctx, 50*time.Millisecond, 250*time.Millisecond) }, d); err != nil {
				return err
			}
			t.hold(ctx, 5*time.Millisecond, 30*time.Millisecond)
		}
		return nil
	}
}

// full leaves no room on disks.
func full(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		nodes := whom(t)
		t.meet(nodes...)
		if err := t.eachDisk(nodes, (*disk.Disk).Fill); err != nil {
			return err
		}
		t.hold(ctx, 4*time.Second, 8*time.Second)
		return t.eachDisk(nodes, (*disk.Disk).Free)
	}
}

// powerOff makes machines lose all that they did not sync, and their pods, and starts them again.
func powerOff(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		nodes := whom(t)
		t.meet(nodes...)
		// All disks first: power goes at once.
		if err := t.eachDisk(nodes, (*disk.Disk).CutPower); err != nil {
			return err
		}
		for _, n := range nodes {
			if r := t.Cluster.DevResult(ctx, "kill", "--machine", n); r.Error != nil {
				return r.Error
			}
		}
		if err := t.eachDisk(nodes, (*disk.Disk).Attach); err != nil {
			return err
		}
		t.hold(ctx, 0, 2*time.Second)
		return t.startAll(ctx, nodes)
	}
}

func (t *trial) storeDir(node string) string { return filepath.Join(t.Cluster.DataDir(node), "store") }

// flip spoils a store by flipped bytes.
func flip(kind damage.Kind) func(rnd *rand.Rand, dir string) (note string, err error) {
	return func(rnd *rand.Rand, dir string) (string, error) { return damage.Flip(rnd, dir, kind) }
}

// spoilt spoils files of a server that was killed. It must refuse them at its start or find them
// later; at the latest the clients' answers show a fault that it did not find. It is replaced in
// any case: damaged data that was not read yet might be read at any time.
func spoilt(
	choose func(*trial, context.Context) (string, error),
	spoil func(rnd *rand.Rand, dir string) (note string, err error),
) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		node, err := choose(t, ctx)
		if err != nil {
			return err
		}
		t.meet(node)
		if err := t.Cluster.KillNodes(ctx, node); err != nil {
			return err
		}
		note, err := spoil(t.rnd, t.storeDir(node))
		if err != nil {
			return err
		}
		if r := t.Cluster.DevResult(ctx, "start", node); r.Error != nil {
			t.say("%s, %s: refused", node, note)
			if end := clustertest.Tail(t.Cluster.LogFile(node), crashLines); strings.Contains(end, "\ngoroutine ") {
				return fmt.Errorf("it crashed instead of refusing; its log ends with:\n%s", end)
			}
		} else {
			aside, err := filepath.Glob(filepath.Join(t.storeDir(node), "snapshots", "*.damaged*"))
			if err != nil {
				return err
			}
			if len(aside) > 0 {
				t.say("%s, %s: set aside", node, note)
			} else {
				t.say("%s, %s: not seen at the start", node, note)
			}
			t.hold(ctx, time.Second, 3*time.Second)
		}
		if t.Cluster.Alive(node) {
			if err := t.Cluster.KillNodes(ctx, node); err != nil {
				return err
			}
		}
		return t.renew(ctx, node)
	}
}

// anyReplaceable returns a server that can be replaced.
func (t *trial) anyReplaceable(context.Context) (string, error) { return t.replaceable(), nil }

// crashLines of a log are enough to see that it ends with a crash.
const crashLines = 400

// awaitSnapshot waits until a server that can be replaced has a snapshot, which it takes after some
// hundred entries of its log (serverArgs), and returns that server.
func (t *trial) awaitSnapshot(ctx context.Context) (node string, err error) {
	err = clustertest.Poll(ctx, patience, func(context.Context) error {
		node = t.replaceable()
		found, err := filepath.Glob(filepath.Join(t.storeDir(node), "snapshots", "*[0-9]", "state.bin"))
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%s has no snapshot", node)
		}
		return err
	})
	return node, err
}

// torn leaves the bytes of a torn write at the end of a log.
func torn(ctx context.Context, t *trial) error {
	node := t.any()
	t.meet(node)
	if err := t.Cluster.KillNodes(ctx, node); err != nil {
		return err
	}
	note, err := damage.Tear(t.rnd, t.storeDir(node))
	if err != nil {
		return err
	}
	t.say("%s, %s", node, note)
	if err := t.Cluster.StartNode(ctx, node); err != nil {
		return fmt.Errorf("a torn log must be mended: %w", err)
	}
	return nil
}
