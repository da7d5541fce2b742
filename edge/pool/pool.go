// Package pool chooses the addresses of a Service of type LoadBalancer from the cluster's pools.
//
// Choose is a pure function. It gives a Service only addresses that no other Service has, as far as
// it sees, unless they share the address. The API server guards the rest: the transaction
// that writes the Service's status reserves the addresses (apiserver/services).
//
// Nothing moves without need: a Service keeps its addresses while a pool that it may use has them.
// A pool that is faulty gives no addresses, and takes none away.
package pool

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/barque/barque/internal/balancers"
)

// Pool is a set of addresses for Services.
type Pool struct {
	Name   string
	Ranges []Range
	// Priority orders pools: addresses come from those with the highest one first.
	Priority int32
	// Manual pools serve only Services that name the pool, or an address of it.
	Manual bool
	// Services and Namespaces select by labels. nil selects all.
	Services, Namespaces labels.Selector
	// Faulty pools give no addresses. Services that have some keep them.
	Faulty bool
	// Announcing is how nodes announce its addresses.
	Announcing Announcing
}

// Range is a range of addresses of one family, both ends included.
type Range struct{ First, Last netip.Addr }

// ParseRange reads a CIDR, or two addresses with a "-" between them.
func ParseRange(text string) (Range, error) {
	if first, last, ok := strings.Cut(text, "-"); ok {
		return between(text, strings.TrimSpace(first), strings.TrimSpace(last))
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return Range{},
			fmt.Errorf("%q is neither a CIDR such as 192.0.2.0/28 nor a range such as 192.0.2.10-192.0.2.20", text)
	case p.Addr().Is4In6():
		return Range{}, fmt.Errorf("%q is an IPv4 address in IPv6 notation; write it as IPv4", text)
	case p != p.Masked():
		return Range{},
			fmt.Errorf("%s has bits behind its prefix; write %s for the whole network, or %s for one address",
				text, p.Masked(), netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	return Range{p.Addr(), lastOf(p)}, nil
}

func between(text, first, last string) (Range, error) {
	a, err := netip.ParseAddr(first)
	if err != nil {
		return Range{}, fmt.Errorf("%q: %q is no address", text, first)
	}
	b, err := netip.ParseAddr(last)
	switch {
	case err != nil:
		return Range{}, fmt.Errorf("%q: %q is no address", text, last)
	case a.Is4In6() || b.Is4In6() || a.Zone() != "" || b.Zone() != "":
		return Range{}, fmt.Errorf("%q: write plain addresses, without a zone and not as IPv4 in IPv6", text)
	case a.Is4() != b.Is4():
		return Range{}, fmt.Errorf("%q: both ends must be of one family", text)
	case b.Less(a):
		return Range{}, fmt.Errorf("%q ends before it begins", text)
	}
	return Range{a, b}, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	raw := p.Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		raw[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(raw)
	return last
}

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// Overlaps reports whether two ranges have an address in common.
func (r Range) Overlaps(o Range) bool { return r.Contains(o.First) || o.Contains(r.First) }

// String is the range as users write it.
func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// Size is the number of addresses of the range, or the largest int64.
func (r Range) Size() int64 {
	n := new(big.Int).SetBytes(r.Last.AsSlice())
	n.Sub(n, new(big.Int).SetBytes(r.First.AsSlice()))
	if n.Add(n, big.NewInt(1)); !n.IsInt64() {
		return math.MaxInt64
	}
	return n.Int64()
}

// Contains reports whether an address is in the pool.
func (p Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) })
}

// Size is the number of addresses of the pool, or the largest int64.
func (p Pool) Size() int64 {
	var n int64
	for _, r := range p.Ranges {
		if n += r.Size(); n < 0 {
			return math.MaxInt64
		}
	}
	return n
}

// selects reports whether the pool is for a Service.
func (p Pool) selects(s *corev1.Service, namespace labels.Set) bool {
	return (p.Services == nil || p.Services.Matches(labels.Set(s.Labels))) &&
		(p.Namespaces == nil || p.Namespaces.Matches(namespace))
}

