package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/sides"
)

// startMany measures the CPU time that pods take which are all created at once, by the kind of
// process, from the creation until all are Running. It has to grow in line with the number of pods.
// Meanwhile the node's metrics are read, as Prometheus and the metrics of autoscaling do.
func startMany(ctx context.Context, b *bench) (figures []figure.Figure, err error) {
	if err := pause(ctx, b.settle); err != nil {
		return nil, err
	}
	if _, err := b.round(ctx, 1); err != nil {
		return nil, fmt.Errorf("the first pod: %w", err)
	}
	for _, n := range b.many {
		before, err := b.spending()
		if err != nil {
			return figures, err
		}
		took, err := b.createScraped(ctx, n)
		if err != nil {
			return figures, fmt.Errorf("%d at once: %w", n, err)
		}
		after, err := b.spending()
		if err != nil {
			return figures, err
		}
		of := after.since(before)
		more := of.figures(n, slices.Max(took))
		progress("%d at once: all Running after %s s, CPU time %.1f s, load average %s", n, more[0], of.sum().Seconds(),
			sides.LoadAverage())
		figures = append(figures, more...)
		if err := b.clear(ctx); err != nil {
			return figures, err
		}
		if err := pause(ctx, b.settle); err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// createScraped creates pods while the node's metrics are read from time to time. An answer that
// does not come in time is one that no scraper would have either.
func (b *bench) createScraped(ctx context.Context, n int) ([]time.Duration, error) {
	scraping, stop := context.WithCancel(ctx)
	var scrapes sync.WaitGroup
	if b.scrape > 0 {
		scrapes.Go(func() { // ends with scraping
			for pause(scraping, b.scrape) == nil {
				for _, path := range []string{"metrics/cadvisor", "metrics/resource"} {
					b.read(scraping, path)
				}
			}
		})
	}
	took, err := b.create(ctx, n)
	stop()
	scrapes.Wait()
	return took, err
}

// scrapePatience is as long as Prometheus waits by default.
const scrapePatience = 10 * time.Second

// read reads an answer of the node, through the API server.
func (b *bench) read(ctx context.Context, path string) {
	ctx, cancel := context.WithTimeout(ctx, scrapePatience)
	defer cancel()
	_, err := b.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", b.node, "proxy", path).DoRaw(ctx)
	if err != nil && ctx.Err() == nil {
		progress("%s: %v", path, err)
	}
}

// The kinds of processes among which CPU time is shared out, in the order of the tables.
const (
	ofNode       = "the node's process"
	ofServer     = "the server"
	ofContainerd = "containerd"
	ofPlugins    = "starts of shims, and CNI plugins"
	ofShims      = "shims"
	ofRunc       = "runc, and the containers"
)

var kinds = []string{ofNode, ofServer, ofContainerd, ofPlugins, ofShims, ofRunc}

// spending is the CPU time of each kind so far. Shims that have ended are not in it.
type spending map[string]time.Duration

func (b *bench) spending() (spending, error) {
	of, err := b.processes()
	if err != nil {
		return nil, err
	}
	s := spending{}
	add := func(pids []int, own, children string) error {
		for _, pid := range pids {
			used, err := sides.Process(pid)
			if err != nil {
				return err
			}
			s[own] += used.CPU
			s[children] += used.Children
		}
		return nil
	}
	whole := of[withProxy]
	if whole == nil {
		whole = of[nodeItself]
	}
	for _, part := range []struct {
		pids          []int
		own, children string
	}{
		{whole, ofNode, ofNode}, {[]int{b.server}, ofServer, ofServer}, {of[containerd], ofContainerd, ofPlugins},
		{of[allShims], ofShims, ofRunc},
	} {
		if err := add(part.pids, part.own, part.children); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s spending) since(before spending) spending {
	of := spending{}
	for _, kind := range kinds {
		of[kind] = s[kind] - before[kind]
	}
	return of
}

func (s spending) sum() (total time.Duration) {
	for _, d := range s {
		total += d
	}
	return total
}

func (s spending) figures(n int, took time.Duration) []figure.Figure {
	name := fmt.Sprintf("%d at once: ", n)
	out := []figure.Figure{figure.One(name+"until all are Running", "s", took.Seconds())}
	for _, kind := range kinds {
		out = append(out, figure.One(name+"CPU time of "+kind, "s", s[kind].Seconds()))
	}
	return append(out,
		figure.One(name+"CPU time in all", "s", s.sum().Seconds()),
		figure.One(name+"CPU time in all, for a pod", "ms", s.sum().Seconds()*1000/float64(n)))
}
