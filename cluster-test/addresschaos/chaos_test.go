package main

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/barque/barque/cluster-test/faultrun/clusterrun"
	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/internal/needs"
)

var seed = flag.Uint64("seed", 0, "seed of the short run; 0 draws one")

func TestMain(m *testing.M) { os.Exit(clusterrun.Test(m)) }

// short is the choice of faults for the run of the tests: each of the mechanisms.
var short = regexp.MustCompile(
	`^(kill the leader|kill a holder|exclude a holder|pause the leader until its holds end|short pauses of a holder|` +
		`pause a majority|leader alone|holder silent|transfer)$`)

// TestShortRun is a short run of the program, with a seed of its own each time.
func TestShortRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the short run breaks a real cluster, with network namespaces and containers: run it as root")
	}
	plan, left := schedule.New(*seed, short, allFaults())
	t.Logf("repeat with -seed %d", plan.Seed)
	needs.LeftOut(t, left)
	r, err := execute(t.Context(), config{Schedule: plan, out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	r.report(t.Output())
	for _, f := range r.Failures() {
		t.Error(f)
	}
	if !r.Failed() && len(r.results) != len(plan.Faults) {
		t.Errorf("%d faults were made, of %d", len(r.results), len(plan.Faults))
	}
	if _, heard := r.watcher.Counts(); heard < 1000 {
		t.Errorf("only %d claims were heard", heard)
	}
}

// TestNames: each kind has a name of its own, which can be given to make in quotes, and the short
// run has as many kinds as it should have.
func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range allFaults() {
		if seen[f.name] || strings.ContainsAny(f.name, `'"$\`+"`") {
			t.Errorf("a kind is called %q", f.name)
		}
		seen[f.name] = true
	}
	if plan, left := schedule.New(1, short, allFaults()); len(plan.Faults)+len(left) != 9 {
		t.Errorf("the short run has %d kinds", len(plan.Faults)+len(left))
	}
}
