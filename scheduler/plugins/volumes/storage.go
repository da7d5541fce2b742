package volumes

import (
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// reachable is the storage of one class, arranged by the nodes that reach it: drivers publish an
// object for each node, and each pod is tried on each node.
type reachable struct {
	// byLabels has the storage that is reached by plain labels: the keys of those, joined, lead to
	// their values.
	byLabels map[string]*labelledStorage
	// byRules has the storage whose selector has more than plain labels.
	byRules []selectedStorage
}

type labelledStorage struct {
	keys []string
	// of leads from the values of the keys, joined, to the storage.
	of map[string][]*storagev1.CSIStorageCapacity
}

type selectedStorage struct {
	selector labels.Selector
	storage  *storagev1.CSIStorageCapacity
}

// storageOf arranges the storage of some classes.
func storageOf(all []*storagev1.CSIStorageCapacity, wanted func(class string) bool) map[string]*reachable {
	classes := map[string]*reachable{}
	for _, c := range all {
		if c.NodeTopology == nil || !wanted(c.StorageClassName) {
			continue // without a topology no node reaches it
		}
		r := classes[c.StorageClassName]
		if r == nil {
			r = &reachable{byLabels: map[string]*labelledStorage{}}
			classes[c.StorageClassName] = r
		}
		r.add(c)
	}
	return classes
}

func (r *reachable) add(c *storagev1.CSIStorageCapacity) {
	if len(c.NodeTopology.MatchExpressions) > 0 {
		if selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology); err == nil {
			r.byRules = append(r.byRules, selectedStorage{selector, c})
		}
		return
	}
	keys := make([]string, 0, len(c.NodeTopology.MatchLabels))
	for key := range c.NodeTopology.MatchLabels {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	of := strings.Join(keys, ",") // which is in no key and no value
	l := r.byLabels[of]
	if l == nil {
		l = &labelledStorage{keys, map[string][]*storagev1.CSIStorageCapacity{}}
		r.byLabels[of] = l
	}
	if values, ok := l.values(c.NodeTopology.MatchLabels); ok {
		l.of[values] = append(l.of[values], c)
	}
}

// values joins the values of the keys; it returns false when one is missing.
func (l *labelledStorage) values(of map[string]string) (string, bool) {
	values := make([]string, len(l.keys))
	for i, key := range l.keys {
		value, ok := of[key]
		if !ok {
			return "", false
		}
		values[i] = value
	}
	return strings.Join(values, ","), true
}

// find returns storage that a node with these labels reaches, and that has room for a volume of a
// size. It is nil when there is none.
func (r *reachable) find(node map[string]string, size int64) *storagev1.CSIStorageCapacity {
	if r == nil {
		return nil
	}
	for _, l := range r.byLabels {
		values, ok := l.values(node)
		if !ok {
			continue
		}
		for _, c := range l.of[values] {
			if limitOf(c) >= size {
				return c
			}
		}
	}
	for _, s := range r.byRules {
		if limitOf(s.storage) >= size && s.selector.Matches(labels.Set(node)) {
			return s.storage
		}
	}
	return nil
}
