package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/check"
)

var (
	seed     = flag.Uint64("seed", 0, "first seed; 0 draws one")
	seeds    = flag.Int("seeds", 14, "how many seeds")
	leaders  = flag.Int("leaders", 0, "terms with a leader in each run; 0: as the seed decides")
	exchange = flag.Bool("exchange", false, "remove servers, wipe them and let them join again in all runs, not only in half of them")
	out      = flag.String("out", "", "directory for the record of a run that fails; default: a temporary one")
)

// TestSimulation runs many seeds. Package check says what it looks for.
func TestSimulation(t *testing.T) {
	first := *seed
	if first == 0 {
		first = rand.Uint64N(1 << 40)
	}
	var terms, want atomic.Int64
	var stop atomic.Bool // after the first violation
	t.Run("seeds", func(t *testing.T) {
		for i := range uint64(*seeds) {
			t.Run(fmt.Sprint(first+i), func(t *testing.T) {
				t.Parallel()
				if stop.Load() {
					t.Skip("another run has failed")
				}
				defer func() { stop.Store(stop.Load() || t.Failed()) }()
				opts := Options{Seed: first + i, Leaders: *leaders, Exchange: *exchange}.withDefaults()
				want.Add(int64(opts.Leaders))
				terms.Add(int64(simulate(t, opts)))
			})
		}
	})
	t.Logf("%d terms with a leader in %d runs, from seed %d", terms.Load(), *seeds, first)
	if terms.Load() < want.Load() && !t.Failed() {
		t.Errorf("%d terms with a leader, want %d", terms.Load(), want.Load())
	}
}

// simulate runs a seed and returns the number of terms with a leader.
func simulate(t *testing.T, opts Options) int {
	began := time.Now()
	var result Result
	synctest.Test(t, func(*testing.T) { result = Run(opts) })
	ran := time.Since(began)
	violations := append(result.Problems, result.Record.Verdict(check.Options{Clocks: result.Clocks})...)
	n := result.Record.Counts()
	t.Logf("seed %d (%d servers, brisk %v, exchange %v): %d terms, %d writes (%d unknown), %d reads, %d watches of %d batches in %v, which took %v and %v to check",
		opts.Seed, opts.Servers, opts.Brisk, opts.Exchange, n.Terms, n.Writes, n.Unknown, n.Reads, n.Watches, n.Events, result.Simulated.Round(time.Second),
		ran.Round(time.Millisecond), (time.Since(began) - ran).Round(time.Millisecond))
	if len(violations) == 0 {
		return n.Terms
	}
	for i, v := range violations {
		if i < 10 {
			t.Error(v)
		}
	}
	t.Errorf("repeat with: make sim SEED=%d SEEDS=1", opts.Seed)
	t.Errorf("the record is in %s", keep(t, opts.Seed, result.Record, violations))
	return n.Terms
}

// keep writes the record where people can look at it.
func keep(t *testing.T, seed uint64, record *check.Record, violations []check.Violation) string {
	dir := *out
	if dir == "" {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, fmt.Sprintf("barque-sim-%d", seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
	}
	text, err := os.Create(filepath.Join(dir, "record.txt"))
	if err != nil {
		t.Error(err)
		return dir
	}
	defer text.Close()
	for _, v := range violations {
		fmt.Fprintln(text, "VIOLATION", v)
	}
	record.Print(text)
	page, err := os.Create(filepath.Join(dir, "porcupine.html"))
	if err != nil {
		t.Error(err)
		return dir
	}
	defer page.Close()
	if err := record.Visualize(page); err != nil {
		t.Error(err)
	}
	return dir
}
