package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	// attemptTime bounds the wait for one server. Clients wait 5 s, so that all attempts fit in.
	attemptTime = 1500 * time.Millisecond
	attempts    = 3
	// avoidFor is how long a server that did not answer is asked after the others.
	avoidFor = 10 * time.Second
	// plainFor is how long a server without EDNS is asked without it.
	plainFor = 10 * time.Minute
	// payload is the largest requested UDP answer, which needs no fragments anywhere (DNS flag day
	// 2020).
	payload = 1232
)

// exchange asks one server. It returns an error when there was no answer to the question.
type exchange func(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error)

// upstream is a group of equivalent servers.
type upstream struct {
	servers  func() []netip.AddrPort // in the order of preference
	zones    []string                // the zones that they are asked for; none: all names
	exchange exchange

	mu      sync.Mutex
	avoided map[netip.AddrPort]time.Time // until when
	plain   map[netip.AddrPort]time.Time // servers without EDNS, until when
}

func newUpstream(servers func() []netip.AddrPort, ask exchange) *upstream {
	return &upstream{servers: servers, exchange: ask,
		avoided: map[netip.AddrPort]time.Time{}, plain: map[netip.AddrPort]time.Time{}}
}

var errNoServers = errors.New("there is no server to ask")

// ask asks one server after the other. The answer of one that fails or refuses counts if no other
// has a better one.
func (u *upstream) ask(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	servers := u.order()
	if len(servers) == 0 {
		return nil, errNoServers
	}
	var poor *dns.Msg
	var errs []error
	for i := range attempts {
		if i >= len(servers) && poor != nil {
			break // this server would fail again
		}
		server := servers[i%len(servers)]
		reply, err := u.attempt(ctx, server, query)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			u.avoid(server, true)
			errs = append(errs, fmt.Errorf("%v: %w", server, err))
		case reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeRefused || ununderstood(reply):
			u.avoid(server, false)
			poor = reply
		default:
			u.avoid(server, false)
			return reply, nil
		}
	}
	if poor != nil {
		return poor, nil
	}
	return nil, errors.Join(errs...)
}

// attempt asks one server, and repeats the question without EDNS if the server seems not to know it
// (RFC 6891, section 6.2.2).
func (u *upstream) attempt(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	if query.IsEdns0() == nil {
		return u.exchange(ctx, server, query)
	}
	if u.isPlain(server) {
		return u.exchange(ctx, server, withoutEDNS(query))
	}
	reply, err := u.exchange(ctx, server, query)
	if err != nil || !ununderstood(reply) || reply.IsEdns0() != nil {
		return reply, err
	}
	reply, err = u.exchange(ctx, server, withoutEDNS(query))
	if err == nil && !ununderstood(reply) {
		u.mu.Lock()
		u.plain[server] = time.Now().Add(plainFor)
		u.mu.Unlock()
	}
	return reply, err
}

// ununderstood reports whether a server answers that it cannot read the question.
func ununderstood(reply *dns.Msg) bool {
	return reply.Rcode == dns.RcodeFormatError || reply.Rcode == dns.RcodeNotImplemented
}

func withoutEDNS(query *dns.Msg) *dns.Msg {
	query = query.Copy()
	query.Extra = slices.DeleteFunc(query.Extra,
		func(record dns.RR) bool { return record.Header().Rrtype == dns.TypeOPT })
	return query
}

func (u *upstream) isPlain(server netip.AddrPort) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Now().Before(u.plain[server])
}

// order puts the servers that did not answer lately behind the others.
func (u *upstream) order() []netip.AddrPort {
	servers := slices.Clone(u.servers())
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for server, until := range u.avoided {
		if !now.Before(until) {
			delete(u.avoided, server)
		}
	}
	for server, until := range u.plain {
		if !now.Before(until) {
			delete(u.plain, server)
		}
	}
	slices.SortStableFunc(servers, func(a, b netip.AddrPort) int {
		_, late := u.avoided[a]
		_, later := u.avoided[b]
		switch {
		case late == later:
			return 0
		case late:
			return 1
		default:
			return -1
		}
	})
	return servers
}

func (u *upstream) avoid(server netip.AddrPort, silent bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if silent {
		u.avoided[server] = time.Now().Add(avoidFor)
	} else {
		delete(u.avoided, server)
	}
}

// overNetwork asks by UDP, each time from another port, and by TCP if the answer is too long for
// that.
func overNetwork(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	reply, err := over(ctx, "udp", server, query)
	if err == nil && reply.Truncated {
		return over(ctx, "tcp", server, query)
	}
	return reply, err
}

func over(ctx context.Context, network string, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	client := &dns.Client{Net: network, UDPSize: payload, Dialer: &net.Dialer{}}
	if deadline, ok := ctx.Deadline(); ok {
		client.Timeout = time.Until(deadline)
	}
	query = query.Copy() // with an identifier of its own
	query.Id = dns.Id()
	conn, err := client.DialContext(ctx, server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // the library only respects the deadline
	defer stop()
	reply, _, err := client.ExchangeWithConnContext(ctx, query, conn)
	if err != nil {
		return nil, err
	}
	if reply.Response && ununderstood(reply) && len(reply.Question) == 0 {
		return reply, nil // a server does not repeat a question that it cannot read
	}
	if !reply.Response || len(reply.Question) != 1 || reply.Question[0].Qtype != query.Question[0].Qtype ||
		!strings.EqualFold(reply.Question[0].Name, query.Question[0].Name) {
		return nil, fmt.Errorf("an answer to another question than %v", query.Question[0])
	}
	return reply, nil
}
