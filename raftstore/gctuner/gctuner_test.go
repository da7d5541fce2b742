package gctuner

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/barque/barque/internal/await"
)

const mib = 1 << 20

func TestTightest(t *testing.T) {
	p := Policy{}.withDefaults()
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 100}, {mib, 100}, {32 * mib, 100}, {64 * mib, 50}, {256 * mib, 12}, {8 << 10 * mib, 12}} {
		if got := p.tightest(c.live); got != c.want {
			t.Errorf("with %d MiB alive: %d %%, want %d", c.live/mib, got, c.want)
		}
	}
}

// process is a process that allocates so much a second, and needs so much CPU to mark its
// live heap.
type process struct {
	live, rate uint64
	mark       float64 // CPU seconds of a collection
	used       float64 // CPU seconds of everything else in a second
}

// second lets a second pass.
func (p process) second(now *reading, percent int) {
	now.allocated += p.rate
	now.user += p.used
	if cycles := p.rate * 100 / (p.live*uint64(percent) + 1); cycles > 0 || now.allocated%(64*mib) < p.rate {
		now.cycles += max(cycles, 1)
		now.collect += float64(max(cycles, 1)) * p.mark
	}
	now.live = p.live
}

// settle returns the percentage after two minutes, and how often it was changed in the second one.
func (p process) settle(k *keeper, now *reading) (percent, changes int) {
	for i := range 120 {
		p.second(now, k.percent)
		if k.look(*now).set && i >= 60 {
			changes++
		}
	}
	return k.percent, changes
}

func TestItIsTightWhileThatIsCheap(t *testing.T) {
	k, now := keeper{policy: Policy{}.withDefaults(), percent: normal, told: normal}, reading{}
	cheap := process{live: 256 * mib, rate: 100 * mib, mark: 0.005, used: 1}
	if percent, changes := cheap.settle(&k, &now); percent > 14 || changes > 0 {
		t.Errorf("cheap: %d %%, changed %d times in a minute", percent, changes)
	}
	dear := process{live: 256 * mib, rate: 500 * mib, mark: 0.1, used: 1}
	if percent, _ := dear.settle(&k, &now); percent < normal*9/10 || percent > normal {
		t.Errorf("dear: %d %%", percent)
	}
	small := process{live: 40 * mib, rate: 100 * mib, mark: 0.1, used: 1} // 25 % of the time at 100 %
	if percent, changes := small.settle(&k, &now); percent < 600 || percent > 640 || changes > 0 {
		t.Errorf("dear, with little alive: %d %%, changed %d times in a minute", percent, changes)
	}
	between := process{live: 256 * mib, rate: 200 * mib, mark: 0.02, used: 1} // 5 % of the time at 30 %
	percent, changes := between.settle(&k, &now)
	if percent < 25 || percent > 70 || changes > 2 {
		t.Errorf("between: %d %%, changed %d times in a minute", percent, changes)
	}
	if percent, _ := cheap.settle(&k, &now); percent > 14 {
		t.Errorf("cheap again: %d %%", percent)
	}
}

func TestLoosest(t *testing.T) {
	p := Policy{}.withDefaults()
	for _, c := range []struct {
		live, rate uint64
		want       int
	}{
		{0, 100 * mib, 800}, {mib, 100 * mib, 800}, {32 * mib, 100 * mib, 800}, {64 * mib, 100 * mib, 400},
		{128 * mib, 100 * mib, 200}, {256 * mib, 100 * mib, 100}, {8 << 10 * mib, 100 * mib, 100},
		{32 * mib, 8 * mib, 250}, {32 * mib, 3 * mib, 100}, {32 * mib, 0, 100},
	} {
		if got := p.loosest(c.live, c.rate); got != c.want {
			t.Errorf("with %d MiB alive and %d MiB allocated: %d %%, want %d", c.live/mib, c.rate/mib, got, c.want)
		}
	}
}

// TestALittleWorkIsNotLoose: memory that was taken under load is wanted back when the load falls,
// although too much is allocated for a rest.
func TestALittleWorkIsNotLoose(t *testing.T) {
	k, now := keeper{policy: Policy{}.withDefaults(), percent: normal, told: normal}, reading{}
	dear := process{live: 64 * mib, rate: 200 * mib, mark: 0.1, used: 1}
	if percent, _ := dear.settle(&k, &now); percent < 360 {
		t.Fatalf("under load: %d %%", percent)
	}
	for range 60 { // no collection
		now.allocated += 2 * restBytes
		if k.look(now).giveBack {
			t.Fatal("it rests")
		}
	}
	if k.percent > 140 {
		t.Errorf("with a little to do: %d %%", k.percent)
	}
}

// heap is a process that collects when its heap has grown by the percentage, and not before.
type heap struct {
	process
	keeper
	now   reading
	grown uint64
}

// pass lets seconds pass at a rate, and returns how many collections there were.
func (h *heap) pass(seconds int, rate uint64, used float64) (collections int) {
	for range seconds {
		h.now.allocated += rate
		h.now.user += used
		h.now.live = h.live
		if h.grown += rate; h.grown >= h.live*uint64(h.percent)/100 {
			h.grown = 0
			h.now.cycles++
			h.now.collect += h.mark
			collections++
		}
		h.look(h.now)
	}
	return collections
}

