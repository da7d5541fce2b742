package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

// writesPerSecond is the rate of the writers beside which pages are listed.
const writesPerSecond = 500

// pageSize is how many objects a page has: what client-go asks for.
const pageSize = 500

// bulk is what can be measured with many objects. Each case has servers of its own, and is measured
// once: first on one side, then on the other.
type bulk struct {
	name    string
	figures func(context.Context, options, *load) ([]figure.Figure, error)
}

var bulks = []bulk{{"memory", fill}, {"collection", deleteCollections}, {"pages", listPages}}

func wantedBulks(only *regexp.Regexp) (out []bulk) {
	for _, b := range bulks {
		if only.MatchString(b.name) {
			out = append(out, b)
		}
	}
	return out
}

func (b bulk) run(ctx context.Context, o options, theirs, ours *sides.Side) error {
	whose := []string{theirs.Name, ours.Name}
	of := map[string][]figure.Figure{}
	for _, s := range []*sides.Side{theirs, ours} {
		progress("%s of %s", b.name, s.Name)
		l, err := newLoad(ctx, s)
		if err == nil {
			of[s.Name], err = b.figures(ctx, o, l)
		}
		if err != nil {
			return fmt.Errorf("%s of %s: %w", b.name, s.Name, err)
		}
	}
	fmt.Printf("\n%s\n%s", figure.Header(whose), figure.Table(b.name, whose, of))
	return nil
}

// fill makes many ConfigMaps, and looks at the memory before and after.
func fill(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	c := testCase{"create", encodings[0], mostClient}
	return l.around(ctx, fmt.Sprintf("%d ConfigMaps of %d bytes", o.filled, size), func() ([]figure.Figure, error) {
		began := time.Now()
		err := l.each(o.filled, func(client int) error { return l.request(ctx, c, client) })
		return []figure.Figure{figure.One("ConfigMaps created in a second", "", float64(o.filled)/time.Since(began).Seconds())}, err
	})
}

// deleteCollections makes pods and deletes all of them by one request, twice, and looks at the
// memory before and after.
func deleteCollections(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	took := figure.Figure{What: fmt.Sprintf("deletecollection of %d pods", o.pods), Unit: "s"}
	cpu := figure.Figure{What: "CPU time of all servers for it", Unit: "s"}
	figures, err := l.around(ctx, fmt.Sprintf("%d pods were made and deleted", 2*o.pods), func() ([]figure.Figure, error) {
		for range 2 {
			if err := l.createPods(ctx, o.pods); err != nil {
				return nil, err
			}
			before, err := l.Use()
			if err != nil {
				return nil, err
			}
			began := time.Now()
			err = l.clients[0].do(ctx, http.MethodDelete, podsPath, encodings[0], nil)
			took.Values = append(took.Values, time.Since(began).Seconds())
			after, useErr := l.Use()
			if err := errors.Join(err, useErr); err != nil {
				return nil, err
			}
			cpu.Values = append(cpu.Values, (after.CPU - before.CPU).Seconds())
		}
		return nil, nil
	})
	return append([]figure.Figure{took, cpu}, figures...), err
}

// listPages lists many pods in pages while others write, and compares the writes with those while
// nobody lists.
func listPages(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	if err := l.createPods(ctx, o.listed); err != nil {
		return nil, err
	}
	progress("writing, while nobody lists")
	alone, err := l.paced(ctx, o.watched)
	if err != nil {
		return nil, err
	}
	progress("writing, while pages are listed")
	listing, stop := context.WithCancel(ctx)
	defer stop()
	pages := 0
	var listErr error
	var listed sync.WaitGroup
	listed.Go(func() {
		for next := ""; listErr == nil; {
			if next, listErr = l.page(listing, next); listErr == nil {
				pages++
			}
		}
	})
	beside, err := l.paced(ctx, o.watched)
	stop()
	listed.Wait()
	if err == nil && !errors.Is(listErr, context.Canceled) {
		err = fmt.Errorf("listing pages: %w", listErr)
	}
	figures := append(alone.figures("while nobody lists"), beside.figures("while pages are listed")...)
	return append(figures, figure.One(fmt.Sprintf("pages of %d of %d pods, read in a second", pageSize, o.listed), "", float64(pages)/o.watched.Seconds())), err
}

// writes are those of a while at a steady rate.
type writes struct {
	took   []time.Duration
	failed int
	late   int // were not begun, because all writers waited
}

func (w writes) figures(when string) []figure.Figure {
	return append(figure.Percentiles("a write, "+when, "ms", w.took),
		figure.One("writes that failed, "+when, "", float64(w.failed)),
		figure.One(fmt.Sprintf("writes fewer than %d a second, %s", writesPerSecond, when), "", float64(w.late)))
}

