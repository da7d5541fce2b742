package apiobjects

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/kubelet/volumes"
)

// TestWatchedObjects: an object is watched while a pod refers to it, and changes wake its pods.
func TestWatchedObjects(t *testing.T) {
	client := fake.NewClientset()
	changed := make(chan types.UID, 16)
	o := NewObjects(client, func(uid types.UID) { changed <- uid })
	defer o.Close()
	ctx := context.Background()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	if _, err := o.Secret(ctx, pod, "s"); !volumes.IsNotFound(err) {
		t.Fatalf("a missing secret: %v", err)
	}
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Data: map[string][]byte{"k": []byte("1")}}
	if _, err := client.CoreV1().Secrets("ns").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if uid := <-changed; uid != "u" {
		t.Errorf("told %s", uid)
	}
	if got, err := o.Secret(ctx, pod, "s"); err != nil || string(got.Data["k"]) != "1" {
		t.Errorf("%v %v", got, err)
	}
	o.Forget("u")
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.live) != 0 {
		t.Errorf("still watched: %v", o.live)
	}
}
