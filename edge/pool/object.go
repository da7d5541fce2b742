package pool

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/balancers"
)

// Definition is the CustomResourceDefinition of AddressPools.
//
//go:embed addresspool.yaml
var Definition []byte

// Resource is that of AddressPools.
var Resource = schema.GroupVersionResource{Group: "edge.barque.io", Version: "v1", Resource: "addresspools"}

// Object is an AddressPool as users write it.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec   `json:"spec"`
	Status            Status `json:"status,omitzero"`
}

// Spec is described in the definition.
type Spec struct {
	Addresses         []string              `json:"addresses"`
	Priority          int32                 `json:"priority,omitempty"`
	AutoAssign        *bool                 `json:"autoAssign,omitempty"`
	ServiceSelector   *metav1.LabelSelector `json:"serviceSelector,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	Announce          []string              `json:"announce,omitempty"`
	BGP               *BGPSpec              `json:"bgp,omitempty"`
}

// Status is described in the definition.
type Status struct {
	Used       int64              `json:"used"`
	Free       int64              `json:"free"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Ready is the condition of a pool that gives addresses. Its reasons when it is False are the
// constants below.
const Ready = "Ready"

// Reasons of a pool that is not ready.
const (
	InvalidSpec  = "InvalidSpec"
	Overlaps     = "Overlaps"     // with another pool, or with itself
	ClusterRange = "ClusterRange" // it overlaps the addresses of pods or Services
	IsReady      = "Ready"
)

// Read converts an object of the API.
func Read(u *unstructured.Unstructured) (*Object, error) {
	var o Object
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		return nil, fmt.Errorf("read the AddressPool %s: %w", u.GetName(), err)
	}
	return &o, nil
}

// parse reads a pool's spec. A faulty one has all that can be read, and is Faulty.
func parse(o *Object) (Pool, error) {
	p := Pool{Name: o.Name, Priority: o.Spec.Priority, Manual: !ptr.Deref(o.Spec.AutoAssign, true)}
	var errs []error
	for _, text := range o.Spec.Addresses {
		r, err := ParseRange(text)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.Ranges = append(p.Ranges, r)
	}
	var err error
	if o.Spec.ServiceSelector != nil {
		if p.Services, err = metav1.LabelSelectorAsSelector(o.Spec.ServiceSelector); err != nil {
			errs = append(errs, fmt.Errorf("serviceSelector: %w", err))
		}
	}
	if o.Spec.NamespaceSelector != nil {
		if p.Namespaces, err = metav1.LabelSelectorAsSelector(o.Spec.NamespaceSelector); err != nil {
			errs = append(errs, fmt.Errorf("namespaceSelector: %w", err))
		}
	}
	if p.Announcing, err = announcing(&o.Spec); err != nil {
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	p.Faulty = err != nil
	return p, err
}

// Judged is a pool, and its status.
type Judged struct {
	Pool            Pool
	Reason, Message string // of the condition Ready
}

// Judge reads the pools of a cluster. A pool with a fault gives no addresses. Of two that overlap
// the older one is ready: a new pool takes nothing from those before it. cluster are the ranges of
// pods and Services; the value names the owner.
func Judge(objects []*Object, cluster map[netip.Prefix]string) []Judged {
	var out []Judged
	for _, o := range byAge(objects) {
		p, err := parse(o)
		j := Judged{Pool: p, Reason: IsReady, Message: "The pool gives addresses"}
		if err != nil {
			j.Reason, j.Message = InvalidSpec, err.Error()
		} else if reason, message := conflict(p, out, cluster); reason != "" {
			j.Reason, j.Message = reason, message
		}
		j.Pool.Faulty = j.Reason != IsReady
		out = append(out, j)
	}
	return out
}

// byAge sorts pools, the oldest one first.
func byAge(objects []*Object) []*Object {
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *Object) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return objects
}

// conflict finds a range that a pool may not have.
func conflict(p Pool, older []Judged, cluster map[netip.Prefix]string) (reason, message string) {
	for i, r := range p.Ranges {
		for prefix, whose := range cluster {
			if r.Overlaps(Range{prefix.Masked().Addr(), lastOf(prefix.Masked())}) {
				return ClusterRange, fmt.Sprintf("%s overlaps %s, the addresses of %s", r, prefix, whose)
			}
		}
		for _, other := range p.Ranges[:i] {
			if r.Overlaps(other) {
				return Overlaps, fmt.Sprintf("%s overlaps %s of the same pool", r, other)
			}
		}
		for _, o := range older {
			for _, other := range o.Pool.Ranges {
				if r.Overlaps(other) {
					return Overlaps, fmt.Sprintf("%s overlaps %s of the pool %s, which is older", r, other, o.Pool.Name)
				}
			}
		}
	}
	return "", ""
}

// Count returns how many addresses of a pool are in use, and how many a Service may get.
func Count(p Pool, services []*corev1.Service, reserved map[netip.Addr]string) (used, free int64) {
	seen, lost := map[netip.Addr]bool{}, int64(0)
	for _, s := range services {
		for _, held := range balancers.HeldBy(s) {
			if p.Contains(held.Address) {
				seen[held.Address] = true
			}
		}
	}
	for a := range reserved {
		if p.Contains(a) && !seen[a] {
			lost++
		}
	}
	used = int64(len(seen))
	switch size := p.Size(); {
	case p.Faulty:
		return used, 0
	case size == math.MaxInt64:
		return used, size
	default:
		return used, size - used - lost
	}
}
