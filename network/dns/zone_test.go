package dns

import (
	"fmt"
	"maps"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// model says what the specification has for a cluster, as one flat list of records: it looks at all
// objects for each record and knows no index. A name exists when there are records at it or below.
type model struct {
	namespaces map[string]bool
	services   map[types.NamespacedName]*corev1.Service
	slices     map[types.NamespacedName]*discoveryv1.EndpointSlice
}

const testZone = "cluster.local."

// records returns "name type data" of everything in the cluster.
func (m *model) records() map[string]bool {
	all := map[string]bool{
		testZone + " SOA ":                       true,
		testZone + " NS ns.dns." + testZone:      true,
		"dns-version." + testZone + " TXT 1.1.0": true,
		"ns.dns." + testZone + " A 10.43.0.10":   true,
		"svc." + testZone + " EXISTS ":           true,
		"pod." + testZone + " EXISTS ":           true,
	}
	for name := range m.namespaces {
		all[name+".svc."+testZone+" EXISTS "] = true
		all[name+".pod."+testZone+" EXISTS "] = true
	}
	for key, service := range m.services {
		all[key.Namespace+".svc."+testZone+" EXISTS "] = true
		all[key.Namespace+".pod."+testZone+" EXISTS "] = true
		name := key.Name + "." + key.Namespace + ".svc." + testZone
		if service.Spec.Type == corev1.ServiceTypeExternalName {
			all[name+" CNAME "+service.Spec.ExternalName+"."] = true
			continue
		}
		headless := service.Spec.ClusterIP == "None"
		if !headless {
			for _, ip := range service.Spec.ClusterIPs {
				m.addr(all, name, ip)
				all[reverseOf(ip)+" PTR "+name] = true
			}
			for _, p := range service.Spec.Ports {
				m.srv(all, name, p.Name, p.Protocol, p.Port, name)
			}
		}
		for own, slice := range m.slices {
			if own.Namespace != key.Namespace || slice.Labels[discoveryv1.LabelServiceName] != key.Name {
				continue
			}
			for _, e := range slice.Endpoints {
				if !ptr.Deref(e.Conditions.Ready, true) && !service.Spec.PublishNotReadyAddresses {
					continue
				}
				for _, ip := range e.Addresses {
					label := ptr.Deref(e.Hostname, "")
					if label == "" {
						label = strings.NewReplacer(".", "-", ":", "-").Replace(ip)
					}
					m.addr(all, label+"."+name, ip)
					if !m.isService(ip) {
						all[reverseOf(ip)+" PTR "+label+"."+name] = true
					}
					if headless {
						m.addr(all, name, ip)
						for _, p := range slice.Ports {
							m.srv(all, name, *p.Name, *p.Protocol, *p.Port, label+"."+name)
						}
					}
				}
			}
		}
	}
	return all
}

func (m *model) isService(ip string) bool {
	for _, s := range m.services {
		if slices.Contains(s.Spec.ClusterIPs, ip) {
			return true
		}
	}
	return false
}

func (m *model) addr(all map[string]bool, name, ip string) {
	kind := " A "
	if strings.Contains(ip, ":") {
		kind = " AAAA "
	}
	all[name+kind+ip] = true
}

// srv adds what the specification has for named ports, and at the service's own name those of all.
func (m *model) srv(all map[string]bool, service, port string, protocol corev1.Protocol, number int32, target string) {
	data := fmt.Sprintf(" SRV %d %s", number, target)
	all[service+data] = true
	if port != "" {
		all["_"+port+"._"+strings.ToLower(string(protocol))+"."+service+data] = true
	}
}

func reverseOf(ip string) string {
	name, err := dns.ReverseAddr(ip)
	if err != nil {
		panic(err)
	}
	return name
}

// view is a model's records by their names.
type view struct {
	records    map[string][]string
	exists     map[string]bool
	namespaces map[string]bool
}

func (m *model) view() view {
	v := view{map[string][]string{}, map[string]bool{}, map[string]bool{}}
	for record := range m.records() {
		name, rest, _ := strings.Cut(record, " ")
		v.records[name] = append(v.records[name], rest)
		for offset, end := 0, false; !end; offset, end = dns.NextLabel(name, offset) {
			v.exists[name[offset:]] = true
		}
		if namespace, ok := strings.CutSuffix(name, ".pod."+testZone); ok {
			v.namespaces[namespace] = true
		}
	}
	return v
}

// ask returns what the model has to say about a name in lower case.
func (v view) ask(name, kind string) (records []string, rcode int) {
	all, exists := v.records[name], v.exists[name]
	if labels := strings.Split(strings.TrimSuffix(name, "."+testZone), "."); len(labels) == 3 && labels[2] == "pod" &&
		v.namespaces[labels[1]] {
		if addr, err := netip.ParseAddr(strings.ReplaceAll(labels[0], "-", ".")); err == nil {
			all, exists = []string{"A " + addr.String()}, true
		}
	}
	if !exists {
		return nil, dns.RcodeNameError
	}
	for _, record := range all {
		if has, _, _ := strings.Cut(record, " "); has == kind || has == "CNAME" {
			records = append(records, record)
		}
	}
	slices.Sort(records)
	return records, dns.RcodeSuccess
}

// said puts records into the model's words.
func said(records []dns.RR) []string {
	var out []string
	for _, record := range records {
		switch r := record.(type) {
		case *dns.A:
			out = append(out, "A "+r.A.String())
		case *dns.AAAA:
			out = append(out, "AAAA "+r.AAAA.String())
		case *dns.SRV:
			out = append(out, fmt.Sprintf("SRV %d %s", r.Port, r.Target))
		case *dns.PTR:
			out = append(out, "PTR "+r.Ptr)
		case *dns.CNAME:
			out = append(out, "CNAME "+r.Target)
		case *dns.TXT:
			out = append(out, "TXT "+strings.Join(r.Txt, ""))
		case *dns.NS:
			out = append(out, "NS "+r.Ns)
		case *dns.SOA:
			out = append(out, "SOA ")
		default:
			out = append(out, record.String())
		}
	}
	slices.Sort(out)
	return out
}

// cluster changes a model and a state in the same way, by chance.
type cluster struct {
	*rand.Rand
	model *model
	state *state
}

var (
	someNamespaces = []string{"default", "shop", "empty"}
	someNames      = []string{"web", "db", "cache"}
	somePorts      = []string{"", "http", "dns"}
	someProtocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
	someHostnames  = []string{"", "", "db-0", "db-1"}
)

func (c *cluster) one(of []string) string { return of[c.Intn(len(of))] }

func (c *cluster) ip() string {
	if c.Intn(4) == 0 {
		return fmt.Sprintf("fd00:42::%x", 1+c.Intn(15))
	}
	return fmt.Sprintf("10.42.0.%d", c.Intn(12))
}

func (c *cluster) step() {
	namespace := c.one(someNamespaces)
	key := types.NamespacedName{Namespace: namespace, Name: c.one(someNames)}
	own := types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("slice-%d", c.Intn(4))}
	switch c.Intn(8) {
	case 0:
		exists := c.Intn(2) == 0
		c.state.setNamespace(namespace, exists)
		if exists {
			c.model.namespaces[namespace] = true
		} else {
			delete(c.model.namespaces, namespace)
		}
	case 1:
		c.state.deleteService(key)
		delete(c.model.services, key)
	case 2:
		c.state.deleteSlice(own)
		delete(c.model.slices, own)
	case 3, 4:
		service := c.service(key)
		c.state.setService(service)
		c.model.services[key] = service
	default:
		slice := c.slice(own)
		c.state.setSlice(slice)
		c.model.slices[own] = slice
	}
}

