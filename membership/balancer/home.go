package balancer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// Spread orders the servers for one of many machines. Each machine has its own stable order, and
// each server is first equally often. If a server fails, only its own machines move, evenly to the
// others. (Rendezvous hashing: Thaler and Ravishankar, 1998.)
func Spread(machine string, servers []netip.AddrPort) []netip.AddrPort {
	weight := func(server netip.AddrPort) []byte {
		sum := sha256.Sum256([]byte(machine + "\x00" + server.String()))
		return sum[:]
	}
	out := slices.Clone(servers)
	slices.SortFunc(out,
		func(x, y netip.AddrPort) int { return cmp.Or(bytes.Compare(weight(x), weight(y)), x.Compare(y)) })
	return out
}

const (
	// homeSteps is how many connections go back to a better server, at most, in the time of
	// Config.Return.
	homeSteps = 12
	// quiet is the idle time of a connection before it is cut to move it. A running request is not
	// disturbed, and a watch resumes.
	quiet = 200 * time.Millisecond
)

// goHome sends connections back to better servers, one at a time, until ctx ends.
func (b *Balancer) goHome(ctx context.Context) {
	step := b.config.Return / homeSteps
	ticker := time.NewTicker(step)
	defer ticker.Stop()
	// Machines that lost the same server at the same time come back at different ones.
	wait := b.config.Return + rand.N(b.config.Return)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if b.sendHome(time.Now(), wait) {
			b.config.Logger.Debug("a connection goes back to the API server that comes first here")
		}
	}
}

// sendHome cuts one quiet connection that has a better server: one before its own in the order of
// Servers that has been ready for wait. It reports whether there was one.
func (b *Balancer) sendHome(now time.Time, wait time.Duration) bool {
	order := b.config.Servers()
	b.mu.Lock()
	defer b.mu.Unlock()
	home := slices.IndexFunc(order, func(addr netip.AddrPort) bool {
		be := b.backends[addr]
		return be != nil && be.grade == ready && now.Sub(be.since) >= wait
	})
	if home < 0 {
		return false
	}
	for _, addr := range order[home+1:] {
		be := b.backends[addr]
		if be == nil {
			continue
		}
		for l := range be.links {
			if now.Sub(l.lastActive()) >= quiet {
				l.client.Close()
				return true
			}
		}
	}
	return false
}
