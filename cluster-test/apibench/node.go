package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/barque/barque/cluster-test/figure"
)

const (
	// nodeWrites is how many pods a second are written while nodes watch: so few that each side
	// keeps up.
	nodeWrites = 100
	// arrival is how long events may take that have not come when the last write has ended.
	arrival = 10 * time.Second
)

// makeNodePods makes a pod for each node.
func makeNodePods(ctx context.Context, o options, l *load) (figures []figure.Figure, err error) {
	if err := l.makeAccount(ctx); err != nil {
		return nil, err
	}
	l.pods, err = l.createPods(ctx, max(o.nodes, mostClient), nodeName)
	return nil, err
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// writeNodeStatus has a client write the status of one of its nodes' pods.
func (l *load) writeNodeStatus(ctx context.Context, client int) error {
	i := rand.IntN(len(l.pods)/mostClient)*mostClient + client
	return l.clients[client].updateStatus(ctx, l.pods[i], nodeName(i))
}

// watchNodes writes pods of all nodes without any watch, while one client watches all of them, and
// while each node has a watch of its own pod. In both of the latter each write is one event.
func watchNodes(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	none, figures, err := l.watched(ctx, o, "nobody watches", nil)
	if err != nil {
		return nil, err
	}
	one, more, err := l.watched(ctx, o, "one client watches all pods", []string{podsPath + "?watch=true"})
	if err != nil {
		return nil, err
	}
	figures = append(figures, more...)
	var paths []string
	for i := range l.pods {
		paths = append(paths, podsPath+"?watch=true&fieldSelector=spec.nodeName%3D"+nodeName(i))
	}
	what := fmt.Sprintf("%d clients watch a node's pods each", len(paths))
	each, more, err := l.watched(ctx, o, what, paths)
	if err != nil {
		return nil, err
	}
	return append(append(figures, more...),
		figure.Spread("CPU of a write and its event, "+what+", to that of one watch", "", each/one),
		figure.Spread("CPU of a write and its event, "+what+", to that of a write nobody watches", "", each/none)), nil
}

// watched writes while paths are watched, and returns the CPU time of all servers, in ms, for a
// write with its consequences.
func (l *load) watched(
	ctx context.Context, o options, when string, paths []string,
) (each float64, figures []figure.Figure, err error) {
	progress("writing for %v, while %s", o.watched, when)
	var all []*watchers
	if len(paths) > 0 {
		version, err := l.version(ctx, podsPath)
		if err != nil {
			return 0, nil, err
		}
		for i := range paths {
			paths[i] += "&resourceVersion=" + version
		}
		var w *watchers
		opened, err := l.cpu(func() (err error) {
			w, err = l.watch(order{Watches: len(paths), Encoding: inProtobuf.name, Paths: paths})
			return err
		})
		if err != nil {
			return 0, nil, err
		}
		defer w.close()
		all = append(all, w)
		figures = append(figures,
			figure.Spread("CPU time of all servers to open a watch, "+when, "ms",
				opened.Seconds()*1000/float64(len(paths))))
	}
	before, err := l.use(all...)
	if err != nil {
		return 0, nil, err
	}
	w, err := l.paced(ctx, nodeWrites, o.watched, l.writeNodeStatus) // brief: how long is measured
	if err != nil {
		return 0, nil, err
	}
	var n counts
	if len(paths) > 0 {
		if n, err = all[0].await(ctx, int64(w.done()), len(paths)); err != nil {
			return 0, nil, err
		}
	}
	used, err := l.since(before, all...)
	if err != nil {
		return 0, nil, err
	}
	each = used.servers.Seconds() * 1000 / float64(w.done())
	figures = append(figures, w.figures("while "+when)...)
	figures = append(figures,
		figure.Spread("CPU time of all servers for a write, while "+when, "ms", each),
		figure.Spread("CPU time of all clients for a write, while "+when, "ms",
			used.clients.Seconds()*1000/float64(w.done())))
	if len(paths) > 0 {
		figures = append(figures,
			figure.Spread("events of a write, while "+when, "", float64(n.Events)/float64(w.done())),
			figure.Spread("watches that a server ended, while "+when, "", float64(n.Ended)))
	}
	return each, figures, nil
}

// await waits until so many events have come, or all watches have ended, though not for long: the
// number of missing events is a figure.
func (w *watchers) await(ctx context.Context, events int64, watches int) (n counts, err error) {
	until := time.Now().Add(arrival)
	for {
		n, err = w.count()
		if err != nil || n.Events >= events || n.Ended == watches ||
			time.Now().After(until) { // brief: missing events are a figure
			return n, err
		}
		if !sleepUntil(ctx, time.Now().Add(10*time.Millisecond)) {
			return n, context.Cause(ctx)
		}
	}
}
