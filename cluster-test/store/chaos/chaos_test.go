package main

import (
	"flag"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/store/member"
)

var seed = flag.Uint64("seed", 0, "seed of the short run; 0 draws one")

func TestMain(m *testing.M) {
	member.ServeIfMember()
	os.Exit(m.Run())
}

// short is what the run of the unit tests breaks: each of the mechanisms, and what hurts most.
var short = regexp.MustCompile(`^(kill the leader|kill in a partition|kill at a point|pause the leader|clock|leader mute|` +
	`power off: all|power off at a point|disk full: leader|flipped bytes: snapshot|replace a follower)$`)

// TestShortRun is a short run of the program, with a seed of its own each time.
func TestShortRun(t *testing.T) {
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	faults, left := possible(short)
	cfg := config{seed: seed, faults: faults, dir: t.TempDir(), out: t.Output(), options: options(seed, "boltdb")}
	t.Logf("repeat with -seed %d; log in %s; %d kinds of faults left out, as they need root", seed, cfg.options.LogStore, left)
	r, err := execute(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.report(t.Output())
	for _, f := range r.failures {
		t.Error(f)
	}
	if len(r.failures) == 0 && len(r.records) != len(faults) {
		t.Errorf("%d of %d faults were made", len(r.records), len(faults))
	}
	if checked, _ := r.log.Checked(); checked < 100 {
		t.Errorf("only %d answers were checked", checked)
	}
}

// TestFindsLoss runs members that acknowledge what is not on their disks. The run must find that they lose it.
func TestFindsLoss(t *testing.T) {
	faults, _ := possible(regexp.MustCompile("^kill all$"))
	cfg := config{seed: 1, duration: time.Minute, faults: faults, dir: t.TempDir(), out: t.Output(), options: options(1, "boltdb")}
	cfg.options.Defect = member.AcknowledgesEarly
	cfg.discard = true
	r, err := execute(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.failures {
		t.Log("found:", f)
	}
	if len(r.failures) == 0 {
		t.Errorf("%d faults, and nothing was found", len(r.records))
	}
}
