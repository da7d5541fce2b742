package storage

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
)

// A watch from revision 1, the oldest that a client can name, shows every object that there ever
// was.
func TestTheFirstRevisionIsNobodysObject(t *testing.T) {
	e := newEnv(t, envOptions{codec: exampleCodec()})
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	out := &example.Pod{}
	if err := e.raw.Create(e.ctx, "/pods/ns/p", pod, out, 0); err != nil {
		t.Fatal(err)
	}
	if out.ResourceVersion != "2" {
		t.Fatalf("the first object of a store has the resourceVersion %s; want 2", out.ResourceVersion)
	}
}
