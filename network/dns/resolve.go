package dns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
)

const (
	// answerTime bounds the search for one answer: clients give up after 5 s.
	answerTime = 4500 * time.Millisecond
	// maxAliases is how many CNAMEs one answer follows.
	maxAliases = 8
	// maxForwarded bounds the clients that wait for other servers at once, maxForwardedOfOne those
	// at one address. It is well below maxQueries, so slow servers elsewhere leave room for the
	// cluster's names.
	maxForwarded      = 1000
	maxForwardedOfOne = 250
)

// resolver finds answers: by the users' rules, in the cluster's zone, in the cache, from others.
type resolver struct {
	zone *zone
	// former is the zone as an earlier process wrote it down, for the time until ready. It may be
	// nil.
	former *zone
	own    []netip.Prefix // reverse names in these networks are never forwarded
	cache  *answers
	node   *upstream // the node's own resolvers
	// loops reports whether forwarded questions come back.
	loops func(*upstream) bool
	// failed is called when none of an upstream's servers answered.
	failed  func(*upstream)
	rules   func() *compiled
	flights singleflight.Group
	waiting *limiter // of clients that wait for other servers
	ready   func() bool
}

// compiled are rules with their upstreams.
type compiled struct {
	*Rules
	forwards map[*forwardRule]*upstream
}

func compile(rules *Rules, node *upstream, ask, askTCP exchange) *compiled {
	c := &compiled{Rules: rules, forwards: map[*forwardRule]*upstream{}}
	add := func(rule *forwardRule) *upstream {
		if rule.node {
			c.forwards[rule] = node
		} else if c.forwards[rule] == nil {
			by := ask
			if rule.tcp {
				by = askTCP
			}
			c.forwards[rule] = newUpstream(func() []netip.AddrPort { return rule.servers }, by)
		}
		return c.forwards[rule]
	}
	if rule := rules.override.forward; rule != nil {
		add(rule)
	}
	for _, zone := range slices.Sorted(maps.Keys(rules.servers)) {
		if rule := rules.servers[zone].forward; rule != nil {
			if to := add(rule); to != node {
				to.zones = append(to.zones, zone)
			}
		}
	}
	return c
}

// upstreams are all that are asked, each once.
func (r *resolver) upstreams() []*upstream {
	all := []*upstream{r.node}
	for _, to := range r.rules().forwards {
		if to != r.node {
			all = append(all, to)
		}
	}
	return all
}

// known returns the zone to answer from, or nil.
func (r *resolver) known() *zone {
	if r.ready() {
		return r.zone
	}
	return r.former
}

var (
	errUnknown = errors.New("the cluster's services are not known yet")
	errLoop    = errors.New("the node's resolvers ask cluster DNS itself")
	errRuled   = errors.New("the servers of a rule ask cluster DNS itself")
	errTooMany = errors.New("too many questions wait for other servers")
	// errTooManyOfOne: others are still served.
	errTooManyOfOne = errors.New("too many questions of this client wait for other servers")
)

// result is an answer to a client, without its header.
type result struct {
	rcode          int
	authoritative  bool
	authentic      bool // other servers say so
	answer, ns, rr []dns.RR
	err            error // why rcode is SERVFAIL, if known
	log            bool  // the users want to see it
	from           string
}

func failed(err error) result { return result{rcode: dns.RcodeServerFailure, err: err} }

// resolve answers one question of class IN.
func (r *resolver) resolve(ctx context.Context, query request) result {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, errors.New("no server answered in time"))
	defer cancel()
	asked := query.Question[0]
	name := strings.ToLower(asked.Name)
	rules := r.rules()
	rewritten := rules.override.rewritten(name)
	if own, ok := rules.forName(rewritten); ok {
		rewritten = own.rewritten(rewritten)
	}
	if rewritten == name {
		return r.follow(ctx, query, rules, asked.Name, asked.Qtype)
	}
	found := r.follow(ctx, query, rules, rewritten, asked.Qtype)
	found.answer = slices.Clone(found.answer)
	for i, record := range found.answer {
		if strings.EqualFold(record.Header().Name, rewritten) {
			record = dns.Copy(record)
			record.Header().Name = asked.Name
			found.answer[i] = record
		}
	}
	return found
}

// follow answers, and follows aliases of the cluster's names.
func (r *resolver) follow(ctx context.Context, query request, rules *compiled, name string, kind uint16) result {
	var chain []dns.RR
	for range maxAliases {
		found, alias := r.once(ctx, query, rules, name, kind)
		found.answer = append(chain, found.answer...)
		if alias == "" {
			return found
		}
		chain, name = found.answer, alias
	}
	loop := failed(errors.New("too many aliases, or aliases in a circle"))
	loop.from = fromCluster
	return loop
}

