package eviction

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is a resource that a node may run short of.
type Signal string

// The signals, as kubelets name them. The runtime keeps images and the writable layers of
// containers on imagefs, which may be the same file system as nodefs.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFsAvailable   Signal = "nodefs.available"
	NodeFsInodesFree  Signal = "nodefs.inodesFree"
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
)

// about maps each signal to a condition of the node and the short resource.
var about = map[Signal]struct {
	condition v1.NodeConditionType
	resource  v1.ResourceName
}{
	MemoryAvailable:   {v1.NodeMemoryPressure, v1.ResourceMemory},
	NodeFsAvailable:   {v1.NodeDiskPressure, v1.ResourceEphemeralStorage},
	NodeFsInodesFree:  {v1.NodeDiskPressure, resourceInodes},
	ImageFsAvailable:  {v1.NodeDiskPressure, v1.ResourceEphemeralStorage},
	ImageFsInodesFree: {v1.NodeDiskPressure, resourceInodes},
	PIDAvailable:      {v1.NodePIDPressure, resourcePIDs},
}

// Names in messages for resources that the API does not have.
const (
	resourceInodes v1.ResourceName = "inodes"
	resourcePIDs   v1.ResourceName = "pids"
)

// Amount is a quantity, or a share of the capacity.
type Amount struct {
	Quantity resource.Quantity
	Share    float64 // 0.1 is 10 %; the quantity counts when 0
}

func (a Amount) of(capacity int64) int64 {
	if a.Share > 0 {
		return int64(float64(capacity) * a.Share)
	}
	return a.Quantity.Value()
}

// off reports whether an amount turns a threshold off: nothing, or the whole capacity.
func (a Amount) off() bool {
	return a.Share >= 1 || a.Share == 0 && a.Quantity.Sign() == 0
}

// ParseAmount reads a quantity, or a percentage such as 10%.
func ParseAmount(text string) (Amount, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.ParseFloat(percent, 64)
		if err != nil || n < 0 || n > 100 {
			return Amount{}, fmt.Errorf("%q: want a percentage from 0%% to 100%%", text)
		}
		return Amount{Share: n / 100}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return Amount{}, fmt.Errorf("%q: %w", text, err)
	}
	if q.Sign() < 0 {
		return Amount{}, fmt.Errorf("%q: want an amount that is not negative", text)
	}
	return Amount{Quantity: q}, nil
}

// Threshold is the least amount of a signal.
type Threshold struct {
	Signal Signal
	Value  Amount
	// Grace is how long the threshold may be met before pods are evicted; 0 for a hard threshold.
	Grace time.Duration
	// MinReclaim is the amount above the threshold at which the shortage is over.
	MinReclaim Amount
}

// DefaultHard are the thresholds at which pods are evicted at once, unless configured.
func DefaultHard() map[string]string {
	return map[string]string{
		string(MemoryAvailable): "100Mi", string(NodeFsAvailable): "10%", string(NodeFsInodesFree): "5%",
		string(ImageFsAvailable): "15%", string(ImageFsInodesFree): "5%",
	}
}

// Parse reads the thresholds as a KubeletConfiguration has them.
func Parse(hard, soft, grace, reclaim map[string]string) ([]Threshold, error) {
	var list []Threshold
	for _, name := range slices.Sorted(maps.Keys(hard)) {
		t, err := parse(name, hard[name], reclaim)
		if err != nil {
			return nil, fmt.Errorf("evictionHard: %w", err)
		}
		if !t.Value.off() {
			list = append(list, t)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(soft)) {
		t, err := parse(name, soft[name], reclaim)
		if err != nil {
			return nil, fmt.Errorf("evictionSoft: %w", err)
		}
		text, ok := grace[name]
		if !ok {
			return nil, fmt.Errorf("evictionSoft: %s has no grace period: set evictionSoftGracePeriod for it", name)
		}
		if t.Grace, err = time.ParseDuration(text); err != nil || t.Grace <= 0 {
			return nil,
				fmt.Errorf("evictionSoftGracePeriod: %s: want a positive duration such as 1m30s, not %q", name, text)
		}
		if !t.Value.off() {
			list = append(list, t)
		}
	}
	for _, each := range []struct {
		field string
		names map[string]string
	}{{"evictionSoftGracePeriod", grace}, {"evictionMinimumReclaim", reclaim}} {
		for name := range each.names {
			if _, ok := about[Signal(name)]; !ok {
				return nil, fmt.Errorf("%s: %w", each.field, unknown(name))
			}
		}
	}
	return list, nil
}

func unknown(name string) error {
	names := []string{}
	for _, s := range slices.Sorted(maps.Keys(about)) {
		names = append(names, string(s))
	}
	return fmt.Errorf("%q is no signal; want one of %s", name, strings.Join(names, ", "))
}

func parse(name, value string, reclaim map[string]string) (Threshold, error) {
	t := Threshold{Signal: Signal(name)}
	if _, ok := about[t.Signal]; !ok {
		return t, unknown(name)
	}
	var err error
	if t.Value, err = ParseAmount(value); err != nil {
		return t, fmt.Errorf("%s: %w", name, err)
	}
	if text, ok := reclaim[name]; ok {
		if t.MinReclaim, err = ParseAmount(text); err != nil {
			return t, fmt.Errorf("evictionMinimumReclaim of %s: %w", name, err)
		}
	}
	return t, nil
}

// Reserve adds the hard thresholds to the reserved resources: pods cannot have those either.
func Reserve(reserved v1.ResourceList, thresholds []Threshold, capacity v1.ResourceList) v1.ResourceList {
	sum := v1.ResourceList{}
	for name, q := range reserved {
		sum[name] = q.DeepCopy()
	}
	for _, t := range thresholds {
		var name v1.ResourceName
		switch t.Signal {
		case MemoryAvailable:
			name = v1.ResourceMemory
		case NodeFsAvailable:
			name = v1.ResourceEphemeralStorage
		}
		if all, ok := capacity[name]; ok && t.Grace == 0 {
			have := sum[name]
			have.Add(*resource.NewQuantity(t.Value.of(all.Value()), resource.BinarySI))
			sum[name] = have
		}
	}
	return sum
}
