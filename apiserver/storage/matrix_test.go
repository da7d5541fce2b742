package storage

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestMain lets more tests run at once than there are processors: nearly all of their time is spent
// waiting for elections and timers.
func TestMain(m *testing.M) {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		if err := parallel.Value.Set("16"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// place is the place of the store under test in a group of servers.
type place struct {
	name string
	open func(t *testing.T) *raftstore.Store
}

// places are all of them, each a replicated store. Those of three are in memory, and no leader is
// lost in them unless a test does that.
func places() []place {
	return []place{
		{"single", func(t *testing.T) *raftstore.Store {
			c := storetest.NewCluster(t, 1, func(_ int, cfg *raftstore.Config) {
				patient(0, cfg)
				cfg.InMemory, cfg.Dir = false, t.TempDir()
			})
			return c.Servers[0].Store
		}},
		{"leader", func(t *testing.T) *raftstore.Store {
			c := newThree(t)
			leader, _ := c.Leader()
			return c.Servers[leader].Store
		}},
		{"follower", func(t *testing.T) *raftstore.Store {
			c := newThree(t)
			leader, _ := c.Leader()
			return c.Servers[(leader+1)%3].Store
		}},
	}
}

// patient gives servers time: no leader is deposed, no call given up and no history ended because
// the race detector and other packages' tests have the CPU. These tests are about storages.
func patient(_ int, cfg *raftstore.Config) {
	cfg.Timeouts = raftstore.Timeouts{
		Heartbeat: 3 * time.Second, Lease: 3 * time.Second,
		Call: time.Minute, DiskWrite: time.Minute, PromoteAfter: time.Millisecond,
	}
	cfg.Limits.HistoryAge = time.Hour
}

func newThree(t *testing.T) *storetest.Cluster { return storetest.NewCluster(t, 3, patient) }

// way is how the suite is run.
type way struct {
	place
	cached bool
}

func (w way) String() string { return w.name + "/" + w.over() }

// over is the name of the storage under the tests.
func (w way) over() string {
	if w.cached {
		return "cached"
	}
	return "raw"
}

// ways are all of them. The short run has the one that most code takes part in.
func ways() []way {
	if testing.Short() {
		return []way{{places()[2], true}}
	}
	var all []way
	for _, p := range places() {
		all = append(all, way{p, false}, way{p, true})
	}
	return all
}

// TestConformance runs every test of the suite in every way, and demands that each was run.
func TestConformance(t *testing.T) {
	done := make(map[string][]string) // the tests of a way
	all := slices.Concat(writeTests(), readTests(), watchTests(), corruptTests())
	for _, group := range groups(all) {
		t.Run(group.name, func(t *testing.T) { // ends when all in it have
			for gate, on := range group.gates {
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, on)
			}
			for _, c := range group.tests {
				for _, w := range ways() {
					t.Run(c.name+c.variant+"/"+w.String(), func(t *testing.T) {
						done[w.String()] = append(done[w.String()], c.name)
						c.start(t, w)
					})
				}
			}
		})
	}
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // only some were selected
	}
	exported := exportedTests(t)
	for _, w := range ways() {
		for name := range exported {
			if !slices.Contains(done[w.String()], name) {
				t.Errorf("%s was not run in the way %s", name, w)
			}
		}
	}
}

// group is tests that can run while the same feature gates are set, which all tests of a process
// share.
type group struct {
	name  string
	gates gates
	tests []conformance
}

func groups(tests []conformance) []group {
	var all []group
	for _, c := range tests {
		i := slices.IndexFunc(all, func(g group) bool { return maps.Equal(g.gates, c.gates) })
		if i < 0 {
			i = len(all)
			name := "default"
			for gate, on := range c.gates {
				name = fmt.Sprintf("%s=%v", gate, on)
			}
			all = append(all, group{name: name, gates: c.gates})
		}
		all[i].tests = append(all[i].tests, c)
	}
	return all
}

// start runs a test, in parallel with others if it can be.
func (c conformance) start(t *testing.T, w way) {
	if !c.alone {
		t.Parallel()
	}
	opts := c.opts
	if opts.cached = w.cached; c.inMemory && w.name == "single" {
		opts.backend = storetest.NewCluster(t, 1, patient).Servers[0].Store
	} else {
		opts.backend = w.open(t)
	}
	c.run(t, newEnv(t, opts))
}
