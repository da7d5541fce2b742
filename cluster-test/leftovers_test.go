package clustertest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The leftovers that a removed cluster is searched for exist while it lives, and are its own alone.
func TestLeftovers(t *testing.T) {
	s := newSpace(t)
	s.K("run", "here", "--image=barque.local/hello:1")
	node := s.WaitReady("here").Spec.NodeName
	own, err := s.sharedFiles(shimSockets, cniNotes)
	if err != nil {
		t.Fatal(err)
	}
	in := func(dir string) func(string) bool { return func(f string) bool { return filepath.Dir(f) == dir } }
	if !slices.ContainsFunc(own, in(shimSockets)) || !slices.ContainsFunc(own, in(cniNotes)) {
		t.Errorf("%s runs a pod, and all that is found of the cluster is %v", node, own)
	}
	for _, f := range own {
		if text, err := os.ReadFile(f); err == nil && !strings.Contains(string(text), s.Dir) {
			t.Errorf("%s is not of %s:\n%s", f, s.Dir, text)
		}
	}
	other := &Cluster{ID: s.ID + "x", Dir: s.Dir + "x"}
	if got, err := other.sharedFiles(shimSockets, cniNotes); err != nil || len(got) > 0 {
		t.Errorf("another cluster takes for its own %v, %v", got, err)
	}
}

// TestForwardingBesideAnother: the second of two clusters finds the machine forwarding, and puts
// back the setting that the first one had found.
func TestForwardingBesideAnother(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	barque := filepath.Join(t.TempDir(), "barque")
	if err := os.WriteFile(barque, data, 0o755); err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), barque, "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{ID: "beside"}
	before, err := c.forwardingBefore()
	if err := errors.Join(other.Process.Kill(), err); err != nil {
		t.Error(err)
	}
	_ = other.Wait() // killed
	if before != "" {
		t.Errorf("beside another Barque the machine's setting is taken for the one to leave behind: %s", before)
	}
	if c.forwarding = before; c.leftSettings() != nil {
		t.Error(c.leftSettings())
	}
}

// TestAwaitNothing: a wait for the end of a cluster's leftovers prints them.
func TestAwaitNothing(t *testing.T) {
	for name, c := range map[string]struct {
		gone  time.Duration
		said  int
		fails bool
	}{
		"at once":    {0, 0, false},
		"soon":       {time.Second, 0, false},
		"after 20 s": {20 * time.Second, 2, false}, // at 3 s and 18 s
		"never":      {time.Hour, 8, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var out strings.Builder
				err := awaitNothing(&out, "cluster x", 2*time.Minute, func() error {
					if time.Since(began) >= c.gone {
						return nil
					}
					return errors.New("left behind: process 7")
				})
				if said := strings.Count(out.String(), "left behind: process 7"); said != c.said ||
					(err != nil) != c.fails {
					t.Errorf("said %d times, want %d; ended with %v:\n%s", said, c.said, err, &out)
				}
			})
		})
	}
}

// TestInCgroup: another cluster's name may begin with this one's.
func TestInCgroup(t *testing.T) {
	for groups, want := range map[string]bool{
		"12:pids:/barque-dev-x/s1/pod\n0::/\n": true,
		"0::/barque-dev-x\n":                   true,
		"12:pids:/barque-dev-x2/s1\n":          false,
		"12:pids:/barque\n":                    false,
	} {
		if got := inCgroup(groups, "/barque-dev-x"); got != want {
			t.Errorf("%q: %t, want %t", groups, got, want)
		}
	}
}

// TestOwnLink: the bridge of a cluster that is being made is all that is there of it. Another
// cluster's name may begin with this one's.
func TestOwnLink(t *testing.T) {
	for name, want := range map[string]bool{"bq-x": true, "bq-x-s1": true, "bq-x2": false, "bq-x2-s1": false,
		"eth0": false} {
		if got := (&Cluster{ID: "x"}).ownLink(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
