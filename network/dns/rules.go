package dns

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Rules are users' additions to the answers, in a subset of the syntax of CoreDNS's Corefile: see
// docs/dns.md. They come in files, whose names give their type:
//
//	*.server    blocks for zones of their own:  example.com { forward . 192.0.2.53 }
//	*.override  directives for all names:       rewrite name old.example.com new.example.com
type Rules struct {
	override block            // for all names
	servers  map[string]block // by zone
}

// block has the directives for a zone.
type block struct {
	rewrites []rewrite
	hosts    *hostTable
	forward  *forwardRule
	keep     time.Duration // how long answers may be kept at most; 0 for the usual
	log      bool
}

// forwardRule has the servers of a zone.
type forwardRule struct {
	servers []netip.AddrPort // none: the node's resolvers
	node    bool
	tcp     bool
	except  []string
}

// rewrite asks for another name than the client did.
type rewrite struct {
	matches func(name string) (string, bool)
	last    bool
}

// hostTable is a list of addresses, as in /etc/hosts.
type hostTable struct {
	addrs     map[string][]netip.Addr
	names     map[netip.Addr][]string
	ttl       uint32
	next      bool
	noReverse bool
}

// ParseRules reads and checks rules. domain is the cluster's, whose names no other server may have.
// own reports whether an address is of cluster DNS, which must not ask itself. The error names
// every wrong file, with the line.
func ParseRules(files map[string]string, domain string, own func(netip.Addr) bool) (*Rules, error) {
	rules := &Rules{servers: map[string]block{}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var err error
		switch {
		case strings.HasSuffix(name, ".override"):
			err = rules.addOverride(files[name], own)
		case strings.HasSuffix(name, ".server"):
			err = rules.addServers(files[name], dns.CanonicalName(domain), own)
		default:
			err = errors.New("the name of a key ends with .server or .override")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return rules, nil
}

func (r *Rules) addOverride(text string, own func(netip.Addr) bool) error {
	statements, err := parseStatements(text)
	if err != nil {
		return err
	}
	for _, s := range statements {
		if err := r.override.add(s, own); err != nil {
			return fmt.Errorf("line %d: %w", s.line, err)
		}
		if s.words[0] == "hosts" && !r.override.hosts.next {
			return fmt.Errorf("line %d: hosts without fallthrough would deny all other names", s.line)
		}
	}
	return nil
}

func (r *Rules) addServers(text, domain string, own func(netip.Addr) bool) error {
	statements, err := parseStatements(text)
	if err != nil {
		return err
	}
	for _, s := range statements {
		if !s.open {
			return fmt.Errorf("line %d: a block for a zone is missing: example.com { … }", s.line)
		}
		var b block
		for _, inner := range s.block {
			if err := b.add(inner, own); err != nil {
				return fmt.Errorf("line %d: %w", inner.line, err)
			}
		}
		if b.forward == nil && b.hosts == nil {
			return fmt.Errorf("line %d: nothing answers for the zone: add forward or hosts", s.line)
		}
		for _, word := range s.words {
			for _, key := range strings.FieldsFunc(word, func(c rune) bool { return c == ',' }) {
				zone, err := zoneOf(key, domain)
				if err != nil {
					return fmt.Errorf("line %d: %w", s.line, err)
				}
				if _, twice := r.servers[zone]; twice {
					return fmt.Errorf("line %d: %s has a block already", s.line, zone)
				}
				r.servers[zone] = b
			}
		}
	}
	return nil
}

// zoneOf reads the name of a block.
func zoneOf(key, domain string) (string, error) {
	key = strings.TrimPrefix(key, "dns://")
	name, port, found := strings.Cut(key, ":")
	if found && port != "53" {
		return "", fmt.Errorf("%s: cluster DNS is served at port 53 only", key)
	}
	zone, err := nameOf(name)
	switch {
	case err != nil:
		return "", err
	case zone == ".":
		return "", errors.New("rules for all names belong in a key that ends with .override")
	case dns.IsSubDomain(domain, zone) || dns.IsSubDomain(zone, domain):
		return "", fmt.Errorf("%s: the names of %s are the cluster's", name, domain)
	}
	return zone, nil
}

func nameOf(text string) (string, error) {
	if _, ok := dns.IsDomainName(text); !ok || strings.ContainsAny(text, "*/ ") {
		return "", fmt.Errorf("%q is no domain name", text)
	}
	return dns.CanonicalName(text), nil
}

// builtIn are directives that always apply.
var builtIn = []string{"errors", "loadbalance", "loop", "reload"}

// add takes one directive into a block.
func (b *block) add(s statement, own func(netip.Addr) bool) error {
	name, args := s.words[0], s.words[1:]
	switch name {
	case "forward":
		return b.addForward(args, s.block, own)
	case "hosts":
		return b.addHosts(args, s.block)
	case "rewrite":
		if s.open {
			if len(args) > 1 || len(args) == 1 && args[0] != "stop" && args[0] != "continue" {
				return errors.New("rewrite: want rewrite [stop|continue] { name … }")
			}
			for _, inner := range s.block {
				if inner.words[0] == "answer" {
					continue // answers are always given under the name that was asked for
				}
				if err := b.addRewrite(append(slices.Clone(args), inner.words...)); err != nil {
					return err
				}
			}
			return nil
		}
		return b.addRewrite(args)
	case "cache":
		return b.addCache(args, s.open)
	case "log":
		b.log = true
		return nil
	}
	if slices.Contains(builtIn, name) {
		return nil
	}
	return fmt.Errorf("%s is not among the directives that are known: forward, hosts, rewrite, cache, log", name)
}

func (b *block) addCache(args []string, open bool) error {
	if open || len(args) > 1 {
		return errors.New("cache: want nothing but a number of seconds")
	}
	if len(args) == 0 {
		return nil
	}
	seconds, err := strconv.Atoi(args[0])
	if err != nil || seconds < 1 || seconds > 3600 {
		return fmt.Errorf("cache: %q is no number of seconds from 1 to 3600", args[0])
	}
	b.keep = time.Duration(seconds) * time.Second
	return nil
}

// maxForward is how many servers a forward directive may name, as with CoreDNS.
const maxForward = 15

func (b *block) addForward(args []string, options []statement, own func(netip.Addr) bool) error {
	switch {
	case b.forward != nil:
		return errors.New("forward: there is one already")
	case len(args) < 2 || args[0] != ".":
		return errors.New("forward: want forward . SERVER…")
	case len(args) > maxForward+1:
		return fmt.Errorf("forward: at most %d servers", maxForward)
	}
	rule := &forwardRule{}
	for _, to := range args[1:] {
		if strings.HasPrefix(to, "/") {
			if to != "/etc/resolv.conf" {
				return fmt.Errorf("forward: the node's resolvers are /etc/resolv.conf, not %s", to)
			}
			rule.node = true
			continue
		}
		server, err := serverOf(to)
		if err != nil {
			return fmt.Errorf("forward: %w", err)
		}
		if own(server.Addr().Unmap()) {
			return fmt.Errorf("forward: %s is cluster DNS itself; name a server that it can ask", to)
		}
		rule.servers = append(rule.servers, server)
	}
	if rule.node && len(rule.servers) > 0 {
		return errors.New("forward: /etc/resolv.conf is given alone")
	}
	for _, o := range options {
		switch o.words[0] {
		case "force_tcp":
			rule.tcp = true
		case "prefer_udp": // as it is done
		case "policy":
			if len(o.words) != 2 || o.words[1] != "sequential" {
				return errors.New("forward: servers are asked in their order: policy sequential")
			}
		case "except":
			for _, text := range o.words[1:] {
				zone, err := nameOf(text)
				if err != nil {
					return fmt.Errorf("forward: except: %w", err)
				}
				rule.except = append(rule.except, zone)
			}
		default:
			return fmt.Errorf(
				"forward: the option %s is not among those that are known: except, force_tcp, policy sequential",
				o.words[0])
		}
	}
	b.forward = rule
	return nil
}

// serverOf reads an address with or without a port.
func serverOf(text string) (netip.AddrPort, error) {
	text = strings.TrimPrefix(text, "dns://")
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, 53), nil
	}
	server, err := netip.ParseAddrPort(text)
	if err != nil || server.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address of a server; want an IP address, and maybe a port", text)
	}
	return server, nil
}

