package services

import (
	"context"
	"net/netip"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/allocator"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// DefaultCIDR is the name of the ServiceCIDR with the configured ranges.
const DefaultCIDR = "kubernetes"

// serviceCIDR is a ServiceCIDR as of one revision.
type serviceCIDR struct {
	key      string
	revision uint64 // of its newest change; 0 while it does not exist
	// addresses may be given from it.
	ready  bool
	ranges []allocator.Range[netip.Addr]
}

// contains reports whether an address may come from the ServiceCIDR.
func (c *serviceCIDR) contains(a netip.Addr) bool {
	for _, r := range c.ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// unchanged demands that the ServiceCIDR is as it was read: a deletion that has begun since keeps
// its addresses from being given.
func (c *serviceCIDR) unchanged() raftstore.Precondition {
	return raftstore.Precondition{Key: c.key, ModRevision: c.revision}
}

// cidrReader reads ServiceCIDRs, and caches them: they change rarely, and each allocation
// reads them.
type cidrReader struct {
	objects  *storage.Objects
	defaults []netip.Prefix // the configured ranges

	mu   sync.Mutex
	seen map[string]*serviceCIDR
}

// in returns the ServiceCIDRs of a view, the default one first.
func (r *cidrReader) in(ctx context.Context, view raftstore.View) ([]*serviceCIDR, error) {
	var items []raftstore.Item
	view.Ascend(r.objects.Prefix(), "", func(item raftstore.Item) bool {
		items = append(items, item)
		return true
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	first := &serviceCIDR{key: r.objects.Key(DefaultCIDR), ready: true, ranges: rangesOf(r.defaults)}
	out, seen := []*serviceCIDR{first}, make(map[string]*serviceCIDR, len(items))
	for _, item := range items {
		c := r.seen[item.Key]
		if c == nil || c.revision != item.ModRevision {
			var object networkingv1.ServiceCIDR
			if err := r.objects.Decode(ctx, item, &object); err != nil {
				return nil, err
			}
			c = parseCIDR(item, &object)
		}
		seen[item.Key] = c
		if item.Key == first.key {
			out[0] = c
		} else {
			out = append(out, c)
		}
	}
	r.seen = seen
	return out, nil
}

func parseCIDR(item raftstore.Item, object *networkingv1.ServiceCIDR) *serviceCIDR {
	var prefixes []netip.Prefix
	for _, text := range object.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil { // validation has seen it
			prefixes = append(prefixes, p)
		}
	}
	ready := meta.FindStatusCondition(object.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	return &serviceCIDR{
		key: item.Key, revision: item.ModRevision, ranges: rangesOf(prefixes),
		// A new one need not wait for its controller.
		ready: object.DeletionTimestamp.IsZero() && (ready == nil || ready.Status == metav1.ConditionTrue),
	}
}

func rangesOf(prefixes []netip.Prefix) []allocator.Range[netip.Addr] {
	out := make([]allocator.Range[netip.Addr], len(prefixes))
	for i, p := range prefixes {
		out[i] = allocator.Addresses(p)
	}
	return out
}

// readyFor returns a ServiceCIDR from which the address may be given, nil when there is none.
func readyFor(cidrs []*serviceCIDR, a netip.Addr) *serviceCIDR {
	for _, c := range cidrs {
		if c.ready && c.contains(a) {
			return c
		}
	}
	return nil
}
