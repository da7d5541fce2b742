package worker

import (
	"context"
	"errors"
	"slices"
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

// TestOwnParents: groups that others have made keep their weight.
func TestOwnParents(t *testing.T) {
	for root, want := range map[string][]string{
		"/barque/n1": {"/barque"}, "/barque-dev-x/n1": {"/barque-dev-x"},
		"/barque": nil, "/theirs/barque/n1": nil, "/barque.slice/n1": nil, "/kubernetes/n1": nil,
	} {
		if got := ownParents(root); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", root, got, want)
		}
	}
}
