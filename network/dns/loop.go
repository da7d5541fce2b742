package dns

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/util/rand"
)

const (
	// lookEvery is how often the node's resolvers are looked at.
	lookEvery = 5 * time.Second
	// probeEvery is how often a loop is looked for again, while there is one or while the resolvers
	// do not answer.
	probeEvery = 30 * time.Second
	// probeZone is where no names are: what is asked for there reaches this server by a loop only.
	probeZone = "loop-check.barque.invalid."
)

// loopGuard finds out whether what is asked of the node's resolvers comes back here, as it does when
// somebody tells the node to use cluster DNS for everything. While it does, those are not asked: each
// question would be answered with a time-out, which clients take for a slow network.
//
// One question that goes in a circle is no storm: it waits for itself (see resolver.forward).
type loopGuard struct {
	node *upstream
	told func(loops bool)

	mu       sync.Mutex
	probe    string // the name that is on its way
	returned bool
	loops    bool
	failing  bool // the resolvers did not answer, since the last probe
}

// looping tells whether there is a loop.
func (g *loopGuard) looping() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.loops
}

// failed notes that the node's resolvers did not answer: a loop may be why.
func (g *loopGuard) failed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failing = true
}

// arrived tells whether a name in lower case is a probe's.
func (g *loopGuard) arrived(name string) bool {
	if !strings.HasSuffix(name, probeZone) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if name == g.probe {
		g.returned = true
	}
	return true
}

// run looks for loops until ctx ends.
func (g *loopGuard) run(ctx context.Context) {
	var known []netip.AddrPort
	var probed time.Time
	for {
		servers := g.node.servers()
		g.mu.Lock()
		again := (g.loops || g.failing) && time.Since(probed) >= probeEvery
		g.mu.Unlock()
		if again || !slices.Equal(servers, known) {
			known, probed = slices.Clone(servers), time.Now()
			g.look(ctx, known)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
	}
}

// look sends a probe to each server.
func (g *loopGuard) look(ctx context.Context, servers []netip.AddrPort) {
	probe := rand.String(20) + "." + probeZone
	g.mu.Lock()
	g.probe, g.returned, g.failing = probe, false, false
	g.mu.Unlock()
	query := new(dns.Msg)
	query.SetQuestion(probe, dns.TypeHINFO)
	var all sync.WaitGroup
	for _, server := range servers {
		// What is answered does not matter, nor whether anything is.
		all.Go(func() { _, _ = g.node.attempt(ctx, server, query) })
	}
	all.Wait()
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	changed := g.loops != g.returned
	g.loops = g.returned
	now := g.loops
	g.mu.Unlock()
	if changed {
		g.told(now)
	}
}