// ordered sorts pools by their priority, and by name among equals.
func ordered(pools []Pool) []Pool {
	out := slices.Clone(pools)
	slices.SortFunc(out, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Reason says in one word why a Service has no address. It is that of the condition.
type Reason string

// The reasons.
const (
	Invalid   Reason = "InvalidRequest" // the Service asks for something that no pool could give
	NoPool    Reason = "NoPool"         // no pool is for the Service
	NotInPool Reason = "AddressNotInPool"
	InUse     Reason = "AddressInUse"
	Exhausted Reason = "PoolExhausted"
	PortInUse Reason = "PortInUse" // of the nodes
	NoNodes   Reason = "NoNodes"
)

// Refusal is the error for a Service that does not get all that it wants.
type Refusal struct {
	Reason  Reason
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// Refuse makes a Refusal.
func Refuse(reason Reason, format string, args ...any) error {
	return &Refusal{reason, fmt.Sprintf(format, args...)}
}

// Choice is all that a Service gets.
type Choice struct {
	Addresses []netip.Addr
	// Pools has the name of each address's pool.
	Pools []string
}

// Cluster is the state of the cluster that a choice depends on.
type Cluster struct {
	Pools []Pool
	// Services are all Services of type LoadBalancer. The one that chooses may be among them.
	Services []*corev1.Service
	// Reserved are addresses that are no Service's, such as those of nodes; the value names the
	// owner.
	Reserved map[netip.Addr]string
}

// Choose chooses the addresses of a Service. namespace are the labels of its namespace. With an
// error, which is a Refusal, the choice has the addresses that the Service keeps nevertheless.
func Choose(s *corev1.Service, namespace labels.Set, in Cluster) (Choice, error) {
	c := &chooser{service: s, share: balancers.ShareKey(s), ports: balancers.Wanted(s), reserved: in.Reserved,
		holders: map[netip.Addr][]holder{}}
	for _, p := range ordered(in.Pools) {
		if p.selects(s, namespace) {
			c.pools = append(c.pools, p)
		}
	}
	for _, other := range in.Services {
		if other.Namespace == s.Namespace && other.Name == s.Name {
			continue
		}
		for _, held := range balancers.HeldBy(other) {
			c.holders[held.Address] = append(c.holders[held.Address], holder{other, held.Ports})
		}
	}
	// The message names the first one: it must not change with the order of a list.
	for _, of := range c.holders {
		slices.SortFunc(of, func(a, b holder) int {
			return cmp.Or(cmp.Compare(a.service.Namespace, b.service.Namespace),
				cmp.Compare(a.service.Name, b.service.Name))
		})
	}
	return c.choose()
}

// holder is another Service that has an address.
type holder struct {
	service *corev1.Service
	ports   []balancers.Port
}

type chooser struct {
	service  *corev1.Service
	share    string
	ports    []balancers.Port
	pools    []Pool // that are for the service
	reserved map[netip.Addr]string
	holders  map[netip.Addr][]holder
}

func (c *chooser) choose() (Choice, error) {
	families := balancers.Families(c.service)
	kept := c.kept(families)
	wanted, named, err := c.requests(families)
	if err != nil {
		return c.choice(families, kept), err
	}
	chosen := map[corev1.IPFamily]netip.Addr{}
	var refused error
	for _, family := range families {
		address, err := c.one(family, wanted[family], kept[family], named)
		switch {
		case err == nil:
			chosen[family] = address
		case wanted[family].IsValid():
			return c.choice(families, kept), err
		case refused == nil:
			refused = err
		}
	}
	// A Service that prefers two families is content with one.
	policy := c.service.Spec.IPFamilyPolicy
	if refused != nil && (len(chosen) == 0 || policy == nil || *policy != corev1.IPFamilyPolicyPreferDualStack) {
		return c.choice(families, kept), refused
	}
	return c.choice(families, chosen), nil
}

func (c *chooser) choice(families []corev1.IPFamily, of map[corev1.IPFamily]netip.Addr) Choice {
	var out Choice
	for _, family := range families {
		if address := of[family]; address.IsValid() {
			out.Addresses = append(out.Addresses, address)
			out.Pools = append(out.Pools, c.poolOf(address))
		}
	}
	return out
}

func (c *chooser) poolOf(a netip.Addr) string {
	for _, p := range c.pools {
		if p.Contains(a) {
			return p.Name
		}
	}
	return ""
}

// kept are the addresses that the Service has and may keep.
func (c *chooser) kept(families []corev1.IPFamily) map[corev1.IPFamily]netip.Addr {
	out := map[corev1.IPFamily]netip.Addr{}
	if balancers.ConditionOf(c.service) != balancers.PoolCondition {
		return out
	}
	for _, held := range balancers.HeldBy(c.service) {
		family := balancers.FamilyOf(held.Address)
		if slices.Contains(families, family) && !out[family].IsValid() &&
			c.poolOf(held.Address) != "" && c.obstacle(held.Address) == nil {
			out[family] = held.Address
		}
	}
	return out
}

// requests reads all that the Service asks for: addresses by family, and names of pools.
func (c *chooser) requests(families []corev1.IPFamily) (map[corev1.IPFamily]netip.Addr, []string, error) {
	texts := list(c.service.Annotations[balancers.AddressesAnnotation])
	where := "the annotation " + balancers.AddressesAnnotation
	if len(texts) == 0 && c.service.Spec.LoadBalancerIP != "" {
		texts, where = []string{c.service.Spec.LoadBalancerIP}, "spec.loadBalancerIP"
	}
	wanted := map[corev1.IPFamily]netip.Addr{}
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			return nil, nil, Refuse(Invalid, "%s: %q is no IP address", where, text)
		}
		address = address.Unmap()
		family := balancers.FamilyOf(address)
		switch {
		case wanted[family].IsValid():
			return nil, nil,
				Refuse(Invalid, "%s asks for two addresses of the family %s: a Service gets one", where, family)
		case !slices.Contains(families, family):
			return nil, nil,
				Refuse(Invalid, "%s asks for %s, and %s is not among the Service's ipFamilies", where, text, family)
		}
		wanted[family] = address
	}
	return wanted, list(c.service.Annotations[balancers.PoolAnnotation]), nil
}

// list reads a list with commas.
func list(text string) []string {
	var out []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			out = append(out, word)
		}
	}
	return out
}

