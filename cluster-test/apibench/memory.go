package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/cluster-test/figure"
)

const mebibyte = 1 << 20

// parseSizes reads numbers of objects, each above the one before.
func parseSizes(text string) (sizes []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if n < 0 || len(sizes) > 0 && n <= sizes[len(sizes)-1] {
			return nil, fmt.Errorf("%d does not follow in an ascending order", n)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// fill makes more and more ConfigMaps, and looks at the memory at each of the sizes. The memory of
// an object is the difference to the servers at the first of the sizes.
func fill(ctx context.Context, o options, l *load) (figures []figure.Figure, err error) {
	c := testCase{"create", configMaps, inProtobuf, mostClient}
	var first weight
	for i, size := range o.filled {
		if i > 0 || size > 0 {
			more := size
			if i > 0 {
				more -= o.filled[i-1]
			}
			began := time.Now()
			err := l.each(ctx, more, "ConfigMaps", func(ctx context.Context, client, _ int) error {
				_, err := l.request(ctx, c, client)
				return err
			})
			if err != nil {
				return nil, err
			}
			figures = append(figures,
				figure.One(fmt.Sprintf("ConfigMaps created in a second, up to %d", size), "",
					float64(more)/time.Since(began).Seconds()))
		}
		w, err := l.weigh(ctx, o.rest)
		if err != nil {
			return nil, err
		}
		figures = append(figures, w.figures(fmt.Sprintf("%d ConfigMaps", size))...)
		if i == 0 {
			first = w
			continue
		}
		figures = append(figures, figure.Figure{
			What: fmt.Sprintf("memory of each server for an object, %d ConfigMaps", size), Unit: "bytes",
			Values: perObject(first.anonymous, w.anonymous, size-o.filled[0]),
		})
	}
	return figures, nil
}

// perObject is the difference in bytes, for one of n objects, of the memory of each server in MiB.
func perObject(before, after []float64, n int) (out []float64) {
	for i := range min(len(before), len(after)) {
		out = append(out, (after[i]-before[i])*mebibyte/float64(n))
	}
	return out
}

// weight is the memory of each server, in MiB.
type weight struct {
	anonymous []float64 // RssAnon, upstream's with its etcd
	heap      []float64 // in use by the API server's Go runtime, without etcd; nil when unknown
}

func (w weight) figures(when string) []figure.Figure {
	out := []figure.Figure{{What: "memory of each server (RssAnon), " + when, Unit: "MiB", Values: w.anonymous}}
	if w.heap != nil {
		out = append(out,
			figure.Figure{What: "heap in use of each API server, without etcd, " + when, Unit: "MiB", Values: w.heap})
	}
	return out
}

// weigh leaves the servers alone, and looks at their memory.
func (l *load) weigh(ctx context.Context, rest time.Duration) (w weight, err error) {
	if err := leave(ctx, rest); err != nil {
		return w, err
	}
	if w.anonymous, err = (side{l.Side}).memory(); err != nil {
		return w, err
	}
	for _, e := range l.Servers {
		heap, err := heapOf(ctx, connection{e.Client(), e.URL})
		if errors.Is(err, errNotTold) {
			w.heap = nil
			break
		} else if err != nil {
			return w, err
		}
		w.heap = append(w.heap, heap/mebibyte)
	}
	return w, nil
}

// leave leaves the servers alone.
func leave(ctx context.Context, rest time.Duration) error {
	progress("leaving the servers alone for %v", rest)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rest): // brief: how long the servers rest
		return nil
	}
}

// heapMetric is of the Prometheus client's collector for Go.
const heapMetric = "go_memstats_heap_inuse_bytes"

// errNotTold is returned when a server's metrics lack the heap.
var errNotTold = errors.New("the server's metrics have no " + heapMetric)

// heapOf asks a server for the bytes of its heap that are in use.
func heapOf(ctx context.Context, c connection) (heap float64, err error) {
	res, err := c.send(ctx, http.MethodGet, "/metrics", "text/plain", nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	return parseHeap(res.Body)
}

func parseHeap(metrics io.Reader) (float64, error) {
	lines := bufio.NewReader(metrics)
	heap, found := 0.0, false
	for {
		line, err := lines.ReadString('\n')
		if value, ok := strings.CutPrefix(line, heapMetric+" "); ok {
			var parseErr error
			if heap, parseErr = strconv.ParseFloat(strings.TrimSpace(value), 64); parseErr != nil {
				return 0, parseErr
			}
			found = true
		}
		if errors.Is(err, io.EOF) && !found {
			return 0, errNotTold
		} else if errors.Is(err, io.EOF) {
			return heap, nil
		} else if err != nil {
			return 0, err
		}
	}
}
