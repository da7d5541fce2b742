package devices

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Ledger has every ResourceClaim and the devices allocated to it. It is safe for concurrent use.
//
// A claim's allocation is decided in the scheduling cycle and written beside it. Between the two it
// is pending, and its devices count as taken:
//
//	Pend ──▶ pending ──▶ Settle: the API has it, and it counts as in the claim itself
//	            └──────▶ Drop: it was not written
type Ledger struct {
	mu      sync.Mutex
	claims  map[types.NamespacedName]*entry
	pending map[types.UID]*resourcev1.ResourceClaim
	taken   devices
	// changed is closed and replaced when a claim comes or goes.
	changed chan struct{}
}

// entry is one claim: as the informer shows it, and as our own write left it when that is newer.
type entry struct {
	shown, written *resourcev1.ResourceClaim
}

func (e *entry) latest() *resourcev1.ResourceClaim {
	if e.written != nil {
		return e.written
	}
	return e.shown
}

// devices are the devices, and parts of devices, that claims occupy.
type devices struct {
	whole    sets.Set[structured.DeviceID]
	shares   sets.Set[structured.SharedDeviceID]
	consumed structured.ConsumedCapacityCollection
}

// NewLedger returns an empty one.
func NewLedger() *Ledger {
	return &Ledger{
		claims:  map[types.NamespacedName]*entry{},
		pending: map[types.UID]*resourcev1.ResourceClaim{},
		taken: devices{
			whole:    sets.New[structured.DeviceID](),
			shares:   sets.New[structured.SharedDeviceID](),
			consumed: structured.NewConsumedCapacityCollection(),
		},
		changed: make(chan struct{}),
	}
}

func keyOf(claim *resourcev1.ResourceClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
}

// Show records the informer's version of a claim.
func (l *Ledger) Show(claim *resourcev1.ResourceClaim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.claims[keyOf(claim)]
	if e == nil {
		e = &entry{}
		l.claims[keyOf(claim)] = e
	} else {
		l.taken.remove(e.latest())
	}
	e.shown = claim
	if e.written != nil && (e.written.UID != claim.UID || !newer(e.written, claim)) {
		e.written = nil
	}
	l.taken.add(e.latest())
	l.notify()
}

// Remove drops a deleted claim.
func (l *Ledger) Remove(claim *resourcev1.ResourceClaim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.claims[keyOf(claim)]; e != nil {
		l.taken.remove(e.latest())
		delete(l.claims, keyOf(claim))
	}
	l.notify()
}

func (l *Ledger) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Get returns the newest version of a claim that is known.
func (l *Ledger) Get(namespace, name string) (*resourcev1.ResourceClaim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.claims[types.NamespacedName{Namespace: namespace, Name: name}]; e != nil {
		return e.latest(), nil
	}
	return nil, apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), name)
}

// ForExtendedResources returns the claim that was made for the extended resources of a pod, nil
// when there is none.
func (l *Ledger) ForExtendedResources(namespace string, pod types.UID) *resourcev1.ResourceClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, e := range l.claims {
		claim := e.latest()
		if key.Namespace != namespace || claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
			continue
		}
		if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.UID == pod {
			return claim
		}
	}
	return nil
}

// Changed is closed at the next change of any claim that the informer brings.
func (l *Ledger) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Pend records an allocation that is about to be written. It fails when another pod's allocation of
// the claim is pending or written.
func (l *Ledger) Pend(allocated *resourcev1.ResourceClaim) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[allocated.UID] != nil {
		return fmt.Errorf("resource claim %s/%s is in the process of being allocated", allocated.Namespace,
			allocated.Name)
	}
	if e := l.claims[keyOf(allocated)]; e != nil && e.latest().UID == allocated.UID &&
		e.latest().Status.Allocation != nil {
		return fmt.Errorf("resource claim %s/%s has been allocated meanwhile", allocated.Namespace, allocated.Name)
	}
	l.pending[allocated.UID] = allocated
	return nil
}

// Pending reports whether an allocation of the claim is about to be written.
func (l *Ledger) Pending(claim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending[claim] != nil
}

// Drop ends a pending allocation without a write.
func (l *Ledger) Drop(claim types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, claim)
}

// Write records the API's answer to our own write of a claim. known is false, and nothing changes,
// when the informer does not show the claim.
func (l *Ledger) Write(claim *resourcev1.ResourceClaim) (known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.claims[keyOf(claim)]
	if e == nil || e.latest().UID != claim.UID {
		return false
	}
	if newer(claim, e.latest()) {
		l.taken.remove(e.latest())
		e.written = claim
		l.taken.add(claim)
	}
	return true
}

// State returns the allocated devices, pending allocations included. The caller owns the result.
func (l *Ledger) State() structured.AllocatedState {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := devices{l.taken.whole.Clone(), l.taken.shares.Clone(), l.taken.consumed.Clone()}
	for uid, claim := range l.pending {
		// Between Write and Drop an allocation is in both maps.
		if e := l.claims[keyOf(claim)]; e == nil || e.latest().UID != uid || e.latest().Status.Allocation == nil {
			now.add(claim)
		}
	}
	return structured.AllocatedState{
		AllocatedDevices:         now.whole,
		AllocatedSharedDeviceIDs: now.shares,
		AggregatedCapacity:       now.consumed,
	}
}

// Claims returns the newest version of all claims, in the order of their names.
func (l *Ledger) Claims() []*resourcev1.ResourceClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*resourcev1.ResourceClaim, 0, len(l.claims))
	for _, key := range slices.SortedFunc(maps.Keys(l.claims), func(a, b types.NamespacedName) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	}) {
		out = append(out, l.claims[key].latest())
	}
	return out
}

func newer(a, b *resourcev1.ResourceClaim) bool {
	c, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && c > 0
}

// add counts the devices of a claim. Administrative access takes no device from others, so its
// devices do not count.
func (d *devices) add(claim *resourcev1.ResourceClaim) {
	eachDevice(claim, func(id structured.DeviceID, r *resourcev1.DeviceRequestAllocationResult) {
		if r.ShareID == nil {
			d.whole.Insert(id)
			return
		}
		d.shares.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		if r.ConsumedCapacity != nil {
			d.consumed.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	})
}

func (d *devices) remove(claim *resourcev1.ResourceClaim) {
	eachDevice(claim, func(id structured.DeviceID, r *resourcev1.DeviceRequestAllocationResult) {
		if r.ShareID == nil {
			d.whole.Delete(id)
			return
		}
		d.shares.Delete(structured.MakeSharedDeviceID(id, r.ShareID))
		if r.ConsumedCapacity != nil {
			d.consumed.Remove(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	})
}

func eachDevice(
	claim *resourcev1.ResourceClaim, do func(structured.DeviceID, *resourcev1.DeviceRequestAllocationResult),
) {
	if claim.Status.Allocation == nil {
		return
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		do(structured.MakeDeviceID(r.Driver, r.Pool, r.Device), r)
	}
}
