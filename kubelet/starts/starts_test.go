package starts

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestLimit: it is one at least, and no higher on a machine that is shorter of CPU.
func TestLimit(t *testing.T) {
	for cpus := range 200 {
		before := Limit(cpus, 0)
		for delay := time.Duration(0); delay < time.Second; delay += 10 * time.Millisecond {
			got := Limit(cpus, delay)
			if got < 1 || got > before || cpus > 0 && got < cpus/2 {
				t.Fatalf("%d CPUs, a delay of %v: %d starts, %d with less delay", cpus, delay, got, before)
			}
			before = got
		}
	}
}

// begin begins one start as a pod's worker does, and waits until it has begun.
func begin(p *Pacer, s Start) (end func()) {
	woken := make(chan struct{}, 1)
	s.Wake = func() { woken <- struct{}{} }
	for {
		if end, ok := p.Begin(s); ok {
			return end
		}
		<-woken
	}
}

// TestManyStarts starts pods at once, whose sandboxes and containers take their time. Never more
// are under way than the limit, all become ready, critical ones before others, and the others one
// after the other.
func TestManyStarts(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			delay := time.Duration(rnd.Int64N(int64(400 * time.Millisecond)))
			p := New(Config{CPUs: 2, Delay: func() time.Duration { return delay }})
			limit := Limit(2, delay)
			var mu sync.Mutex
			var running sync.WaitGroup
			under, ready := 0, []string{}
			start := func(s Start, takes time.Duration) {
				end := begin(p, s)
				mu.Lock()
				if under++; under > limit {
					t.Errorf("seed %d: %d starts are under way, %d may be", seed, under, limit)
				}
				mu.Unlock()
				<-time.After(takes)
				mu.Lock()
				under--
				mu.Unlock()
				end()
			}
			for i := range 110 {
				name, critical := fmt.Sprintf("pod-%d", i), i%20 == 19
				box, containers := time.Duration(rnd.Int64N(int64(time.Second))),
					time.Duration(rnd.Int64N(int64(time.Second)))
				running.Go(func() {
					start(Start{Pod: types.UID(name), Critical: critical}, box)
					start(Start{Pod: types.UID(name), Critical: critical, Begun: true}, containers)
					mu.Lock()
					defer mu.Unlock()
					ready = append(ready, name)
				})
			}
			running.Wait()
			if len(ready) != 110 {
				t.Errorf("seed %d: %d pods are ready", seed, len(ready))
			}
			for i := 19; i < 110; i += 20 {
				if at := slices.Index(ready, fmt.Sprintf("pod-%d", i)); at > 5+2*limit {
					t.Errorf("seed %d: critical pod %d is ready as number %d", seed, i, at)
				}
			}
			if len(p.turns)+len(p.waiting)+len(p.called) != 0 {
				t.Errorf("seed %d: something is left: %d, %d, %d", seed, len(p.turns), len(p.waiting), len(p.called))
			}
		})
	}
}

// TestPodsBecomeReadyOneAfterTheOther: a pod with a sandbox comes before those without one.
func TestPodsBecomeReadyOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{CPUs: 1, Delay: func() time.Duration { return time.Second }})
		end := begin(p, Start{Pod: "first"})
		var order []types.UID
		var running sync.WaitGroup
		for _, s := range []Start{{Pod: "new"}, {Pod: "new too"}, {Pod: "begun", Begun: true},
			{Pod: "critical", Critical: true}} {
			running.Go(func() {
				end := begin(p, s)
				order = append(order, s.Pod)
				end()
			})
			synctest.Wait()
		}
		end()
		running.Wait()
		if want := []types.UID{"critical", "begun", "new", "new too"}; !slices.Equal(order, want) {
			t.Errorf("%q, want %q", order, want)
		}
	})
}

// TestNoPodWaitsForEver: neither for critical pods without end, nor for starts that never end, nor
// for a pod that is called and has ended.
func TestNoPodWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Config{CPUs: 1, Delay: func() time.Duration { return time.Second }})
		began := time.Now()
		end := begin(p, Start{Pod: "hangs"})
		begin(p, Start{Pod: "hangs, too"})
		if took := time.Since(began); took != Held {
			t.Errorf("the second one waited for %v", took)
		}
		woken := false
		if _, ok := p.Begin(Start{Pod: "ended", Wake: func() { woken = true }}); ok {
			t.Error("two at once")
		}
		stop := make(chan struct{})
		var running sync.WaitGroup
		for i := range 3 {
			running.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						end := begin(p, Start{Pod: types.UID(fmt.Sprint(i)), Critical: true})
						<-time.After(time.Second)
						end()
					}
				}
			})
		}
		began = time.Now()
		last := begin(p, Start{Pod: "ordinary"})
		if took := time.Since(began); took > Patience+2*Held {
			t.Errorf("an ordinary pod waited for %v", took)
		}
		last()
		close(stop)
		running.Wait()
		p.Forget("ended")
		end() // a start that ends after it has ceased to count
		if !woken {
			t.Error("it was not called")
		}
		if len(p.turns) > 1 {
			t.Errorf("%d are under way", len(p.turns))
		}
		<-time.After(Held)
		if len(p.turns) != 0 {
			t.Errorf("%d are under way", len(p.turns))
		}
	})
}
