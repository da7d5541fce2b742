// Package gctuner tunes Go's garbage collector in a process that holds a store.
//
// By Go's default the heap grows to twice the live heap before the next collection. That pays if
// objects are small and full of pointers. The items of a store are large and long-lived, and have
// no pointers in them (raftstore/mvcc), so that marking them costs little. Keep lets the heap grow
// by a fraction of the live heap only, as long as collecting stays cheap:
//
//	tight ──collecting takes more than MaxShare of the CPU used──▶ looser … Go's default, or Most
//	tight ◀──less than half of that────────────────────────────── looser
//
// A large heap that has become busy after a rest would be collected a few times before the costs
// show. The goroutines that allocate help then, for seconds, since the heap has so little room to
// grow. So the tuner also foresees the cost of collecting, from the newest collection and the rate
// of allocation, and is looser before.
//
// By Go's default a small heap is collected all the time under load: of a server with 40 MiB alive,
// requests allocate as much again in a second. So a small heap may become looser than that, as far
// as the process allocates it within window: memory is taken where it saves collections, and a
// process that allocates little keeps Go's default.
//
// When the process stops allocating, it is tight, and unused memory returns to the system.
//
// The program calls Keep once, and not the store: a process has one collector. If GOGC is set the
// operator has decided, and Keep does nothing. GOMEMLIMIT also applies.
package gctuner

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Policy is the tightness of memory. The zero value is for servers.
type Policy struct {
	// Least is by how many bytes the heap may always grow beyond the live heap. Default: 32 MiB.
	Least uint64
	// Part is the divisor of the live heap that gives the growth, when that is more than Least.
	// Default: 8.
	Part uint64
	// Most is by how many bytes the heap may grow beyond the live heap while collecting is dear,
	// when that is more than Go's default. Default: 256 MiB.
	Most uint64
	// MaxShare is the share of the CPU time used by the process that collecting may take. Default:
	// 0.05.
	MaxShare float64
}

func (p Policy) withDefaults() Policy {
	if p.Least == 0 {
		p.Least = 32 << 20
	}
	if p.Part == 0 {
		p.Part = 8
	}
	if p.Most == 0 {
		p.Most = 256 << 20
	}
	if p.MaxShare <= 0 {
		p.MaxShare = 0.05
	}
	return p
}

const (
	// normal is Go's default.
	normal = 100
	look   = time.Second // between two samples
	// restLooks is the number of consecutive samples with next to nothing allocated after which the
	// process gives memory back.
	restLooks = 15
	// restBytes is next to nothing, in bytes a sample.
	restBytes = 4 << 20
	// window is the number of samples in which a growth beyond Go's default must be allocated.
	window = 10
	// steady is the number of samples over which the rate of allocation is averaged.
	steady = 8
)

// Keep applies the policy to the collector until ctx ends, and then restores the default.
func Keep(ctx context.Context, p Policy) {
	if os.Getenv("GOGC") != "" {
		<-ctx.Done()
		return
	}
	before := debug.SetGCPercent(normal)
	defer debug.SetGCPercent(before)
	k := newKeeper(p, read())
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		d := k.look(read())
		if d.set {
			debug.SetGCPercent(k.percent)
		}
		if d.giveBack {
			debug.FreeOSMemory()
		}
	}
}

// reading is a sample of the runtime's metrics. All but live only grow.
type reading struct {
	live      uint64  // bytes that the newest collection found alive
	allocated uint64  // bytes
	cycles    uint64  // collections
	collect   float64 // CPU seconds of the collector that it did not take from idle cores
	idle      float64 // those that it did
	user      float64 // CPU seconds of the program
}

func read() reading {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"},
		{Name: "/cpu/classes/gc/pause:cpu-seconds"}, {Name: "/cpu/classes/user:cpu-seconds"},
		{Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
	}
	metrics.Read(samples)
	return reading{
		live: samples[0].Value.Uint64(), allocated: samples[1].Value.Uint64(), cycles: samples[2].Value.Uint64(),
		collect: samples[3].Value.Float64() + samples[4].Value.Float64() + samples[5].Value.Float64(),
		user:    samples[6].Value.Float64(),
		idle:    samples[7].Value.Float64(),
	}
}