// once answers for a name without following aliases.
func (r *resolver) once(
	ctx context.Context, query request, rules *compiled, name string, kind uint16,
) (found result, alias string) {
	lower := strings.ToLower(name)
	b, special := rules.forName(lower)
	if !special {
		b = rules.override
	}
	defer func() {
		found.log = b.log
		if found.from == "" {
			found.from = fromCluster
		}
	}()
	if b.hosts != nil {
		if records, ok := b.hosts.lookup(name, kind); ok {
			return result{authoritative: true, answer: records, from: fromRules}, ""
		}
		if special && !b.hosts.next {
			return result{rcode: dns.RcodeNameError, authoritative: true, from: fromRules}, ""
		}
	}
	if special {
		return r.forward(ctx, query, rules, b, name, kind), ""
	}
	if r.zone.covers(lower) {
		zone := r.known()
		if zone == nil {
			return failed(errUnknown), ""
		}
		known := zone.lookup(name, kind)
		found = result{rcode: known.rcode, authoritative: true, answer: known.answer, rr: known.extra}
		if len(known.answer) == 0 {
			found.ns = []dns.RR{r.zone.authority()}
		}
		return found, known.alias
	}
	if addr, ok := addressOf(lower); ok {
		if found, ok := r.reverse(name, addr, kind); ok {
			return found, ""
		}
	}
	return r.forward(ctx, query, rules, b, name, kind), ""
}

// reverse answers for an address that the cluster knows or owns.
func (r *resolver) reverse(name string, addr netip.Addr, kind uint16) (result, bool) {
	zone := r.known()
	if zone == nil {
		zone = r.zone
	}
	records, known := zone.reverse(name, addr)
	if !known && !slices.ContainsFunc(r.own, func(network netip.Prefix) bool { return network.Contains(addr) }) {
		return result{}, false
	}
	out := result{authoritative: true}
	switch {
	case r.known() == nil:
		return failed(errUnknown), true
	case !known:
		out.rcode = dns.RcodeNameError
	case kind == dns.TypePTR:
		out.answer = records
		return out, true
	}
	of := "in-addr.arpa."
	if addr.Is6() {
		of = "ip6.arpa."
	}
	out.ns = []dns.RR{authority(of, r.zone.serverName(), r.zone.origin)}
	return out, true
}

// forward asks others, each question once at a time.
func (r *resolver) forward(
	ctx context.Context, query request, rules *compiled, b block, name string, kind uint16,
) (found result) {
	defer func() {
		if found.from == "" {
			found.from = fromForwarded
		}
	}()
	to := r.node
	if b.forward != nil {
		to = rules.forwards[b.forward]
		if slices.ContainsFunc(b.forward.except,
			func(zone string) bool { return dns.IsSubDomain(zone, strings.ToLower(name)) }) {
			to = r.node
		}
	}
	if r.loops(to) {
		if to == r.node {
			return failed(errLoop)
		}
		return failed(errRuled)
	}
	q := question{name: strings.ToLower(name), kind: kind, cd: query.CheckingDisabled, upstream: to}
	if opt := query.IsEdns0(); opt != nil {
		q.do = opt.Do()
	}
	if message, ok := r.cache.get(q); ok {
		found = resultOf(message)
		found.from = fromCache
		return found
	}
	// Clients that wait for another client's question count too.
	if err := r.waiting.enter(query.source); err != nil {
		return failed(err)
	}
	defer r.waiting.leave(query.source)
	key := fmt.Sprintf("%p/%s/%d/%t/%t", to, q.name, kind, q.do, q.cd)
	// The first client asks for all, in its own goroutine, and gives up first. A panic is then one
	// of each client's goroutine, where Server.safely recovers it.
	reply, err, _ := r.flights.Do(key, func() (any, error) { return r.askOthers(ctx, to, q, name, b.keep) })
	if err != nil {
		return failed(err)
	}
	return resultOf(reply.(*dns.Msg).Copy())
}

func (r *resolver) askOthers(
	ctx context.Context, to *upstream, q question, name string, keep time.Duration,
) (*dns.Msg, error) {
	message := new(dns.Msg)
	message.SetQuestion(name, q.kind)
	message.SetEdns0(payload, q.do)
	message.CheckingDisabled = q.cd
	message.AuthenticatedData = true
	reply, err := to.ask(ctx, message)
	if err != nil {
		r.failed(to)
		failure := new(dns.Msg)
		failure.SetRcode(message, dns.RcodeServerFailure)
		r.cache.put(q, failure, 0)
		return nil, err
	}
	r.cache.put(q, reply, keep)
	return reply, nil
}

// resultOf returns the relevant parts of another server's message, which the caller owns.
func resultOf(message *dns.Msg) result {
	out := result{rcode: message.Rcode, authentic: message.AuthenticatedData, answer: message.Answer, ns: message.Ns}
	for _, record := range message.Extra {
		if record.Header().Rrtype != dns.TypeOPT {
			out.rr = append(out.rr, record)
		}
	}
	return out
}

// addressOf reads a reverse name.
func addressOf(name string) (netip.Addr, bool) {
	lower := strings.ToLower(name)
	if text, ok := strings.CutSuffix(lower, ".in-addr.arpa."); ok {
		labels := strings.Split(text, ".")
		slices.Reverse(labels)
		addr, err := netip.ParseAddr(strings.Join(labels, "."))
		return addr, err == nil && addr.Is4()
	}
	text, ok := strings.CutSuffix(lower, ".ip6.arpa.")
	if !ok || len(text) != 63 {
		return netip.Addr{}, false
	}
	digits := strings.Split(text, ".")
	slices.Reverse(digits)
	var groups []string
	for group := range slices.Chunk(digits, 4) {
		groups = append(groups, strings.Join(group, ""))
	}
	addr, err := netip.ParseAddr(strings.Join(groups, ":"))
	return addr, err == nil
}
