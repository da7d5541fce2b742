package sim

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore/check"
)

var (
	seed  = flag.Uint64("seed", 0, "first seed; 0 draws one")
	seeds = flag.Int("seeds", 0, "how many seeds; 0: 14, or in a short run the first 3")
	hours = flag.Float64("hours", 0,
		"how many hours of virtual time under faults, in runs of -span; instead of -seeds")
	span     = flag.Duration("span", 10*time.Minute, "how long, in virtual time, faults come in each run of -hours")
	leaders  = flag.Int("leaders", 0, "terms with a leader in each run; 0: as the seed decides")
	exchange = flag.Bool("exchange", false,
		"remove servers, wipe them and let them join again in all runs, not only in half of them")
	out = flag.String("out", "", "directory for the record of a run that fails; default: a temporary one")
)

// total is the sum of several runs.
type total struct {
	mu             sync.Mutex
	runs, faults   int
	stormy         time.Duration
	counts         check.Counts
	leaders, quota int // terms with a leader: how many there were, and were to be at least
}

func (t *total) add(r Result, opts Options) {
	n := r.Record.Counts()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs++
	t.faults += r.Faults
	t.stormy += r.Stormy
	t.leaders += n.Terms
	if opts.Leaders < math.MaxInt {
		t.quota += opts.Leaders
	}
	t.counts.Add(n)
}

func (t *total) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf(
		"%d runs: %v of virtual time under faults, %d faults, %d terms with a leader, %d writes (%d unknown), %d reads, %d batches of events watched",
		t.runs, t.stormy.Round(time.Second), t.faults, t.leaders, t.counts.Writes, t.counts.Unknown, t.counts.Reads,
		t.counts.Events)
}

// TestSimulation runs many seeds. Package check lists the checks.
func TestSimulation(t *testing.T) {
	first, runs, each := *seed, *seeds, Options{Leaders: *leaders, Exchange: *exchange}
	if first == 0 && testing.Short() {
		first = 1 // the same seeds each time: new ones are looked for by the long runs
	}
	if first == 0 {
		first = rand.Uint64N(1 << 40)
	}
	if runs == 0 {
		runs = 14
		if testing.Short() {
			runs = 3
		}
	}
	if *hours > 0 { // all of its time, however many leaders there are
		runs = int(math.Ceil(*hours * float64(time.Hour) / float64(*span)))
		each.Limit, each.Leaders = *span, math.MaxInt
	}
	var all total
	var stop atomic.Bool // after the first violation
	t.Run("seeds", func(t *testing.T) {
		for i := range uint64(runs) {
			t.Run(fmt.Sprint(first+i), func(t *testing.T) {
				t.Parallel()
				if stop.Load() {
					t.Skip("another run has failed")
				}
				defer func() { stop.Store(stop.Load() || t.Failed()) }()
				opts := each
				opts.Seed = first + i
				simulate(t, opts.withDefaults(), &all)
			})
		}
	})
	t.Logf("%v, from seed %d", &all, first)
	if all.leaders < all.quota && !t.Failed() {
		t.Errorf("%d terms with a leader, want %d", all.leaders, all.quota)
	}
}

// simulate runs a seed.
func simulate(t *testing.T, opts Options, all *total) {
	began := time.Now()
	var result Result
	synctest.Test(t, func(*testing.T) { result = Run(opts) })
	ran := time.Since(began)
	violations := append(result.Problems, result.Record.Verdict(check.Options{Clocks: result.Clocks})...)
	all.add(result, opts)
	n := result.Record.Counts()
	t.Logf(
		"seed %d (%d servers, brisk %v, exchange %v): %d faults, %d terms, %d writes (%d unknown), %d reads, %d watches of %d batches in %v, which took %v and %v to check",
		opts.Seed, opts.Servers, opts.Brisk, opts.Exchange, result.Faults, n.Terms, n.Writes, n.Unknown, n.Reads,
		n.Watches, n.Events, result.Simulated.Round(time.Second),
		ran.Round(time.Millisecond), (time.Since(began) - ran).Round(time.Millisecond))
	if len(violations) == 0 {
		return
	}
	for i, v := range violations {
		if i < 10 {
			t.Error(v)
		}
	}
	repeat := fmt.Sprintf("make sim SEED=%d SEEDS=1", opts.Seed)
	if *hours > 0 {
		repeat = fmt.Sprintf("make sim SEED=%d HOURS=%.3f SPAN=%v", opts.Seed, span.Hours(), *span)
	}
	t.Errorf("repeat with: %s", repeat)
	t.Errorf("the record is in %s", keep(t, opts.Seed, result.Record, violations))
}

// keep writes the record where people can look at it.
func keep(t *testing.T, seed uint64, record *check.Record, violations []history.Violation) string {
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
