package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/barque/barque/cluster-test/figure"
)

// deleteTwice makes pods and deletes all of them by one request, twice, and looks at the memory
// before and after.
func deleteTwice(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	if err := l.makeAccount(ctx); err != nil {
		return nil, err
	}
	before, err := l.weigh(ctx, o.rest)
	if err != nil {
		return nil, err
	}
	for range 2 {
		if _, err := deleteOnce(ctx, o, l); err != nil {
			return nil, err
		}
	}
	after, err := l.weigh(ctx, o.rest)
	return append(before.figures("before"),
		after.figures(fmt.Sprintf("%d pods were made and deleted", 2*o.deleted))...), err
}

// deleteOnce makes pods, and measures the request that deletes them.
func deleteOnce(ctx context.Context, o options, l *load) ([]figure.Figure, error) {
	if _, err := l.createPods(ctx, o.deleted, func(int) string { return "" }); err != nil {
		return nil, err
	}
	var took time.Duration
	cpu, err := l.cpu(func() error {
		began := time.Now()
		defer func() { took = time.Since(began) }()
		return l.clients[0].do(ctx, http.MethodDelete, podsPath, inProtobuf, nil)
	})
	progress("deleted in %v", took)
	return []figure.Figure{
		figure.Spread(fmt.Sprintf("deletecollection of %d pods", o.deleted), "s", took.Seconds()),
		figure.Spread("CPU time of all servers for it", "s", cpu.Seconds()),
	}, err
}
