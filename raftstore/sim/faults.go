package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// fault does harm and returns the function that takes it back.
type fault struct {
	name  string
	often int
	do    func(c *cluster, rnd *rand.Rand) (undo func())
}

// faults are those that a storm draws from, each as often as it says.
var faults = []fault{
	{"leader isolated", 5, func(c *cluster, rnd *rand.Rand) func() {
		c.net.Isolate(addr(c.leader(rnd).index))
		return c.net.Heal
	}},
	{"leader mute", 4, func(c *cluster, rnd *rand.Rand) func() {
		c.net.Mute(addr(c.leader(rnd).index))
		return c.net.Heal
	}},
	{"one-way partition of the leader", 4, oneWay},
	{"bridge", 3, bridge},
	{"flapping", 2, flap},
	{"connections break", 2, func(c *cluster, rnd *rand.Rand) func() {
		a, b := c.two(rnd)
		c.net.Reset(addr(a), addr(b))
		return nothing
	}},
	{"slow network", 2, func(c *cluster, rnd *rand.Rand) func() {
		c.delay(rnd, 30*time.Millisecond, 0.1)
		return func() { c.delay(rnd, time.Millisecond, 0) }
	}},
	{"crash", 5, func(c *cluster, rnd *rand.Rand) func() {
		return c.crash(rnd, c.leader(rnd))
	}},
	{"crash of any", 2, func(c *cluster, rnd *rand.Rand) func() {
		return c.crash(rnd, c.servers[rnd.IntN(len(c.servers))])
	}},
	{"crash of a majority", 2, func(c *cluster, rnd *rand.Rand) func() {
		return c.crash(rnd, pick(rnd, c.servers, len(c.servers)/2+1)...)
	}},
	{"crash of all", 1, func(c *cluster, rnd *rand.Rand) func() { return c.crash(rnd, c.servers...) }},
	{"crash at a point", 5, crashAtPoint},
	{"stop in order", 2, func(c *cluster, rnd *rand.Rand) func() {
		s := c.leader(rnd)
		s.stop()
		return s.launch
	}},
	{"disk", 5, sickDisk},
	{"clock jumps", 2, func(c *cluster, rnd *rand.Rand) func() {
		c.leader(rnd).clock.jump(time.Duration(rnd.Int64N(int64(2*maxOffset))) - maxOffset)
		return nothing
	}},
	{"transfer", 3, func(c *cluster, rnd *rand.Rand) func() {
		if p := c.leader(rnd).live(); p != nil {
			ctx, cancel := limited(p.ctx, time.Second)
			defer cancel()
			p.TransferLeadership(ctx, "")
		}
		return nothing
	}},
	{"snapshot", 4, func(c *cluster, rnd *rand.Rand) func() {
		if p := c.servers[rnd.IntN(len(c.servers))].live(); p != nil {
			c.dying.Go(func() { p.Snapshot() }) // ends at the latest with the process
		}
		return nothing
	}},
}

// brisk are the faults of a brisk run.
var brisk = []string{"leader isolated", "one-way partition of the leader", "connections break", "crash",
	"stop in order", "transfer"}

func nothing() {}

func pick[T any](rnd *rand.Rand, from []T, n int) []T {
	var picked []T
	for _, i := range rnd.Perm(len(from))[:n] {
		picked = append(picked, from[i])
	}
	return picked
}

func (c *cluster) two(rnd *rand.Rand) (int, int) {
	p := rnd.Perm(len(c.servers))
	return p[0], p[1]
}

// oneWay drops the leader's messages, or those to it, to or from one or all.
func oneWay(c *cluster, rnd *rand.Rand) func() {
	leader, out, all := c.leader(rnd).index, rnd.IntN(2) == 0, rnd.IntN(2) == 0
	for _, other := range rnd.Perm(len(c.servers)) {
		if other == leader {
			continue
		}
		if out {
			c.net.Block(addr(leader), addr(other))
		} else {
			c.net.Block(addr(other), addr(leader))
		}
		if !all {
			break
		}
	}
	return c.net.Heal
}

// bridge splits the servers into two halves that one server alone sees both of.
func bridge(c *cluster, rnd *rand.Rand) func() {
	order := rnd.Perm(len(c.servers))
	half := len(order) / 2
	for _, a := range order[1 : half+1] {
		for _, b := range order[half+1:] {
			c.net.Cut(addr(a), addr(b))
		}
	}
	return c.net.Heal
}

