package nodeauth

import (
	"errors"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// sharedObject is a runtime.CacheableObject of another object.
type sharedObject struct{ runtime.Object }

func (s sharedObject) GetObject() runtime.Object { return s.Object }

func (sharedObject) CacheEncode(runtime.Identifier, func(runtime.Object, io.Writer) error, io.Writer) error {
	return errors.New("it was to be read")
}

// TestNodesGetNoSharedObjects: these can be sent as they are stored, with all that a node must not
// see.
func TestNodesGetNoSharedObjects(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{ServiceAccountName: "b"}}
	for _, object := range []runtime.Object{pod, sharedObject{pod}} {
		got, ok := viewed(watch.Event{Type: watch.Modified, Object: object}).Object.(*corev1.Pod)
		if !ok || got.Name != "a" || got.Spec.ServiceAccountName != "" {
			t.Errorf("of a %T: %+v", object, got)
		}
	}
	broken := &metav1.Status{Message: "the pod cannot be decoded"}
	if got := viewed(watch.Event{Type: watch.Modified, Object: sharedObject{broken}}).Object; got != broken {
		t.Errorf("of a pod that cannot be read: %T", got)
	}
}