// keeper decides at each sample.
type keeper struct {
	policy  Policy
	percent int // in force
	told    int // percent that follows from the cost of collections

	last     reading // the previous sample
	measured reading // the newest sample with a new collection: the CPU times change with these
	rate     uint64  // bytes allocated in a sample, averaged
	cost     float64 // CPU seconds of the newest collection, by whatever cores
	cpu      float64 // CPU seconds used in a sample, between the two newest collections
	looks    int     // samples since the newest collection
	resting  int     // consecutive samples with next to nothing allocated
	used     uint64  // bytes allocated since memory was given back
}

// newKeeper starts at Go's default. It counts from start, so that the first sample excludes earlier
// work.
func newKeeper(p Policy, start reading) *keeper {
	return &keeper{policy: p.withDefaults(), percent: normal, told: normal, last: start, measured: start}
}

// decision is the result of a sample.
type decision struct{ set, giveBack bool }

func (k *keeper) look(now reading) (d decision) {
	allocated := now.allocated - k.last.allocated
	k.used += allocated
	k.last = now
	if k.resting++; allocated > restBytes {
		k.resting = 0
	}
	k.rate = ((steady-1)*k.rate + allocated) / steady
	k.looks++
	loosest := k.policy.loosest(now.live, k.rate)
	k.told = min(k.told, loosest)
	if now.cycles != k.measured.cycles {
		k.told = min(k.policy.next(k.told, now.live, share(k.measured, now)), loosest)
		k.cost = cost(k.measured, now)
		k.cpu = (now.user - k.measured.user + now.collect - k.measured.collect) / float64(k.looks)
		k.measured, k.looks = now, 0
	}
	next := max(k.told, min(k.policy.needed(now.live, k.rate, k.cost, k.cpu), loosest))
	if k.resting >= restLooks { // it may be long until the next collections show that they are cheap
		k.told = k.policy.tightest(now.live)
		next = k.told
	}
	if d.set = differs(k.percent, next); d.set {
		k.percent = next
	}
	if k.resting == restLooks && k.used > k.policy.Least {
		k.used, d.giveBack = 0, true
	}
	return d
}

// share is the collector's share of the CPU time between two samples.
func share(from, to reading) float64 {
	collect, user := to.collect-from.collect, to.user-from.user
	if collect <= 0 {
		return 0
	}
	return collect / (collect + max(user, 0))
}

// cost is the cost of a collection between two samples, in CPU seconds.
func cost(from, to reading) float64 {
	return max(to.collect-from.collect+to.idle-from.idle, 0) / float64(to.cycles-from.cycles)
}

// needed is the percentage at which collections that cost so much take MaxShare of the CPU time,
// when so many bytes are allocated and so many CPU seconds are used in a sample. A process that has
// used little is about to use a CPU.
func (p Policy) needed(live, rate uint64, cost, cpu float64) int {
	samples := cost / p.MaxShare / max(cpu, look.Seconds()) // from one collection to the next
	return int(100 * float64(rate) * samples / float64(max(live, p.Least)))
}

// next returns by how many percent of the live heap the heap may grow before the next collection.
func (p Policy) next(percent int, live uint64, share float64) int {
	switch {
	case share > p.MaxShare:
		percent = percent*3/2 + 1
	case share < p.MaxShare/2:
		percent = percent * 4 / 5
	}
	return max(percent, p.tightest(live))
}

// tightest is the percentage when collecting is cheap.
func (p Policy) tightest(live uint64) int {
	if live == 0 {
		return normal
	}
	return int(min(100*max(p.Least, live/p.Part)/live, normal))
}

// loosest is the percentage when collecting is dear, and so many bytes are allocated in a sample.
func (p Policy) loosest(live, rate uint64) int {
	return int(max(100*min(p.Most, window*rate)/max(live, p.Least), normal))
}

// differs reports whether a change is worth stopping the world for.
func differs(old, new int) bool { return 10*max(old-new, new-old) >= old }