func (c *cluster) service(key types.NamespacedName) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	s.Spec.PublishNotReadyAddresses = c.Intn(3) == 0
	for _, name := range somePorts {
		if c.Intn(2) == 0 {
			s.Spec.Ports = append(s.Spec.Ports,
				corev1.ServicePort{Name: name, Protocol: someProtocols[c.Intn(2)], Port: int32(1 + c.Intn(3))})
		}
	}
	switch c.Intn(4) {
	case 0:
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	case 1, 2:
		s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	default:
		// Services do not share addresses.
		i := 16*slices.Index(someNamespaces, key.Namespace) + slices.Index(someNames, key.Name)
		s.Spec.ClusterIP = fmt.Sprintf("10.43.0.%d", 100+i)
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		if c.Intn(2) == 0 {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, fmt.Sprintf("fd00:43::%x", 0x100+i))
		}
	}
	return s
}

func (c *cluster) slice(own types.NamespacedName) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: own.Namespace, Name: own.Name,
		Labels: map[string]string{discoveryv1.LabelServiceName: c.one(someNames)},
	}}
	for _, name := range somePorts {
		if c.Intn(2) == 0 {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{
				Name: &name, Protocol: &someProtocols[c.Intn(2)], Port: ptr.To(int32(1 + c.Intn(3))),
			})
		}
	}
	for range c.Intn(4) {
		e := discoveryv1.Endpoint{Addresses: []string{c.ip()}}
		if hostname := c.one(someHostnames); hostname != "" {
			e.Hostname = &hostname
		}
		if c.Intn(2) == 0 {
			e.Conditions.Ready = ptr.To(c.Intn(2) == 0)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// names are those that may have records, and others near them.
func (c *cluster) names() []string {
	names := map[string]bool{"none." + testZone: true, "dns." + testZone: true, "a.b.c.d.e.svc." + testZone: true,
		"10-42-0-7.default.pod." + testZone: true, "x.10-42-0-7.default.pod." + testZone: true,
		"10-42-0-300.default.pod." + testZone: true, "10-42-0-7.none.pod." + testZone: true,
		"_http.web.default.svc." + testZone: true,
		reverseOf("10.43.0.250"):            true, reverseOf("10.42.0.11"): true}
	for record := range c.model.records() {
		name, _, _ := strings.Cut(record, " ")
		names[name] = true
		if strings.HasSuffix(name, ".arpa.") {
			continue
		}
		for offset, end := 0, false; !end; offset, end = dns.NextLabel(name, offset) {
			if parent := name[offset:]; dns.IsSubDomain(testZone, parent) {
				names[parent] = true
			}
		}
		names["nobody."+name] = true
	}
	for _, namespace := range someNamespaces {
		for _, name := range someNames {
			names[name+"."+namespace+".svc."+testZone] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// TestZoneIsAsTheModelHasIt asks, while services, endpoints and namespaces come, change and go, for
// every name that may have records, and for others.
func TestZoneIsAsTheModelHasIt(t *testing.T) {
	seeds, asked := 60, 0
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		c := &cluster{
			Rand: rand.New(rand.NewSource(int64(seed))), state: newState(),
			model: &model{map[string]bool{}, map[types.NamespacedName]*corev1.Service{},
				map[types.NamespacedName]*discoveryv1.EndpointSlice{}},
		}
		z := &zone{state: c.state, origin: testZone, server: []netip.Addr{netip.MustParseAddr("10.43.0.10")}}
		for step := range 40 {
			c.step()
			if step%4 != 3 {
				continue
			}
			model := c.model.view()
			for _, name := range c.names() {
				for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT, dns.TypeCNAME,
					dns.TypePTR, dns.TypeSOA, dns.TypeNS, dns.TypeMX} {
					want, rcode := model.ask(name, dns.TypeToString[kind])
					got := c.answer(z, name, kind)
					if rcode != got.rcode || !slices.Equal(want, said(got.answer)) {
						t.Fatalf("seed %d, step %d: %s %s:\n got %s %q\nwant %s %q", seed, step, name,
							dns.TypeToString[kind],
							dns.RcodeToString[got.rcode], said(got.answer), dns.RcodeToString[rcode], want)
					}
					asked++
				}
			}
		}
		if len(c.model.services) == 0 && len(c.state.holders) > 0 {
			t.Fatalf("seed %d: addresses of nobody: %v", seed, c.state.holders)
		}
	}
	t.Logf("%d questions", asked)
}

func (c *cluster) answer(z *zone, name string, kind uint16) answer {
	if addr, ok := addressOf(name); ok {
		records, known := z.reverse(name, addr)
		switch {
		case !known:
			return answer{rcode: dns.RcodeNameError}
		case kind == dns.TypePTR:
			return answer{answer: records}
		default:
			return answer{}
		}
	}
	return z.lookup(name, kind)
}

// TestStateForgets: what has gone leaves nothing behind.
func TestStateForgets(t *testing.T) {
	c := &cluster{Rand: rand.New(rand.NewSource(1)), state: newState(),
		model: &model{map[string]bool{}, map[types.NamespacedName]*corev1.Service{},
			map[types.NamespacedName]*discoveryv1.EndpointSlice{}}}
	for range 500 {
		c.step()
	}
	for key := range c.model.services {
		c.state.deleteService(key)
	}
	for key := range c.model.slices {
		c.state.deleteSlice(key)
	}
	for name := range c.model.namespaces {
		c.state.setNamespace(name, false)
	}
	s := c.state
	if n := len(s.services) + len(s.slices) + len(s.owners) + len(s.holders) + len(s.populated) +
		len(s.namespaces); n != 0 {
		t.Fatalf("%d entries are left: %+v", n, s)
	}
}

func TestAddressNames(t *testing.T) {
	for _, text := range []string{"10.42.0.1", "fd00::1", "fd00::", "2001:db8:1:2:3:4:5:6", "::1"} {
		addr := netip.MustParseAddr(text)
		if got, ok := spelled(spell(addr)); !ok || got != addr {
			t.Errorf("%s is spelled %s and read as %v, %v", text, spell(addr), got, ok)
		}
		if got, ok := addressOf(reverseOf(text)); !ok || got != addr {
			t.Errorf("%s: the reverse name %s is read as %v, %v", text, reverseOf(text), got, ok)
		}
	}
	for _, label := range []string{"", "a", "10-42-0", "10-42-0-256", "10-42-0-1-2", "fe80--1%eth0", "web-0"} {
		if got, ok := spelled(label); ok {
			t.Errorf("%q is read as %v", label, got)
		}
	}
	for _, name := range []string{"in-addr.arpa.", "10.in-addr.arpa.", "x.1.2.3.in-addr.arpa.", "1.ip6.arpa.",
		"ip6.arpa.", "example.com."} {
		if got, ok := addressOf(name); ok {
			t.Errorf("%q is read as %v", name, got)
		}
	}
}
