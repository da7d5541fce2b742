package persistentvolume

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// newest reads an informer with this term's writes added. Without them, many claims that come
// together would choose the same volume one after the other. One goroutine uses it.
type newest[T any, P interface {
	*T
	metav1.Object
}] struct {
	informer cache.SharedIndexInformer
	written  map[runtime.Key]P
}

// get returns an object, nil when it is not there.
func (n *newest[T, P]) get(key runtime.Key) (P, error) {
	obj, exists, err := n.informer.GetIndexer().GetByKey(key.String())
	if err != nil || !exists {
		return nil, err
	}
	known, ok := obj.(P)
	if !ok {
		return nil, nil
	}
	return n.over(known), nil
}

// byIndex returns the objects of the informer's index, each in its newest written version.
func (n *newest[T, P]) byIndex(index, value string) ([]P, error) {
	list, err := runtime.ByIndex[T](n.informer, index, value)
	out := make([]P, len(list))
	for i, obj := range list {
		out[i] = n.over(obj)
	}
	return out, err
}

func (n *newest[T, P]) over(known P) P {
	key := runtime.KeyOf(known)
	written, ok := n.written[key]
	if !ok {
		return known
	}
	// The object itself is asked: the informer may have moved on since the object was read from it.
	if written.GetUID() != known.GetUID() || !runtime.Older(known.GetResourceVersion(), written.GetResourceVersion()) {
		delete(n.written, key)
		return known
	}
	return written
}

// wrote notes an object as the API server returned it.
func (n *newest[T, P]) wrote(obj P) { n.written[runtime.KeyOf(obj)] = obj }

// forget drops an object that is gone.
func (n *newest[T, P]) forget(key runtime.Key) { delete(n.written, key) }
