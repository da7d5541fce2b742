package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kvalidation "k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/balancers"
)

// A Gateway has the addresses of the nodes, or addresses of its own. The latter are those of a
// Service of type LoadBalancer without a selector.

// Request is what a Gateway with addresses of its own asks for.
type Request struct {
	// Addresses are those that it names, at most one of each family.
	Addresses []netip.Addr
	// More means that a pool may choose an address of a family without a named one.
	More bool
	// Pools names the pools of the addresses, as in the annotation of a Service; "" is all.
	Pools string
	// Problem is the reason for which nothing can be asked for, or "".
	Problem string
}

// Requested returns what a Gateway asks for; false if it has the addresses of the nodes. Its own
// fields count before the pool of its class.
func Requested(c Cluster, g *gatewayv1.Gateway) (Request, bool) {
	of := Request{Pools: annotation(g, balancers.PoolAnnotation)}
	var named []string
	for _, a := range g.Spec.Addresses {
		switch {
		case !isIP(a): // the Gateway is refused
		case a.Value == "":
			of.More = true
		default:
			named = append(named, a.Value)
		}
	}
	where := "spec.addresses"
	if text := annotation(g, balancers.AddressesAnnotation); len(named) == 0 && text != "" {
		named, where = strings.Split(text, ","), "the annotation "+balancers.AddressesAnnotation
	}
	ofClass, known := PoolOf(c.GatewayClass(string(g.Spec.GatewayClassName)))
	if of.Pools == "" {
		of.Pools = ofClass
	}
	of.More = of.More || len(named) == 0
	switch {
	case !known:
		of.Problem = fmt.Sprintf("spec.parametersRef of the GatewayClass %s names no AddressPool",
			g.Spec.GatewayClassName)
		return of, true
	case len(named) == 0 && of.Pools == "":
		return of, false
	}
	for _, text := range named {
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || address.Zone() != "" {
			of.Problem = fmt.Sprintf("%s: %q is no IP address", where, text)
			return of, true
		}
		address = address.Unmap()
		if slices.ContainsFunc(of.Addresses, func(a netip.Addr) bool { return a.Is4() == address.Is4() }) {
			of.Problem = fmt.Sprintf("%s names two addresses of the family %s, %s among them: "+
				"a Gateway gets one of each family", where, balancers.FamilyOf(address), address)
			return of, true
		}
		of.Addresses = append(of.Addresses, address)
	}
	return of, true
}

// annotation is one of those that a Gateway has for what is made for it.
func annotation(g *gatewayv1.Gateway, key string) string {
	if g.Spec.Infrastructure == nil {
		return ""
	}
	return strings.TrimSpace(string(g.Spec.Infrastructure.Annotations[gatewayv1.AnnotationKey(key)]))
}

// poolKind is the kind that parametersRef of a class may name.
const poolKind = "AddressPool"

// PoolOf returns the AddressPool of a class, "" for none; false if its parameters are something
// else.
func PoolOf(c *gatewayv1.GatewayClass) (name string, ok bool) {
	if c == nil || c.Spec.ParametersRef == nil {
		return "", true
	}
	p := c.Spec.ParametersRef
	if string(p.Group) != pool.Resource.Group || p.Kind != poolKind || p.Namespace != nil || p.Name == "" {
		return "", false
	}
	return p.Name, true
}

// ServiceName is the name of the Service with the addresses of a Gateway, as upstream's GEP-1762
// has it.
func ServiceName(g *gatewayv1.Gateway) types.NamespacedName {
	name := g.Name + "-" + string(g.Spec.GatewayClassName)
	if len(kvalidation.IsDNS1035Label(name)) > 0 {
		name = short("g-"+strings.ReplaceAll(name, ".", "-"), name, kvalidation.DNS1035LabelMaxLength)
	}
	return types.NamespacedName{Namespace: g.Namespace, Name: name}
}

// short is a beginning of a text with a hash of the whole.
func short(text, whole string, length int) string {
	sum := sha256.Sum256([]byte(whole))
	hash := hex.EncodeToString(sum[:5])
	return strings.TrimRight(text[:min(len(text), length-len(hash)-1)], "-.") + "-" + hash
}