// one chooses the address of a family.
func (c *chooser) one(family corev1.IPFamily, wanted, kept netip.Addr, named []string) (netip.Addr, error) {
	if wanted.IsValid() {
		return wanted, c.mayHave(wanted, named)
	}
	if kept.IsValid() && (len(named) == 0 || slices.Contains(named, c.poolOf(kept))) {
		return kept, nil
	}
	candidates, err := c.candidates(family, named)
	if err != nil {
		return netip.Addr{}, err
	}
	if a := c.shared(candidates, family); a.IsValid() {
		return a, nil
	}
	for _, p := range candidates {
		for _, r := range p.Ranges {
			if a := c.lowest(r, family); a.IsValid() {
				return a, nil
			}
		}
	}
	return netip.Addr{}, Refuse(Exhausted,
		"no %s address is free in the pool %s; add addresses to it, or make another AddressPool", family,
		names(candidates))
}

func names(pools []Pool) string {
	var out []string
	for _, p := range pools {
		out = append(out, p.Name)
	}
	return strings.Join(out, ", ")
}

// mayHave returns the reason for which the Service does not get an address that it asks for.
func (c *chooser) mayHave(a netip.Addr, named []string) error {
	at := slices.IndexFunc(c.pools, func(p Pool) bool {
		return p.Contains(a) && (len(named) == 0 || slices.Contains(named, p.Name))
	})
	has := func(h balancers.Held) bool { return h.Address == a }
	switch {
	case at < 0 && len(named) > 0:
		return Refuse(NotInPool, "the requested address %s is not in the pool %s", a, strings.Join(named, ", "))
	case at < 0:
		return Refuse(NotInPool, "the requested address %s is in no AddressPool that is for this Service", a)
	case c.pools[at].Faulty && !slices.ContainsFunc(balancers.HeldBy(c.service), has):
		return Refuse(NoPool, "the requested address %s is in the pool %s, which is not ready: see its status",
			a, c.pools[at].Name)
	}
	return c.obstacle(a)
}

