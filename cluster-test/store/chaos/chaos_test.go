package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/internal/linear"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/raftstore"
)

var seed = flag.Uint64("seed", 0, "seed of the short run; 0 draws one")

func TestMain(m *testing.M) {
	member.ServeIfMember()
	os.Exit(m.Run())
}

// short is the choice of faults for the run of the unit tests: each of the mechanisms, and the
// worst faults.
var short = regexp.MustCompile(
	`^(kill the leader|kill in a partition|kill at a point|pause the leader|clock|leader mute|` +
		`power off: all|power off at a point|disk full: leader|flipped bytes: snapshot|replace a follower)$`)

// TestShortRun is a short run of the program, with a seed of its own each time.
func TestShortRun(t *testing.T) {
	needs.AllTests(t)
	plan, left := schedule.New(*seed, short, allFaults())
	cfg := config{Schedule: plan, dir: t.TempDir(), out: t.Output(), options: options(plan.Seed, "")}
	t.Logf("repeat with -seed %d; log in %s", plan.Seed, cfg.options.LogStore)
	needs.LeftOut(t, left)
	r, err := execute(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.report(t.Output(), "", ""); err != nil {
		t.Error(err)
	}
	for _, f := range r.Failures() {
		t.Error(f)
	}
	if made := len(r.Spans()); !r.Failed() && made != len(plan.Faults) {
		t.Errorf("%d of %d faults were made", made, len(plan.Faults))
	}
	if checked := r.judged.Checked; checked < 100 {
		t.Errorf("only %d answers were checked", checked)
	}
}

// TestShort: the expression names as many kinds as the short run should have.
func TestShort(t *testing.T) {
	if plan, left := schedule.New(1, short, allFaults()); len(plan.Faults)+len(left) != 11 {
		t.Errorf("the short run has %d kinds, and should have 11", len(plan.Faults)+len(left))
	}
}

// rollBack puts all disks back to an earlier state, as disks do that acknowledge writes and lose
// them: each member's files are whole, and the writes acknowledged since are lost.
var rollBack = fault{name: "roll back", run: func(ctx context.Context, t *trial) error {
	old := func(m *store.Member) string { return m.Data() + ".old" }
	saved := func(m *store.Member) error {
		return m.Files(func(dir string) error { return os.CopyFS(old(m), os.DirFS(dir)) })
	}
	restored := func(m *store.Member) error {
		return m.Files(func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Rename(old(m), dir)) })
	}
	start := func(m *store.Member) error { return m.Start(ctx) }
	for _, turn := range []func(*store.Member) error{saved, restored} {
		for _, step := range []func(*store.Member) error{(*store.Member).Kill, turn, start} {
			if err := each(t.all(), step); err != nil {
				return err
			}
		}
		t.settle()
		if err := t.eachRegisterWritten(ctx); err != nil {
			return err
		}
		t.hold(ctx, 500*time.Millisecond, time.Second)
	}
	return nil
}}

// eachRegisterWritten waits until each of the four registers was written, from now on. The roll
// back loses the writes before it; the search for an order must find that by the answers before
// and after.
func (t *trial) eachRegisterWritten(ctx context.Context) error {
	const registers = 4
	for since := uint64(0); ; {
		items, revision, err := t.leader.List(ctx, member.ListArgs{Prefix: "/reg/"})
		if err == nil && since == 0 {
			since = revision
		}
		written := slices.DeleteFunc(items, func(i raftstore.Item) bool { return i.ModRevision <= since })
		if err == nil && len(written) == registers {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%d registers were written since revision %d: %w", len(written), since,
				errors.Join(err, context.Cause(ctx)))
		}
		schedule.Pause(ctx, 10*time.Millisecond)
	}
}

// TestFindsLoss loses acknowledged writes. Both kinds of checks must find that.
func TestFindsLoss(t *testing.T) {
	needs.AllTests(t)
	cfg := config{Schedule: schedule.Schedule[fault]{Seed: 1, Faults: []fault{rollBack}}, dir: t.TempDir(),
		options: options(1, ""), discard: true}
	r, err := execute(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Join(r.Failures(), "\n")
	for _, want := range []string{"what clients and watchers were told is wrong", "an acknowledged write stays",
		linear.ErrNone.Error()} {
		if !strings.Contains(found, want) {
			t.Errorf("not found: %q in\n%s", want, found)
		}
	}
}
