package kubelet

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/allocation"
	"github.com/barque/barque/kubelet/cri/fake"
	"github.com/barque/barque/kubelet/pods"
	"github.com/barque/barque/kubelet/static"
)

// waiting is an allocator that notes when new pods may be decided about.
type waiting struct {
	pods.Allocator
	synced bool
}

func (w *waiting) Synced()               { w.synced = true }
func (*waiting) Known(*v1.Pod)           {}
func (*waiting) Get(pod *v1.Pod) *v1.Pod { return pod }
func (*waiting) Answer(pod *v1.Pod, _ bool) allocation.Answer {
	return allocation.Answer{Pod: pod, Waiting: true}
}

// TestPodsWaitForTheNode: no pod is admitted by labels and taints that this process
// has only assumed.
func TestPodsWaitForTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := slog.New(slog.DiscardHandler)
		allocator := &waiting{}
		k := &Kubelet{registered: make(chan struct{}),
			pods: pods.New(pods.Config{Runtime: fake.New(), Allocator: allocator, Logger: logger})}
		k.static = static.NewSource(
			static.SourceConfig{Dir: t.TempDir(), Pods: k.pods, Mirrors: static.NewMirrors(static.MirrorsConfig{}),
				Logger: logger})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			k.followed(ctx)
		}()
		time.Sleep(time.Hour) // virtual
		if allocator.synced {
			t.Error("before the API server has told of the node")
		}
		close(k.registered)
		synctest.Wait()
		if !allocator.synced {
			t.Error("pods wait on, though the node is known")
		}
		select {
		case <-ended:
			t.Error("pods of files were not waited for")
		default:
		}
		cancel()
		<-ended
	})
}