// candidates are the pools from which an address of a family may be taken.
func (c *chooser) candidates(family corev1.IPFamily, named []string) ([]Pool, error) {
	var out []Pool
	for _, p := range c.pools {
		if p.Faulty || len(named) == 0 && p.Manual || len(named) > 0 && !slices.Contains(named, p.Name) {
			continue
		}
		if slices.ContainsFunc(p.Ranges, func(r Range) bool { return balancers.FamilyOf(r.First) == family }) {
			out = append(out, p)
		}
	}
	switch {
	case len(out) > 0:
		return out, nil
	case len(named) > 0:
		return nil, Refuse(NoPool, "no AddressPool %s with %s addresses is ready and for this Service",
			strings.Join(named, ", "), family)
	}
	return nil, Refuse(NoPool, "no AddressPool with %s addresses is ready and for this Service", family)
}

// obstacle returns the reason for which an address cannot be the Service's: it is the address of
// somebody who does not share it.
func (c *chooser) obstacle(a netip.Addr) error {
	if owner, ok := c.reserved[a]; ok {
		return Refuse(InUse, "the address %s is that of %s", a, owner)
	}
	for _, h := range c.holders[a] {
		name := h.service.Namespace + "/" + h.service.Name
		if c.share == "" || balancers.ConditionOf(h.service) != balancers.PoolCondition ||
			balancers.ShareKey(h.service) != c.share {
			return Refuse(InUse, "the address %s is in use by the Service %s%s", a, name, c.whyNotShared(h.service))
		}
		for _, port := range c.ports {
			if slices.Contains(h.ports, port) {
				return Refuse(InUse, "the port %s of the address %s is in use by the Service %s, which shares it",
					port, a, name)
			}
		}
	}
	return nil
}

// whyNotShared explains to users of the annotation why it has no effect.
func (c *chooser) whyNotShared(other *corev1.Service) string {
	key := c.service.Annotations[balancers.ShareAnnotation]
	switch {
	case key == "":
		return ""
	case other.Annotations[balancers.ShareAnnotation] != key:
		return ", whose annotation " + balancers.ShareAnnotation + " is not " + key
	}
	return "; to share it, both need the same externalTrafficPolicy, and with Local the same selector"
}

// shared returns the lowest address that the Service can share.
func (c *chooser) shared(pools []Pool, family corev1.IPFamily) (lowest netip.Addr) {
	if c.share == "" {
		return lowest
	}
	for a := range c.holders {
		if balancers.FamilyOf(a) != family || lowest.IsValid() && lowest.Less(a) || c.obstacle(a) != nil {
			continue
		}
		if slices.ContainsFunc(pools, func(p Pool) bool { return p.Contains(a) }) {
			lowest = a
		}
	}
	return lowest
}

// lowest returns the lowest free address of a range. It looks at one address more than are taken.
func (c *chooser) lowest(r Range, family corev1.IPFamily) netip.Addr {
	if balancers.FamilyOf(r.First) != family {
		return netip.Addr{}
	}
	for a := r.First; r.Contains(a); a = a.Next() {
		if _, reserved := c.reserved[a]; !reserved && len(c.holders[a]) == 0 {
			return a
		}
	}
	return netip.Addr{}
}
