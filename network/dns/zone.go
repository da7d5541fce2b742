package dns

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// schemaVersion is that of the Kubernetes DNS-Based Service Discovery specification.
	schemaVersion = "1.1.0"
	// clusterTTL is how long, in seconds, clients may cache the zone's answers and denials. Asking
	// again stays within their own machine.
	clusterTTL = 5
	// versionTTL is the specification's, in its example.
	versionTTL = 28800
)

// zone answers for the names of the cluster, by the specification
// (https://github.com/kubernetes/dns/blob/master/docs/specification.md). A name exists if it, or a
// name below it, has records. An existing name without records of the type is answered with an
// empty answer (NODATA), all others with NXDOMAIN, both with the zone's SOA.
//
// Beyond the specification it has features of CoreDNS that users rely on: names and reverse names
// of the endpoints of all services, SRV records of all ports at a service's own name, and pods'
// names by their addresses.
type zone struct {
	*state
	origin string       // lower case, with the final dot
	server []netip.Addr // where the zone is served: the cluster DNS service's addresses
}

// answer is the records of one name and type.
type answer struct {
	rcode  int
	answer []dns.RR
	extra  []dns.RR
	// alias is the target of a CNAME: the answer's records are the target's.
	alias string
}

// node is the data of a name.
type node struct {
	exists bool
	addrs  []netip.Addr
	alias  string
	srv    []target
	text   string
	apex   bool
}

// target is an SRV record's.
type target struct {
	port  uint16
	name  string // absolute
	addrs []netip.Addr
}

// covers tells whether a name, in lower case and absolute, belongs to the zone.
func (z *zone) covers(name string) bool { return dns.IsSubDomain(z.origin, name) }

// lookup answers for a name of the zone. name is as the client wrote it: its answer repeats it.
func (z *zone) lookup(name string, kind uint16) answer {
	found := z.find(strings.ToLower(name))
	header := func(kind uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: clusterTTL}
	}
	if !found.exists {
		return answer{rcode: dns.RcodeNameError}
	}
	var out answer
	if found.alias != "" {
		out.answer = []dns.RR{&dns.CNAME{Hdr: header(dns.TypeCNAME), Target: found.alias}}
		if kind != dns.TypeCNAME {
			out.alias = found.alias
		}
		return out
	}
	switch kind {
	case dns.TypeA, dns.TypeAAAA:
		out.answer = addressRecords(name, kind, found.addrs)
	case dns.TypeSRV:
		out.answer, out.extra = serviceRecords(name, found.srv)
	case dns.TypeTXT:
		if found.text != "" {
			h := header(dns.TypeTXT)
			h.Ttl = versionTTL
			out.answer = []dns.RR{&dns.TXT{Hdr: h, Txt: []string{found.text}}}
		}
	case dns.TypeSOA:
		if found.apex {
			out.answer = []dns.RR{z.authority()}
		}
	case dns.TypeNS:
		if found.apex {
			out.answer = []dns.RR{&dns.NS{Hdr: header(dns.TypeNS), Ns: z.serverName()}}
			out.extra = append(addressRecords(z.serverName(), dns.TypeA, z.server),
				addressRecords(z.serverName(), dns.TypeAAAA, z.server)...)
		}
	}
	return out
}

func (z *zone) serverName() string { return "ns.dns." + z.origin }

// authority is the zone's SOA record. Its last figure is how long a denial may be kept.
func (z *zone) authority() dns.RR { return authority(z.origin, z.serverName(), z.origin) }

func authority(of, server, origin string) dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: of, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: clusterTTL},
		Ns:  server, Mbox: "hostmaster." + origin,
		// The zone is never transferred, so the serial number and the times for secondaries mean
		// nothing.
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: clusterTTL,
	}
}

// find returns the data of a name in lower case.
func (z *zone) find(name string) node {
	z.mu.RLock()
	defer z.mu.RUnlock()
	relative := strings.TrimSuffix(strings.TrimSuffix(name, z.origin), ".")
	if relative == "" {
		return node{exists: true, apex: true}
	}
	labels := strings.Split(relative, ".")
	slices.Reverse(labels) // svc, namespace, service, …
	switch {
	case relative == "dns-version":
		return node{exists: true, text: schemaVersion}
	case relative == "dns":
		return node{exists: true}
	case relative == "ns.dns":
		return node{exists: true, addrs: z.server}
	case labels[0] != "svc" && labels[0] != "pod":
		return node{}
	case len(labels) == 1:
		return node{exists: true}
	case len(labels) == 2:
		return node{exists: z.namespaceExists(labels[1])}
	case labels[0] == "pod":
		return z.findPod(labels[1:])
	}
	key := types.NamespacedName{Namespace: labels[1], Name: labels[2]}
	if z.services[key] == nil {
		return node{}
	}
	switch below := labels[3:]; len(below) {
	case 0:
		return z.findService(key)
	case 1:
		if protocol, ok := strings.CutPrefix(below[0], "_"); ok {
			return node{
				exists: len(z.targets(key, func(p port) bool { return p.name != "" && p.protocol == protocol })) > 0}
		}
		return z.findEndpoint(key, below[0])
	case 2:
		protocol, ok := strings.CutPrefix(below[0], "_")
		name, ok2 := strings.CutPrefix(below[1], "_")
		if !ok || !ok2 || name == "" {
			return node{}
		}
		found := z.targets(key, func(p port) bool { return p.protocol == protocol && strings.EqualFold(p.name, name) })
		return node{exists: len(found) > 0, srv: found}
	}
	return node{}
}