// flap cuts a link and lets it come back, several times.
func flap(c *cluster, rnd *rand.Rand) func() {
	a, b := c.two(rnd)
	for range 3 + rnd.IntN(5) {
		c.net.Cut(addr(a), addr(b))
		sleep(time.Duration(10+rnd.IntN(100)) * time.Millisecond)
		c.net.Heal()
		sleep(time.Duration(10+rnd.IntN(100)) * time.Millisecond)
	}
	return nothing
}

func (c *cluster) crash(rnd *rand.Rand, which ...*server) func() {
	power := rnd.IntN(2) == 0
	for _, s := range which {
		s.crash(power, fmt.Sprintf("power loss: %v", power))
	}
	return func() {
		for _, s := range which {
			s.launch()
		}
	}
}

func crashAtPoint(c *cluster, rnd *rand.Rand) func() {
	s := c.leader(rnd)
	if rnd.IntN(2) == 0 {
		s = c.servers[rnd.IntN(len(c.servers))]
	}
	point := points[rnd.IntN(len(points))]
	s.mu.Lock()
	s.armed = point
	s.mu.Unlock()
	if p := s.live(); p != nil && point == pointSnapshot {
		c.dying.Go(func() { p.Snapshot() }) // ends at the latest with the process
	}
	return func() {
		s.mu.Lock()
		s.armed = ""
		s.mu.Unlock()
		s.launch()
	}
}

func sickDisk(c *cluster, rnd *rand.Rand) func() {
	s := c.leader(rnd)
	if rnd.IntN(3) == 0 {
		s = c.servers[rnd.IntN(len(c.servers))]
	}
	s.mu.Lock()
	d := s.disk
	s.mu.Unlock()
	switch rnd.IntN(4) {
	case 0:
		d.set(80*time.Millisecond, false, nil)
	case 1:
		d.set(0, true, nil)
	case 2:
		d.set(0, false, errIO)
	case 3:
		d.set(0, false, errFull)
	}
	return func() {
		d.set(time.Millisecond, false, nil)
		s.launch() // it may have died of it
	}
}

// delay gives the network up to that much delay, and loss: the share of messages that are sent
// again.
func (c *cluster) delay(rnd *rand.Rand, most time.Duration, loss float64) {
	random := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
	var shared counter // for its lock
	c.net.Delay(func(string, string, int) time.Duration {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		d := time.Duration(random.Int64N(int64(most)))
		if random.Float64() < loss {
			d += 200 * time.Millisecond
		}
		return d
	})
}

// storm does harm until enough terms had a leader, or until the end of its time.
func (c *cluster) storm(end time.Time) {
	rnd := rand.New(rand.NewPCG(c.opts.Seed, 2))
	only, pause := c.opts.only, 550
	if c.opts.Brisk {
		only, pause = brisk, 150
	}
	faults := slices.DeleteFunc(slices.Clone(faults),
		func(f fault) bool { return only != nil && !slices.Contains(only, f.name) })
	total := 0
	for _, f := range faults {
		total += f.often
	}
	for c.record.Terms() < c.opts.Leaders && time.Now().Before(end) {
		var undo []func()
		for i := range 1 + rnd.IntN(2) {
			if i > 0 && c.opts.Brisk {
				break
			}
			n := rnd.IntN(total)
			for _, f := range faults {
				if n -= f.often; n < 0 {
					c.note("%s", f.name)
					c.faults++
					undo = append(undo, f.do(c, rnd))
					break
				}
			}
		}
		sleep(time.Duration(50+rnd.IntN(pause)) * time.Millisecond)
		for _, f := range undo {
			f()
		}
		sleep(time.Duration(rnd.IntN(200)) * time.Millisecond)
	}
}

// heal takes all harm back.
func (c *cluster) heal() {
	c.note("all is well again")
	c.net.Heal()
	c.net.Delay(nil)
	for _, s := range c.servers {
		s.mu.Lock()
		s.armed = ""
		s.disk.set(0, false, nil)
		s.mu.Unlock()
		s.start()
	}
}

func sleep(d time.Duration) { <-time.After(d) }