// ServicePorts are the ports of the Service of a Gateway: those of its listeners, and of the
// ListenerSets that it allows. Whether a listener has a certificate makes no difference.
func ServicePorts(c Cluster, ports Ports, g *gatewayv1.Gateway) (all []int32) {
	add := func(listeners []gatewayv1.Listener) {
		for i := range listeners {
			l := &listeners[i]
			if supported(l.Protocol) && slices.Contains(ports.Allowed, uint16(l.Port)) {
				all = append(all, int32(l.Port))
			}
		}
	}
	add(g.Spec.Listeners)
	for _, s := range setsOf(c, g) {
		if allowsSet(c, g, s) {
			add(listenersOf(s))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Service returns the Service as it should be: have with the changes, which may be nil. Labels and
// annotations of others stay. The Gateway's earlier ones are named by an annotation.
func Service(g *gatewayv1.Gateway, of Request, ports []int32, have *corev1.Service) *corev1.Service {
	next := &corev1.Service{}
	if have != nil {
		next = have.DeepCopy()
	}
	name := ServiceName(g)
	next.Name, next.Namespace = name.Name, name.Namespace
	labels, annotations := map[string]string{}, map[string]string{}
	if i := g.Spec.Infrastructure; i != nil {
		for k, v := range i.Labels {
			labels[string(k)] = string(v)
		}
		for k, v := range i.Annotations {
			annotations[string(k)] = string(v)
		}
	}
	labels[balancers.ProxyLabel] = balancers.GatewayProxy
	labels[gatewayv1.GatewayNameLabelKey] = g.Name
	if len(g.Name) > kvalidation.LabelValueMaxLength {
		labels[gatewayv1.GatewayNameLabelKey] = short(g.Name, g.Name, kvalidation.LabelValueMaxLength)
	}
	put(annotations, balancers.PoolAnnotation, of.Pools)
	put(annotations, balancers.AddressesAnnotation, strings.Join(texts(of.Addresses), ","))
	next.Labels = replaced(next.Labels, labels, next.Annotations[labelsNote])
	next.Annotations = replaced(next.Annotations, annotations, next.Annotations[annotationsNote])
	put(next.Annotations, labelsNote, keysOf(labels))
	put(next.Annotations, annotationsNote, keysOf(annotations))
	next.OwnerReferences = []metav1.OwnerReference{*controllerOf(g)}
	spec(&next.Spec, of, ports)
	return next
}

// The annotations of the Service that name the keys which it has from its Gateway.
const (
	labelsNote      = "barque.io/gateway-labels"
	annotationsNote = "barque.io/gateway-annotations"
)

func controllerOf(g *gatewayv1.Gateway) *metav1.OwnerReference {
	return &metav1.OwnerReference{
		APIVersion: gatewayv1.GroupVersion.String(), Kind: "Gateway", Name: g.Name, UID: g.UID, Controller: new(true),
	}
}

// spec makes all of a Service's spec the Gateway's, but for what the API has given it. Fields
// without effect here do not stay: whoever sets them would rely on them.
func spec(s *corev1.ServiceSpec, of Request, ports []int32) {
	s.Type, s.LoadBalancerClass, s.Selector = corev1.ServiceTypeLoadBalancer, new(balancers.ClassPool), nil
	s.AllocateLoadBalancerNodePorts = new(false)
	s.LoadBalancerSourceRanges, s.ExternalIPs, s.LoadBalancerIP = nil, nil, ""
	s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	s.Ports = nil
	for _, port := range ports {
		p := corev1.ServicePort{Name: fmt.Sprint("port-", port), Protocol: corev1.ProtocolTCP, Port: port}
		p.TargetPort.IntVal = port
		s.Ports = append(s.Ports, p)
	}
	policy := corev1.IPFamilyPolicyPreferDualStack
	var families []corev1.IPFamily
	for _, a := range of.Addresses {
		families = append(families, balancers.FamilyOf(a))
	}
	switch {
	case len(families) == 2:
		policy = corev1.IPFamilyPolicyRequireDualStack
	case len(families) == 1 && !of.More:
		policy = corev1.IPFamilyPolicySingleStack
	}
	s.IPFamilyPolicy = &policy
	if len(families) > 0 && (len(s.IPFamilies) == 0 || !slices.Equal(s.IPFamilies[:1], families[:1])) {
		s.IPFamilies = families
	}
}

// Renewed reports whether a Service has to be deleted and made anew: the API does not let the
// families of one change.
func Renewed(have, want *corev1.Service) bool {
	return value(have.Spec.IPFamilyPolicy, "") != value(want.Spec.IPFamilyPolicy, "") ||
		!slices.Equal(have.Spec.IPFamilies, want.Spec.IPFamilies) ||
		value(have.Spec.LoadBalancerClass, "") != value(want.Spec.LoadBalancerClass, "")
}

func texts(addresses []netip.Addr) (all []string) {
	for _, a := range addresses {
		all = append(all, a.String())
	}
	return all
}

// put sets a value, and removes an empty one.
func put(to map[string]string, key, value string) {
	if value == "" {
		delete(to, key)
	} else {
		to[key] = value
	}
}

func keysOf(of map[string]string) string {
	var all []string
	for k := range of {
		all = append(all, k)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

// replaced are the values of others with ours, without our earlier ones.
func replaced(have, ours map[string]string, earlier string) map[string]string {
	next := map[string]string{}
	for k, v := range have {
		if !slices.Contains(strings.Split(earlier, ","), k) {
			next[k] = v
		}
	}
	for k, v := range ours {
		next[k] = v
	}
	return next
}

// ServiceOf returns the Service with the addresses of a Gateway; nil if there is none, or one of
// that name that is somebody else's.
func ServiceOf(c Cluster, g *gatewayv1.Gateway) *corev1.Service {
	s := c.Service(ServiceName(g))
	if s == nil || !metav1.IsControlledBy(s, g) || balancers.ConditionOf(s) != balancers.PoolCondition {
		return nil
	}
	return s
}

// Refused returns the field without effect that a Gateway is refused for, or "".
func Refused(g *gatewayv1.Gateway) string { return refusedGateway(g) }

// site is where the listeners of a Gateway are: at the nodes' addresses, or at those of its
// Service.
type site struct {
	own  bool
	held []balancers.Held
}

func siteOf(c Cluster, g *gatewayv1.Gateway) site {
	if _, own := Requested(c, g); !own {
		return site{}
	}
	of := site{own: true}
	if s := ServiceOf(c, g); s != nil {
		of.held = balancers.HeldBy(s)
	}
	return of
}

// ports are those of the site: no other Gateway and no Service has ports of its addresses.
func (s site) ports(ports Ports) Ports {
	if s.own {
		ports.Modes, ports.Taken = nil, nil
	}
	return ports
}

// put places a listener.
func (s site) put(l *Listener) {
	port := balancers.Port{Protocol: corev1.ProtocolTCP, Port: int32(l.Model.Port)}
	for _, held := range s.held {
		if slices.Contains(held.Ports, port) {
			l.Model.Addresses = append(l.Model.Addresses, held.Address)
		}
	}
	l.Waits = s.own && len(l.Model.Addresses) == 0
}
