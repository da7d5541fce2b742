// Package translate makes the routes of package model out of Ingresses and objects of the Gateway
// API, with the conditions that upstream defines. Its functions are pure: what an object refers to
// comes from a Cluster.
package translate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/pool"
)

const (
	// GatewayController is the controller of GatewayClasses, IngressController that of
	// IngressClasses.
	GatewayController = "barque.io/gateway"
	IngressController = "barque.io/ingress"
	// Class is the name of the classes that every cluster has.
	Class = "barque"
)

// Cluster has the objects that others refer to. A nil object is one that does not exist.
type Cluster interface {
	GatewayClass(name string) *gatewayv1.GatewayClass
	Gateway(types.NamespacedName) *gatewayv1.Gateway
	ListenerSet(types.NamespacedName) *gatewayv1.ListenerSet
	// ListenerSets are those whose parent is a Gateway.
	ListenerSets(gateway types.NamespacedName) []*gatewayv1.ListenerSet
	Namespace(name string) *corev1.Namespace
	Service(types.NamespacedName) *corev1.Service
	Grants(namespace string) []*gatewayv1.ReferenceGrant
	// Policies are those that have a Service among their targets.
	Policies(service types.NamespacedName) []*gatewayv1.BackendTLSPolicy
	// Certificate returns why a Secret cannot be used as a certificate, or nil.
	Certificate(types.NamespacedName) error
	// Authority returns why a ConfigMap has no certificates of CAs, or nil.
	Authority(types.NamespacedName) error
}

// Ports are those that listeners may have.
type Ports struct {
	HTTP, HTTPS uint16
	// Allowed are the only ports of Gateways.
	Allowed []uint16
	// Taken are ports that belong to Services at the nodes' addresses, with the owner. Nothing is
	// served there.
	Taken map[uint16]string
	// Modes says for ports with TLS and without whose they are; see Modes.
	Modes map[uint16]bool
}

// Modes decides for each port of the nodes' addresses whether connections begin with TLS. A port
// has one answer: that of the Ingresses, or of the oldest Gateway or ListenerSet. A ListenerSet is
// as old as its Gateway at most.
func Modes(c Cluster, ports Ports, gateways []*gatewayv1.Gateway) map[uint16]bool {
	type group struct {
		since, created time.Time
		set            int // 1 for a ListenerSet
		name           types.NamespacedName
		listeners      []gatewayv1.Listener
	}
	var all []group
	for _, g := range gateways {
		if _, own := Requested(c, g); own {
			continue // nobody else has ports of its addresses
		}
		since := g.CreationTimestamp.Time
		all = append(all, group{since, since, 0, nameOf(g), g.Spec.Listeners})
		for _, s := range setsOf(c, g) {
			if created := s.CreationTimestamp.Time; allowsSet(c, g, s) {
				all = append(all, group{later(since, created), created, 1, nameOf(s), listenersOf(s)})
			}
		}
	}
	slices.SortFunc(all, func(a, b group) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.set, b.set), a.created.Compare(b.created),
			cmp.Compare(a.name.Namespace, b.name.Namespace), cmp.Compare(a.name.Name, b.name.Name))
	})
	modes := map[uint16]bool{ports.HTTP: false, ports.HTTPS: true}
	for i := range all {
		for j := range all[i].listeners {
			l := &all[i].listeners[j]
			if _, taken := modes[uint16(l.Port)]; !taken && supported(l.Protocol) {
				modes[uint16(l.Port)] = l.Protocol != gatewayv1.HTTPProtocolType
			}
		}
	}
	return modes
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// takenText says why nothing is served at a port of the nodes.
func takenText(port uint16, by string) string {
	return fmt.Sprintf(
		"the port %d of the nodes is in use by %s; give that Service another port, or an address of an AddressPool",
		port, by)
}

func supported(p gatewayv1.ProtocolType) bool {
	return p == gatewayv1.HTTPProtocolType || p == gatewayv1.HTTPSProtocolType || p == gatewayv1.TLSProtocolType
}

// Ours reports whether a class is served by this controller.
func Ours(c *gatewayv1.GatewayClass) bool {
	return c != nil && c.Spec.ControllerName == GatewayController
}

// condition is one of the conditions of a status.
func condition(kind, reason, message string, ok bool, generation int64) metav1.Condition {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message,
		ObservedGeneration: generation}
}

// ClassStatus returns the conditions of a class. exists reports whether there is an AddressPool.
func ClassStatus(c *gatewayv1.GatewayClass, exists func(pool string) bool) []metav1.Condition {
	fault := ""
	if name, ok := PoolOf(c); !ok {
		fault = "parametersRef has to be an AddressPool of the group " + pool.Resource.Group + ", without a namespace"
	} else if name != "" && !exists(name) {
		fault = "there is no AddressPool " + name
	}
	if fault != "" {
		return []metav1.Condition{
			condition(string(gatewayv1.GatewayClassConditionStatusAccepted),
				string(gatewayv1.GatewayClassReasonInvalidParameters), fault, false, c.Generation)}
	}
	return []metav1.Condition{
		condition(string(gatewayv1.GatewayClassConditionStatusAccepted), string(gatewayv1.GatewayClassReasonAccepted),
			"the gateway of every node serves this class", true, c.Generation)}
}

// granted reports whether a ReferenceGrant lets an object of another namespace refer to one.
func granted(c Cluster, kind, from string, toGroup, toKind string, to types.NamespacedName) bool {
	if from == to.Namespace {
		return true
	}
	for _, g := range c.Grants(to.Namespace) {
		if !slices.ContainsFunc(g.Spec.From, func(f gatewayv1.ReferenceGrantFrom) bool {
			return f.Group == gatewayv1.GroupName && string(f.Kind) == kind && string(f.Namespace) == from
		}) {
			continue
		}
		if slices.ContainsFunc(g.Spec.To, func(t gatewayv1.ReferenceGrantTo) bool {
			return string(t.Group) == toGroup && string(t.Kind) == toKind &&
				(t.Name == nil || *t.Name == "" || string(*t.Name) == to.Name)
		}) {
			return true
		}
	}
	return false
}

// selects reports whether a selector of namespaces includes one.
func selects(c Cluster, selector *metav1.LabelSelector, namespace string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil || selector == nil {
		return false
	}
	n := c.Namespace(namespace)
	return n != nil && s.Matches(labels.Set(n.Labels))
}

// meet is the intersection of two names, of which each may be "" or begin with "*."; false if it is
// empty.
func meet(a, b string) (string, bool) {
	a, b = strings.ToLower(a), strings.ToLower(b)
	switch {
	case a == "" || a == b:
		return b, true
	case b == "":
		return a, true
	case below(a, b):
		return a, true
	case below(b, a):
		return b, true
	}
	return "", false
}

// below reports whether name is one of those of a name with a star.
func below(name, star string) bool {
	suffix, ok := strings.CutPrefix(star, "*")
	return ok && strings.HasSuffix(name, suffix) && len(name) > len(suffix)
}

// pattern compiles an expression that has to match a whole text.
func pattern(expression string) (*regexp.Regexp, error) {
	if len(expression) > 1024 {
		return nil, fmt.Errorf("the expression is longer than 1024 characters")
	}
	return regexp.Compile("^(?:" + expression + ")$")
}

func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
