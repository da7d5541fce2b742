package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// TestNodeThatFailsIsHeardOf: the informers, which end with the node, do not keep its error back.
func TestNodeThatFailsIsHeardOf(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	factory.Core().V1().Pods().Informer()
	failure := errors.New("no port to listen on")
	ended := make(chan error, 1)
	go func() {
		ended <- withInformers(context.Background(), []informers.SharedInformerFactory{factory},
			func(context.Context) error { return failure },
			func(ctx context.Context) error { <-ctx.Done(); return nil })
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, failure) {
			t.Errorf("%v, want %v", err, failure)
		}
	case <-time.After(time.Minute):
		t.Fatal("the failure is not told")
	}
}