func (b *block) addHosts(args []string, lines []statement) error {
	if b.hosts != nil {
		return errors.New("hosts: there is one already")
	}
	if len(args) > 0 {
		return errors.New("hosts: files of the node are not read; write the lines between braces")
	}
	table := &hostTable{addrs: map[string][]netip.Addr{}, names: map[netip.Addr][]string{}, ttl: 3600}
	for _, line := range lines {
		switch line.words[0] {
		case "fallthrough":
			if len(line.words) > 1 {
				return fmt.Errorf("line %d: fallthrough counts for all names of the block", line.line)
			}
			table.next = true
		case "no_reverse":
			table.noReverse = true
		case "reload": // there is no file
		case "ttl":
			if len(line.words) != 2 {
				return fmt.Errorf("line %d: want ttl SECONDS", line.line)
			}
			seconds, err := strconv.ParseUint(line.words[1], 10, 16)
			if err != nil || seconds == 0 {
				return fmt.Errorf("line %d: ttl: %q is no number of seconds from 1 to 65535", line.line, line.words[1])
			}
			table.ttl = uint32(seconds)
		default:
			if err := table.add(line.words); err != nil {
				return fmt.Errorf("line %d: %w", line.line, err)
			}
		}
	}
	b.hosts = table
	return nil
}

