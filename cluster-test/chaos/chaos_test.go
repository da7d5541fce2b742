package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/faultrun/clusterrun"
	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/internal/needs"
)

var seed = flag.Uint64("seed", 0, "seed of the short run; 0 draws one")

func TestMain(m *testing.M) { os.Exit(clusterrun.Test(m)) }

// short is the choice of faults for the run of the tests: each of the mechanisms, and the
// worst faults.
var short = regexp.MustCompile(
	`^(kill the leader|kill all|kill containerd|clock jumps: leader|leader alone|packet loss|slow network|` +
		`disk hangs: leader|disk full: leader|power off: follower|torn log|leave and join|restore)$`)

// shortDuration is for how long faults begin in the short run, which goes on until each kind was
// made once.
const shortDuration = 3 * time.Minute

// TestShortRun is a short run of the program, with a seed of its own each time.
func TestShortRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the short run breaks a real cluster, with network namespaces and containers: run it as root")
	}
	plan, left := schedule.New(*seed, short, allFaults())
	plan.Duration, plan.Least = shortDuration, len(plan.Faults)
	t.Logf("repeat with -seed %d", plan.Seed)
	needs.LeftOut(t, left)
	cfg := config{Schedule: plan, out: t.Output(), page: filepath.Join(t.TempDir(), "page.html"),
		repeat: fmt.Sprintf("go test ./cluster-test/chaos -seed %d", plan.Seed)}
	r, err := execute(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.report(t.Output()); err != nil {
		t.Error(err)
	}
	for _, f := range r.Failures() {
		t.Error(f)
	}
	made := make(map[string]bool)
	for _, s := range r.Spans() {
		made[s.Kind] = true
	}
	if !r.Failed() && len(made) != len(plan.Faults) {
		t.Errorf("faults of %d kinds were made, of %d", len(made), len(plan.Faults))
	}
	if took := r.Elapsed(); !r.Failed() && took < shortDuration {
		t.Errorf("it ended after %v, with %d faults", took, len(r.Spans()))
	}
	if r.acked < 100 || r.calls < 500 {
		t.Errorf("only %d writes were acknowledged, and %d calls judged", r.acked, r.calls)
	}
	if n := r.fewestPodChanges(); n < replicas+fixed { // all of them went in the end
		t.Errorf("a server's watch of pods told of %d changes only", n)
	}
	if t.Failed() { // on a machine of another speed there are more faults, or fewer
		t.Logf("make chaos SEED=%d COUNT=%d FAULTS='%s' makes these faults, and one more", plan.Seed, len(r.Spans())+1,
			short)
	}
}

// TestShort: the expression names as many kinds as the short run should have.
func TestShort(t *testing.T) {
	if plan, left := schedule.New(1, short, allFaults()); len(plan.Faults)+len(left) != 13 {
		t.Errorf("the short run has %d kinds, and should have 13", len(plan.Faults)+len(left))
	}
}

// TestNames: each kind has a name of its own, which can be given to make in quotes.
func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range allFaults() {
		if seen[f.name] || strings.ContainsAny(f.name, `'"$\`+"`") {
			t.Errorf("a kind is called %q", f.name)
		}
		seen[f.name] = true
	}
}

// TestSpared: a fault that excuses no eviction does not begin while an earlier fault still
// excuses one.
func TestSpared(t *testing.T) {
	for _, f := range clockFaults() {
		if !f.spares {
			t.Errorf("%s begins while an eviction is excused", f.name)
		}
	}
}