func newHeap(live uint64, mark float64) *heap {
	return &heap{process: process{live: live, mark: mark},
		keeper: keeper{policy: Policy{}.withDefaults(), percent: normal, told: normal}}
}

// TestALargeHeapIsLooseBeforeItIsCollected: after a rest, a collection of seconds would come at
// once, and all allocating goroutines would help.
func TestALargeHeapIsLooseBeforeItIsCollected(t *testing.T) {
	h := newHeap(2<<10*mib, 5)
	h.pass(300, 50*mib, 1)
	h.pass(2*restLooks, mib, 0.01)
	if h.percent > 13 {
		t.Fatalf("at rest: %d %%", h.percent)
	}
	if n := h.pass(20, 50*mib, 1); n > 0 || h.percent < normal*9/10 {
		t.Errorf("busy again: it was collected %d times in 20 seconds, at %d %%", n, h.percent)
	}
}

// TestForesightIsNoFloor: a foreseen cost holds for as long as it is foreseen, and counts the CPU
// time that the process uses.
func TestForesightIsNoFloor(t *testing.T) {
	large := newHeap(1<<10*mib, 0.5)
	large.pass(1800, 100*mib, 8)
	if large.percent > 40 {
		t.Errorf("on eight CPUs, of which collecting takes little: %d %%", large.percent)
	}
	bursts := newHeap(2<<10*mib, 1)
	for minute := range 60 {
		bursts.pass(57, 5*mib, 0.5) // too much for a rest
		if minute > 30 && bursts.percent > 60 {
			t.Fatalf("minute %d, after a burst: %d %%", minute, bursts.percent)
		}
		bursts.pass(3, 300*mib, 1.5)
	}
}

// TestAProcessThatRestsIsTight: no collection there could show its cost.
func TestAProcessThatRestsIsTight(t *testing.T) {
	k, now := keeper{policy: Policy{}.withDefaults(), percent: normal, told: normal}, reading{}
	dear := process{live: 64 * mib, rate: 200 * mib, mark: 0.1, used: 1}
	if percent, _ := dear.settle(&k, &now); percent < 180 {
		t.Fatalf("dear: %d %%", percent)
	}
	set := 0
	for range 2 * restLooks {
		now.allocated += mib
		if k.look(now).set {
			set++
		}
	}
	if k.percent != 50 || set != 1 {
		t.Errorf("at rest: %d %%, changed %d times", k.percent, set)
	}
}

func TestAProcessThatRestsGivesBack(t *testing.T) {
	k, now := keeper{policy: Policy{}.withDefaults(), percent: normal, told: normal}, reading{}
	looks := func(n int, bytes uint64) (given int) {
		for range n {
			now.allocated += bytes
			if k.look(now).giveBack {
				given++
			}
		}
		return given
	}
	if n := looks(60, 100*mib); n != 0 {
		t.Errorf("it gave back %d times while it worked", n)
	}
	if n := looks(60, mib); n != 1 {
		t.Errorf("it gave back %d times after that", n)
	}
	looks(1, 2*restBytes)
	if n := looks(60, 0); n != 1 { // the garbage of its rest counts, too
		t.Errorf("it gave back %d times after a moment's work", n)
	}
	if looks(1, 2*restBytes); looks(60, 0) != 0 {
		t.Error("it gave back when there was next to nothing")
	}
}

// TestKeep sets the collector's own percentage, and sets it back.
func TestKeep(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(normal)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	percent := func() int {
		sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(sample)
		return int(sample[0].Value.Uint64())
	}
	alive := make([]byte, 200*mib)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Keep(ctx, Policy{MaxShare: 1})
	}()
	await.True(t, "the garbage collector runs more often", func() bool {
		runtime.GC()
		return percent() <= 50
	})
	runtime.KeepAlive(alive)
	stop()
	<-done
	if got := percent(); got != normal {
		t.Errorf("it left %d %% behind", got)
	}

	t.Setenv("GOGC", "77")
	debug.SetGCPercent(77)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	Keep(over, Policy{})
	if got := percent(); got != 77 {
		t.Errorf("it made %d %% of what the operator wanted", got)
	}
}

// TestTheFirstLookCountsFromTheStart: the use before the start is no reason to change anything.
func TestTheFirstLookCountsFromTheStart(t *testing.T) {
	start := reading{live: 256 * mib, allocated: 8 << 10 * mib, cycles: 50, collect: 0.1, user: 100}
	k := newKeeper(Policy{}, start)
	if d := k.look(start); d.set || d.giveBack || k.percent != normal {
		t.Errorf("nothing has happened, and it decides %+v, %d %%", d, k.percent)
	}
	next := start
	next.cycles, next.user = 51, 101
	if d := k.look(next); !d.set || k.percent == normal {
		t.Errorf("after a cheap collection it decides %+v, %d %%", d, k.percent)
	}
}