func (t *hostTable) add(words []string) error {
	addr, err := netip.ParseAddr(words[0])
	if err != nil || len(words) < 2 {
		return fmt.Errorf("%q: want an IP address and names", strings.Join(words, " "))
	}
	for _, text := range words[1:] {
		name, err := nameOf(text)
		if err != nil {
			return err
		}
		t.addrs[name] = append(t.addrs[name], addr.Unmap())
		t.names[addr.Unmap()] = append(t.names[addr.Unmap()], name)
	}
	return nil
}

// lookup answers from the table; ok is false when it is for others to answer.
func (t *hostTable) lookup(name string, kind uint16) (records []dns.RR, ok bool) {
	header := dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: t.ttl}
	if addr, isReverse := addressOf(name); isReverse {
		if names := t.names[addr]; kind == dns.TypePTR && !t.noReverse && len(names) > 0 {
			for _, one := range names {
				records = append(records, &dns.PTR{Hdr: header, Ptr: one})
			}
			return records, true
		}
		return nil, false
	}
	addrs, there := t.addrs[strings.ToLower(name)]
	if !there {
		return nil, false
	}
	for _, record := range addressRecords(name, kind, addrs) {
		record.Header().Ttl = t.ttl
		records = append(records, record)
	}
	return records, true
}

// addRewrite reads [stop|continue] name [exact|prefix|suffix|substring|regex] FROM TO [answer
// auto].
func (b *block) addRewrite(args []string) error {
	r := rewrite{last: true}
	if len(args) > 0 && (args[0] == "stop" || args[0] == "continue") {
		r.last, args = args[0] == "stop", args[1:]
	}
	if len(args) > 2 && args[len(args)-2] == "answer" && args[len(args)-1] == "auto" {
		args = args[:len(args)-2]
	}
	if len(args) < 3 || args[0] != "name" {
		return errors.New("rewrite: want rewrite [stop|continue] name [exact|prefix|suffix|substring|regex] FROM TO")
	}
	kind := "exact"
	if args = args[1:]; len(args) == 3 {
		kind, args = args[0], args[1:]
	}
	if len(args) != 2 {
		return errors.New("rewrite: want rewrite [stop|continue] name [exact|prefix|suffix|substring|regex] FROM TO")
	}
	from := strings.ToLower(args[0])
	if kind == "regex" {
		from = "(?i)" + args[0] // \S is not \s
	}
	matches, err := matcher(kind, from, strings.ToLower(args[1]))
	if err != nil {
		return fmt.Errorf("rewrite: %w", err)
	}
	r.matches = matches
	b.rewrites = append(b.rewrites, r)
	return nil
}

// matcher returns a function from names, in lower case and absolute, to the names to ask for.
func matcher(kind, from, to string) (func(string) (string, bool), error) {
	switch kind {
	case "exact":
		from, to = dns.Fqdn(from), dns.Fqdn(to)
		return func(name string) (string, bool) { return to, name == from }, nil
	case "prefix":
		return func(name string) (string, bool) {
			rest, ok := strings.CutPrefix(name, from)
			return to + rest, ok
		}, nil
	case "suffix":
		from, to = dns.Fqdn(from), dns.Fqdn(to)
		return func(name string) (string, bool) {
			rest, ok := strings.CutSuffix(name, from)
			return rest + to, ok
		}, nil
	case "substring":
		return func(name string) (string, bool) {
			return strings.Replace(name, from, to, 1), strings.Contains(name, from)
		}, nil
	case "regex":
		expression, err := regexp.Compile(from)
		if err != nil {
			return nil, err
		}
		template := groups.ReplaceAllString(strings.ReplaceAll(to, "$", "$$"), "$${$1}")
		return func(name string) (string, bool) {
			found := expression.FindStringSubmatchIndex(name)
			if found == nil {
				return "", false
			}
			return dns.Fqdn(string(expression.ExpandString(nil, template, name, found))), true
		}, nil
	}
	return nil, fmt.Errorf("%q is none of exact, prefix, suffix, substring, regex", kind)
}

// groups are the places for parts of a regular expression's match, as in {1}.
var groups = regexp.MustCompile(`\{(\d+)\}`)

// forName returns the block of the longest zone of a name in lower case; ok is false without one.
func (r *Rules) forName(name string) (block, bool) {
	for offset, end := 0, false; !end; offset, end = dns.NextLabel(name, offset) {
		if b, ok := r.servers[name[offset:]]; ok {
			return b, true
		}
	}
	return block{}, false
}

// rewritten returns the name that is to be asked for.
func (b *block) rewritten(name string) string {
	for _, r := range b.rewrites {
		to, ok := r.matches(name)
		if _, valid := dns.IsDomainName(to); !ok || !valid {
			continue
		}
		name = to
		if r.last {
			break
		}
	}
	return name
}