// paced updates ConfigMaps at a steady rate for a while.
func (l *load) paced(ctx context.Context, during time.Duration) (writes, error) {
	c := testCase{"update", encodings[0], mostClient}
	due := make(chan struct{})
	var mu sync.Mutex
	var w writes
	var last error
	var writers sync.WaitGroup
	for i := range mostClient {
		writers.Go(func() {
			for range due {
				began := time.Now()
				err := l.request(ctx, c, i)
				mu.Lock()
				if w.took = append(w.took, time.Since(began)); err != nil {
					w.failed++
					last = err
				}
				mu.Unlock()
			}
		})
	}
	ticks := time.NewTicker(time.Second / writesPerSecond)
	defer ticks.Stop()
	began, sent := time.Now(), 0
	for time.Since(began) < during && ctx.Err() == nil { // brief: how long is measured
		<-ticks.C
		select {
		case due <- struct{}{}:
			sent++
		default:
		}
	}
	close(due)
	writers.Wait()
	w.late = max(0, int(during.Seconds()*writesPerSecond)-sent)
	if sent > 0 && w.failed == sent {
		return w, fmt.Errorf("no write succeeded: %w", last)
	}
	return w, ctx.Err()
}

// page reads a page of pods, the first one or the one that a token stands for, and returns the
// token of the next one. It decodes no pod.
func (l *load) page(ctx context.Context, token string) (next string, err error) {
	path := fmt.Sprintf("%s?limit=%d&continue=%s", podsPath, pageSize, url.QueryEscape(token))
	res, err := l.clients[0].send(ctx, http.MethodGet, path, encodings[1].media, nil)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	body := bufio.NewReader(res.Body)
	if next, err = continueOf(body); err == nil {
		_, err = io.Copy(io.Discard, body)
	}
	return next, err
}

// continueOf reads a list in JSON up to its metadata, which stand before the items.
func continueOf(list io.Reader) (string, error) {
	d := json.NewDecoder(list)
	for key := ""; ; {
		t, err := d.Token()
		if err != nil {
			return "", fmt.Errorf("a list without metadata: %w", err)
		}
		if key == "metadata" && t == json.Delim('{') {
			break
		}
		key, _ = t.(string)
	}
	token := ""
	for d.More() {
		key, err := d.Token()
		var value any
		if err = cmp.Or(err, d.Decode(&value)); err != nil {
			return "", fmt.Errorf("metadata of a list: %w", err)
		}
		if key == "continue" {
			token, _ = value.(string)
		}
	}
	return token, nil
}

// around looks at the memory of each server, in rest, before and after something is done.
func (l *load) around(ctx context.Context, done string, do func() ([]figure.Figure, error)) ([]figure.Figure, error) {
	before, err := l.rested(ctx, "memory of each server (RssAnon) before")
	if err != nil {
		return nil, err
	}
	figures, err := do()
	if err != nil {
		return figures, err
	}
	after, err := l.rested(ctx, "memory of each server (RssAnon), "+done)
	return append(append(figures, before), after), err
}

// rested is the memory of each server when it was left alone.
func (l *load) rested(ctx context.Context, what string) (figure.Figure, error) {
	progress("leaving the servers alone for %v", settle)
	select {
	case <-ctx.Done():
		return figure.Figure{}, context.Cause(ctx)
	case <-time.After(settle):
	}
	memory, err := side{l.Side}.memory()
	return figure.Figure{What: what, Unit: "MiB", Values: memory}, err
}

// each has all clients do something n times in all.
func (l *load) each(n int, do func(client int) error) error {
	var begun atomic.Int64
	failures := make([]error, mostClient)
	var all sync.WaitGroup
	for client := range mostClient {
		all.Go(func() {
			for begun.Add(1) <= int64(n) && failures[client] == nil {
				failures[client] = do(client)
			}
		})
	}
	all.Wait()
	return errors.Join(failures...)
}

var podsPath = strings.TrimSuffix(pathTo(made, ""), "configmaps") + "pods"

// createPods makes pods that no scheduler takes.
func (l *load) createPods(ctx context.Context, n int) error {
	progress("making %d pods", n)
	// Upstream's servers have no controller that makes the namespace's ServiceAccount. Where there
	// is one, it may be as fast: the first pod tells whether it is there.
	account, err := encodings[1].encode(&corev1.ServiceAccount{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Namespace: made, Name: "default"},
	})
	if err != nil {
		return err
	}
	accountErr := l.clients[0].do(ctx, http.MethodPost, strings.TrimSuffix(podsPath, "pods")+"serviceaccounts", encodings[1], account)
	err = kubeapiserver.Retry(ctx, nil, func() error { return l.createPod(ctx, 0) })
	if err != nil {
		return errors.Join(err, accountErr)
	}
	return l.each(n-1, func(client int) error { return l.createPod(ctx, client) })
}

func (l *load) createPod(ctx context.Context, client int) error {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: made, Name: fmt.Sprintf("p%d", l.names.Add(1)), Labels: map[string]string{"app": "bulk"}},
		Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "c", Image: "example.com/none:1"}}},
	}
	body, err := encodings[0].encode(pod)
	if err != nil {
		return err
	}
	return l.clients[client].do(ctx, http.MethodPost, podsPath, encodings[0], body)
}
