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

	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/sides"
)

const (
	// turnover is how many pods are replaced in a second, at work.
	turnover = 20
	// beat is how often the clock of the watchers is written.
	beat = 200 * time.Millisecond
)

// crowd fills the nodes with pods, and looks at the servers when all is there: at rest, where only
// Leases are renewed, and at work, where pods go and others come.
func crowd(ctx context.Context, b *bench) ([]figure.Figure, error) {
	empty, err := b.look(ctx, "without pods", func(context.Context) error { return nil })
	if err != nil {
		return empty, err
	}
	progress("making %d pods", b.options.pods)
	full, err := bindPods(ctx, b)
	figures := append(empty, full...)
	if err != nil {
		return figures, err
	}
	if err := b.untilStarted(ctx); err != nil {
		return figures, err
	}
	rest, err := b.look(ctx, "at rest", func(context.Context) error { return nil })
	figures = append(figures, rest...)
	if err != nil {
		return figures, err
	}
	var all []time.Duration
	work, err := b.look(ctx, "at work", func(ctx context.Context) error {
		for second := 0; ctx.Err() == nil && (second+1)*turnover <= b.options.pods; second++ {
			next := time.After(time.Second) // brief: the rate of the turnover
			more, err := b.replacePods(ctx, second*turnover)
			if err == nil {
				err = b.untilBound(ctx, more)
			}
			if err != nil {
				return err
			}
			w, _ := b.waits(more)
			all = append(all, w...)
			select {
			case <-ctx.Done():
			case <-next:
			}
		}
		return nil
	})
	figures = append(figures, work...)
	figures = append(figures, figure.One("pods replaced at work", "", float64(len(all))))
	return append(figures, figure.Percentiles("created until the node sees it, at work", "s", all)...), err
}

// replacePods deletes pods, from a number on, and makes as many.
func (b *bench) replacePods(ctx context.Context, from int) (map[string]time.Time, error) {
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
		for _, store := range b.podsOf {
			left += count(store.List(), isPending)
		}
		return left
	})
}

func isPending(obj any) bool {
	pod, ok := obj.(*corev1.Pod)
	return ok && pod.Namespace == namespace && pod.Status.Phase == corev1.PodPending
}

// look measures the servers for a while, in which something is done.
func (b *bench) look(ctx context.Context, when string, do func(context.Context) error) ([]figure.Figure, error) {
	progress("watching the servers %s", when)
	before, err := b.eachUse()
	if err != nil {
		return nil, err
	}
	hollow, err := b.usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	during, cancel := context.WithTimeout(ctx, b.watched) // brief: how long is measured
	defer cancel()
	var doing sync.WaitGroup
	var doErr error
	doing.Go(func() {
		if err := do(during); during.Err() == nil {
			doErr = err
		}
	})
	lags, err := b.watchLag(during)
	doing.Wait()
	took := time.Since(began)
	if err == nil {
		err = doErr
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", when, err)
	}
	after, err := b.eachUse()
	if err != nil {
		return nil, err
	}
	end, err := b.usage()
	if err != nil {
		return nil, err
	}
	cores, memory := figure.Figure{What: "cores of each server, " + when},
		figure.Figure{What: "memory of each server (RssAnon), " + when, Unit: "MiB"}
	for i := range after {
		cores.Values = append(cores.Values, (after[i].CPU-before[i].CPU).Seconds()/took.Seconds())
		memory.Values = append(memory.Values, after[i].Anonymous)
	}
	figures := []figure.Figure{cores, memory,
		figure.One("cores of the hollow nodes, "+when, "", (end.hollow-hollow.hollow).Seconds()/took.Seconds())}
	for _, l := range lags {
		l.What += ", " + when
		figures = append(figures, l)
	}
	return figures, nil
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

// clock is an object that is written at each beat, and watched at each server.
type clock struct {
	mu       sync.Mutex
	called   map[string]time.Time // when a value was about to be written
	answered map[string]time.Time
	seen     []map[string]time.Time // for each server, when its watcher had it
}

// watchLag writes a ConfigMap again and again until the context ends, and returns how long its
// writes took, and how much later than the call a watcher of each server had the event.
func (b *bench) watchLag(ctx context.Context) ([]figure.Figure, error) {
	made, err := b.client(0).CoreV1().ConfigMaps(namespace).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "clock-"}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	c := &clock{called: map[string]time.Time{}, answered: map[string]time.Time{},
		seen: make([]map[string]time.Time, len(b.clients))}
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, client := range b.clients {
		c.seen[i] = map[string]time.Time{}
		w, err := client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{
			ResourceVersion: made.ResourceVersion,
			FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, made.Name).String(),
		})
		if err != nil {
			return nil, err
		}
		// It ends with the watch, which the context ends.
		watching.Go(func() {
			for e := range w.ResultChan() {
				if m, ok := e.Object.(*corev1.ConfigMap); ok {
					c.note(c.seen[i], m.Data["time"])
				}
			}
		})
	}
	c.write(ctx, b, made.Name)
	return c.figures(), nil
}

func (c *clock) note(in map[string]time.Time, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in[value] = time.Now()
}

// write writes the clock at each beat until the context ends.
func (c *clock) write(ctx context.Context, b *bench, name string) {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		value := time.Now().Format(time.RFC3339Nano)
		c.note(c.called, value)
		data := fmt.Appendf(nil, `{"data":{"time":%q}}`, value)
		if _, err := b.client(0).CoreV1().ConfigMaps(namespace).Patch(ctx, name, types.MergePatchType, data,
			metav1.PatchOptions{}); err == nil {
			c.note(c.answered, value)
		} else if ctx.Err() == nil {
			b.failed(err)
		}
	}
}

// figures are those of the writes that were answered. A watcher that lacks some of their events is
// reported: the last one may be on its way.
func (c *clock) figures() []figure.Figure {
	c.mu.Lock()
	defer c.mu.Unlock()
	var writes []time.Duration
	for value, at := range c.answered {
		writes = append(writes, at.Sub(c.called[value]))
	}
	out := figure.Percentiles("a write until its answer", "ms", writes)
	var missed []string
	for _, seen := range c.seen {
		var lags []time.Duration
		for value := range c.answered {
			if s, ok := seen[value]; ok {
				lags = append(lags, s.Sub(c.called[value]))
			}
		}
		if n := len(c.answered) - len(lags); n > 1 {
			missed = append(missed, fmt.Sprint(n))
		}
		out = figure.Merge(out, figure.Percentiles("a write until its event, at a watcher of each server", "ms", lags))
	}
	if len(missed) > 0 {
		progress("of %d writes, watchers have not had the events of %s", len(c.answered), strings.Join(missed, ", "))
	}
	return out
}