// findPod returns the address in a pod's name (a-b-c-d.namespace.pod). Nodes do not know other
// nodes' pods, so any address is a pod's, as with CoreDNS's "pods insecure".
func (z *zone) findPod(labels []string) node {
	if len(labels) != 2 || !z.namespaceExists(labels[0]) {
		return node{}
	}
	addr, ok := spelled(labels[1])
	if !ok {
		return node{}
	}
	return node{exists: true, addrs: []netip.Addr{addr}}
}

// spelled reads an address whose dots or colons are dashes.
func spelled(label string) (netip.Addr, bool) {
	separator := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		separator = "."
	}
	addr, err := netip.ParseAddr(strings.ReplaceAll(label, "-", separator))
	return addr, err == nil && addr.Zone() == ""
}

// spell writes an address as a label. A final dash gets a zero, with the same meaning.
func spell(addr netip.Addr) string {
	if addr.Is4() {
		return strings.ReplaceAll(addr.String(), ".", "-")
	}
	label := strings.ReplaceAll(addr.String(), ":", "-")
	if strings.HasSuffix(label, "-") {
		label += "0"
	}
	return label
}

// findService returns the data of a service's own name. A headless service without a ready endpoint
// does not exist.
func (z *zone) findService(key types.NamespacedName) node {
	of := z.services[key]
	if of.externalName != "" {
		if _, err := netip.ParseAddr(of.externalName); err == nil {
			return node{} // an address is no target of a CNAME
		}
		return node{exists: true, alias: dns.Fqdn(of.externalName)}
	}
	found := node{addrs: of.addrs, srv: z.targets(key, func(port) bool { return true })}
	if of.headless {
		found.addrs = nil
		z.visit(key, func(_ *slice, _ string, addr netip.Addr) { found.addrs = append(found.addrs, addr) })
		found.addrs = distinct(found.addrs)
	}
	found.exists = len(found.addrs) > 0
	return found
}

// findEndpoint returns the addresses of the endpoints with a hostname. An endpoint without one goes
// by its address.
func (z *zone) findEndpoint(key types.NamespacedName, hostname string) node {
	var found node
	wanted, isAddr := spelled(hostname)
	z.visit(key, func(_ *slice, has string, addr netip.Addr) {
		if has != "" && has == hostname || has == "" && isAddr && addr == wanted {
			found.addrs = append(found.addrs, addr)
		}
	})
	found.addrs = distinct(found.addrs)
	found.exists = len(found.addrs) > 0
	return found
}

// targets returns the names of a service's ports: at its own address, or at each endpoint of a
// headless one.
func (z *zone) targets(key types.NamespacedName, wanted func(port) bool) []target {
	of := z.services[key]
	name := key.Name + "." + key.Namespace + ".svc." + z.origin
	var found []target
	if !of.headless {
		for _, p := range of.ports {
			// DNS by UDP and TCP is one record at the service's own name.
			same := func(t target) bool { return t.port == p.number }
			if wanted(p) && len(of.addrs) > 0 && !slices.ContainsFunc(found, same) {
				found = append(found, target{port: p.number, name: name, addrs: of.addrs})
			}
		}
		return found
	}
	type place struct {
		name string
		port uint16
	}
	at := map[place]int{}
	z.visit(key, func(in *slice, hostname string, addr netip.Addr) {
		if hostname == "" {
			hostname = spell(addr)
		}
		for _, p := range in.ports {
			if !wanted(p) {
				continue
			}
			of := place{hostname + "." + name, p.number}
			i, known := at[of]
			if !known {
				i = len(found)
				at[of] = i
				found = append(found, target{port: p.number, name: of.name})
			}
			if !slices.Contains(found[i].addrs, addr) {
				found[i].addrs = append(found[i].addrs, addr)
			}
		}
	})
	return found
}

// reverse returns the names of an address. known is false for unknown addresses.
func (z *zone) reverse(name string, addr netip.Addr) (records []dns.RR, known bool) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	var names []string
	for _, h := range z.holders[addr] {
		key := h.key
		base := key.Name + "." + key.Namespace + ".svc." + z.origin
		if of := z.services[key]; of != nil && slices.Contains(of.addrs, addr) {
			names = []string{base} // an address of a service has no other name
			break
		}
		z.visit(key, func(_ *slice, hostname string, has netip.Addr) {
			if has != addr {
				return
			}
			if hostname == "" {
				hostname = spell(addr)
			}
			names = append(names, hostname+"."+base)
		})
	}
	slices.Sort(names)
	for _, one := range slices.Compact(names) {
		records = append(records, &dns.PTR{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: clusterTTL}, Ptr: one,
		})
	}
	return records, len(records) > 0
}

// addressRecords are in another order each time: many clients take the first.
func addressRecords(name string, kind uint16, addrs []netip.Addr) []dns.RR {
	var records []dns.RR
	for _, addr := range addrs {
		header := dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: clusterTTL}
		switch {
		case kind == dns.TypeA && addr.Is4():
			records = append(records, &dns.A{Hdr: header, A: addr.AsSlice()})
		case kind == dns.TypeAAAA && addr.Is6():
			records = append(records, &dns.AAAA{Hdr: header, AAAA: addr.AsSlice()})
		}
	}
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	return records
}

// serviceRecords returns SRV records of equal weight, and the addresses of their targets.
func serviceRecords(name string, targets []target) (records, extra []dns.RR) {
	told := map[string]bool{}
	for _, t := range targets {
		records = append(records, &dns.SRV{
			Hdr:    dns.RR_Header{Name: name, Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: clusterTTL},
			Weight: uint16(max(1, 100/len(targets))), Port: t.port, Target: t.name,
		})
		if !told[t.name] {
			told[t.name] = true
			extra = append(extra, addressRecords(t.name, dns.TypeA, t.addrs)...)
			extra = append(extra, addressRecords(t.name, dns.TypeAAAA, t.addrs)...)
		}
	}
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	return records, extra
}

func distinct(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
