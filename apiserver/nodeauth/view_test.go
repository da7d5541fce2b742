package nodeauth

import (
	"context"
	"errors"
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
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

// TestNodesGetTheirOwnPodsAlone: the object decides, as an informer may not know a new pod yet.
func TestNodesGetTheirOwnPodsAlone(t *testing.T) {
	as := func(name string, groups ...string) context.Context {
		return request.WithUser(t.Context(), &user.DefaultInfo{Name: name, Groups: groups})
	}
	node := as("system:node:n1", user.NodesGroup)
	on := func(node string) runtime.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{NodeName: node}}
	}
	for name, c := range map[string]struct {
		ctx     context.Context
		object  runtime.Object
		allowed bool
	}{
		"its own":                     {node, on("n1"), true},
		"of another node":             {node, on("n2"), false},
		"of no node yet":              {node, on(""), false},
		"no pod":                      {node, &metav1.Status{}, false},
		"by the name of a node alone": {as("system:node:n1"), on("n2"), true},
		"by another user":             {as("ann"), on("n2"), true},
		"by nobody":                   {t.Context(), on("n2"), true},
	} {
		err := forNode(c.ctx, "a", c.object)
		if (err == nil) != c.allowed || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
