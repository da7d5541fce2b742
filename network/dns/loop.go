package dns

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/util/rand"
)

const (
	// lookEvery is the interval of checks of the servers.
	lookEvery = 5 * time.Second
	// probeEvery is the interval of probes while there is a loop or the servers do not answer.
	probeEvery = 30 * time.Second
	// probeZone has no names: a question for it reaches this server by a loop only.
	probeZone = probeLabel + "barque.invalid."
	// probeLabel follows probeLetters random ones in the name of a probe.
	probeLabel   = "loop-check."
	probeLetters = 20
)

// loopGuard detects whether forwarded questions come back here, as they do when the node is
// configured to use cluster DNS for everything. Meanwhile it stops forwarding. Otherwise each
// question would end in a timeout, which clients take for a slow network.
//
// A server that a rule names for some zones may ask cluster DNS for all others, so its probes are
// names of these zones.
//
// One question in a loop is no storm: it waits for itself (see resolver.forward).
type loopGuard struct {
	upstreams func() []*upstream // that are asked now
	told      func(of *upstream, loops bool)
	show      func(loops bool) // whether any does, called after each look

	mu     sync.Mutex
	checks map[*upstream]*loopCheck
	probes map[string]*loopCheck // by the names that are on their way
}

// loopCheck is the state of one upstream.
type loopCheck struct {
	servers  []netip.AddrPort // that were probed
	probed   time.Time
	returned bool // a probe came back
	loops    bool
	failing  bool // the servers did not answer, since the last probe
}

// of returns the check of an upstream, with mu held.
func (g *loopGuard) of(u *upstream) *loopCheck {
	check := g.checks[u]
	if check == nil {
		check = &loopCheck{}
		if g.checks == nil {
			g.checks, g.probes = map[*upstream]*loopCheck{}, map[string]*loopCheck{}
		}
		g.checks[u] = check
	}
	return check
}

// looping reports whether there is a loop.
func (g *loopGuard) looping(u *upstream) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	check := g.checks[u]
	return check != nil && check.loops
}

// failed notes that an upstream's servers did not answer: a loop may be why.
func (g *loopGuard) failed(u *upstream) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.of(u).failing = true
}

// arrived tells whether a name in lower case is a probe's, this server's or another's.
func (g *loopGuard) arrived(name string) bool {
	if len(name) <= probeLetters || !strings.HasPrefix(name[probeLetters:], "."+probeLabel) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	check, own := g.probes[name]
	if own {
		check.returned = true
	}
	return own || strings.HasSuffix(name, "."+probeZone)
}

// run looks for loops until ctx ends.
func (g *loopGuard) run(ctx context.Context) {
	for {
		g.lookAtAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
	}
}

// lookAtAll probes the upstreams that are due.
func (g *loopGuard) lookAtAll(ctx context.Context) {
	asked := g.upstreams()
	var looks sync.WaitGroup
	for _, u := range asked {
		servers := u.servers()
		g.mu.Lock()
		check := g.of(u)
		again := (check.loops || check.failing) && time.Since(check.probed) >= probeEvery
		due := again || !slices.Equal(servers, check.servers)
		if due {
			check.servers, check.probed = slices.Clone(servers), time.Now()
			check.returned, check.failing = false, false
		}
		g.mu.Unlock()
		if due {
			looks.Go(func() { g.look(ctx, u, check, servers) })
		}
	}
	looks.Wait()
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	maps.DeleteFunc(g.checks, func(u *upstream, _ *loopCheck) bool { return !slices.Contains(asked, u) })
	loops := false
	for _, check := range g.checks {
		loops = loops || check.loops
	}
	g.mu.Unlock()
	g.show(loops)
}

// look sends a probe for each zone to each server.
func (g *loopGuard) look(ctx context.Context, u *upstream, check *loopCheck, servers []netip.AddrPort) {
	var names []string
	for _, zone := range u.zones {
		names = append(names, rand.String(probeLetters)+"."+probeLabel+zone)
	}
	if len(u.zones) == 0 {
		names = []string{rand.String(probeLetters) + "." + probeZone}
	}
	g.mu.Lock()
	for _, name := range names {
		g.probes[name] = check
	}
	g.mu.Unlock()
	var all sync.WaitGroup
	for _, name := range names {
		query := new(dns.Msg)
		query.SetQuestion(name, dns.TypeHINFO)
		for _, server := range servers {
			// The answer does not matter, nor its absence.
			all.Go(func() { _, _ = u.attempt(ctx, server, query) })
		}
	}
	all.Wait()
	g.mu.Lock()
	for _, name := range names {
		delete(g.probes, name)
	}
	changed := ctx.Err() == nil && check.loops != check.returned
	if changed {
		check.loops = check.returned
	}
	now := check.loops
	g.mu.Unlock()
	if changed {
		g.told(u, now)
	}
}
