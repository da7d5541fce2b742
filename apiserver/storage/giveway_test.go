package storage

import (
	"context"
	"fmt"
	goruntime "runtime"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
)

// TestALongListLetsOthersRun has one core for a list that decodes, and for a goroutine that gives
// way at once. Whether the decoded objects are kept is no matter.
func TestALongListLetsOthersRun(t *testing.T) {
	const pods = 300
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(1))
	for name, cached := range map[string]bool{"kept": true, "not kept": false} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, envOptions{cached: cached})
			for n := range pods {
				pod := &example.Pod{}
				pod.Name = fmt.Sprint("pod", n)
				if err := e.store.Create(e.ctx, "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
					t.Fatal(err)
				}
			}
			e.start(t) // one that has read nothing yet
			other := &watched{Transformer: e.reads.swap(nil)}
			e.reads.swap(other)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for !other.over.Load() {
					other.turns.Add(1)
					goruntime.Gosched()
				}
			}()
			var list example.PodList
			err := e.store.GetList(e.ctx, "/pods/", storage.ListOptions{
				Recursive: true,
				Predicate: storage.SelectionPredicate{
					Label: labels.Everything(), Field: fields.ParseSelectorOrDie("spec.nodeName="), GetAttrs: podAttrs,
				},
			}, &list)
			other.over.Store(true)
			<-ended
			if err != nil || len(list.Items) != pods {
				t.Fatalf("%d pods, %v", len(list.Items), err)
			}
			if n := other.last - other.first; n < pods/2 {
				t.Errorf("the other goroutine had %d turns while %d pods were decoded", n, pods)
			}
		})
	}
}

// watched notes the turn of another goroutine when the first and when the last object was read.
type watched struct {
	value.Transformer
	turns       atomic.Int64
	over        atomic.Bool
	first, last int64
}

func (w *watched) TransformFromStorage(ctx context.Context, data []byte, of value.Context) ([]byte, bool, error) {
	if w.last = w.turns.Load(); w.first == 0 {
		w.first = w.last
	}
	return w.Transformer.TransformFromStorage(ctx, data, of)
}
