package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/cluster-test/sides"
)

const (
	// watched is how long a full cluster is watched, at rest and at work each.
	watched = time.Minute
	// turnover is how many pods are replaced meanwhile, in a second.
	turnover = 20
	// beat is how often the clock of the watchers is written.
	beat = 200 * time.Millisecond
)

// crowd fills the nodes with pods, and looks at the servers when all is there: at rest, where only
// Leases are renewed, and at work, where pods go and others come.
func crowd(ctx context.Context, b *bench) ([]line, error) {
	progress("making %d pods", b.options.pods)
	began := time.Now()
	created, err := b.createPods(ctx, 0, b.options.pods)
	if err != nil {
		return nil, err
	}
	if err := b.untilBound(ctx, created); err != nil {
		return nil, err
	}
	waits, last := b.waits(created)
	lines := []line{
		{"bound in a second, from the first creation to the last binding", rate(b.options.pods, last.Sub(began))},
		{"created until seen bound, p50 and p99, while the nodes fill", percentiles(waits)},
	}
	if err := b.untilStarted(ctx); err != nil {
		return lines, err
	}
	rest, err := b.look(ctx, "at rest", func(context.Context) error { return nil })
	lines = append(lines, rest...)
	if err != nil {
		return lines, err
	}
	waits = nil
	work, err := b.look(ctx, "at work", func(ctx context.Context) error {
		for second := 0; ctx.Err() == nil; second++ {
			next := time.After(time.Second)
			more, err := b.replacePods(ctx, second*turnover)
			if err != nil {
				return err
			}
			if err := b.untilBound(ctx, more); err != nil {
				return err
			}
			w, _ := b.waits(more)
			waits = append(waits, w...)
			select {
			case <-ctx.Done():
			case <-next:
			}
		}
		return nil
	})
	lines = append(lines, work...)
	return append(lines, line{fmt.Sprintf("created until seen bound, p50 and p99, of %d at work", len(waits)), percentiles(waits)}), err
}

// replacePods deletes pods, from a number on, and makes as many.
func (b *bench) replacePods(ctx context.Context, from int) (map[types.UID]time.Time, error) {
	err := b.each(ctx, turnover, func(ctx context.Context, i int) error {
		return b.client(i).CoreV1().Pods(namespace).Delete(ctx, podName(from+i), metav1.DeleteOptions{})
	})
	if err != nil {
		return nil, err
	}
	return b.createPods(ctx, b.options.pods+from, turnover)
}

// untilStarted waits until the hollow nodes have nothing to do.
func (b *bench) untilStarted(ctx context.Context) error {
	progress("waiting until the pods have started")
	return b.untilNone(ctx, "pods have not started", func() int {
		left := 0
		for _, obj := range b.pods.GetStore().List() {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Namespace == namespace && pod.Status.Phase == corev1.PodPending {
				left++
			}
		}
		return left
	})
}

// look measures the servers for a while, in which something is done.
func (b *bench) look(ctx context.Context, when string, do func(context.Context) error) ([]line, error) {
	progress("watching the servers %s", when)
	before, err := b.eachUse()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, watched)
	defer cancel()
	var doing sync.WaitGroup
	var doErr error
	doing.Go(func() { doErr = do(ctx) })
	lags, err := b.watchLag(ctx)
	doing.Wait()
	took := time.Since(began)
	if err == nil && doErr != nil && ctx.Err() == nil {
		err = doErr
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", when, err)
	}
	after, err := b.eachUse()
	if err != nil {
		return nil, err
	}
	var cores, memory []string
	for i := range after {
		cores = append(cores, fmt.Sprintf("%.2f", (after[i].CPU-before[i].CPU).Seconds()/took.Seconds()))
		memory = append(memory, fmt.Sprintf("%.0f", after[i].Anonymous))
	}
	return []line{
		{"cores of each server, " + when, strings.Join(cores, " / ")},
		{"memory of each server, MiB (RssAnon), " + when, strings.Join(memory, " / ")},
		{"a write's answer until its event, at a watcher of each server, p50 and p99, " + when, strings.Join(lags, " / ")},
	}, nil
}

func (b *bench) eachUse() ([]sides.Usage, error) {
	var all []sides.Usage
	for _, s := range b.Servers {
		u, err := s.Use()
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// watchLag writes a ConfigMap again and again until the context ends, and returns for each server
// how much later than the writer's answer a watcher has the event.
func (b *bench) watchLag(ctx context.Context) ([]string, error) {
	const name = "clock"
	maps := b.client(0).CoreV1().ConfigMaps(namespace)
	made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	answered := map[string]time.Time{} // by the revision
	seen := make([]map[string]time.Time, len(b.clients))
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, client := range b.clients {
		seen[i] = map[string]time.Time{}
		w, err := client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{
			ResourceVersion: made.ResourceVersion, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, made.Name).String(),
		})
		if err != nil {
			return nil, err
		}
		// It ends with the watch, which the context ends.
		watching.Go(func() {
			for e := range w.ResultChan() {
				if m, ok := e.Object.(*corev1.ConfigMap); ok {
					mu.Lock()
					seen[i][m.ResourceVersion] = time.Now()
					mu.Unlock()
				}
			}
		})
	}
	if err := writeClock(ctx, b.client(0), made.Name, func(revision string) {
		mu.Lock()
		defer mu.Unlock()
		answered[revision] = time.Now()
	}); err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	var out []string
	for i := range seen {
		var lags []time.Duration
		for revision, at := range answered {
			if s, ok := seen[i][revision]; ok {
				lags = append(lags, max(0, s.Sub(at)))
			}
		}
		out = append(out, fmt.Sprintf("%s of %d", percentiles(lags), len(lags)))
	}
	return out, nil
}

// writeClock writes a ConfigMap at each beat until the context ends, and tells each revision when it
// is answered.
func writeClock(ctx context.Context, client kubernetes.Interface, name string, tell func(revision string)) error {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		data := fmt.Appendf(nil, `{"data":{"time":%q}}`, time.Now().Format(time.RFC3339Nano))
		m, err := client.CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		tell(m.ResourceVersion)
	}
}
