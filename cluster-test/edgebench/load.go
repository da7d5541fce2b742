package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/barque/barque/cluster-test/sides"
)

// protocol is how clients speak.
type protocol string

const (
	http1 protocol = "HTTP/1.1"
	http2 protocol = "HTTP/2"
)

// load is a number of clients, each with a connection and one request at a time.
type load struct {
	to          string      // address
	host        string      // asked for
	tls         *tls.Config // nil is none
	protocol    protocol
	connections int
	// each is how long requests are sent, and most how many at most.
	each time.Duration
	most int64
	// rate is how many requests a second all clients send; 0 is as many as they can.
	rate int
}

// outcome is what has become of a load.
type outcome struct {
	requests int64
	failed   int64
	first    error // of those that failed
	took     time.Duration
	cpu      time.Duration // of the program that was asked
	waits    []time.Duration
}

// patience is how long a client waits for an answer. Only a hang reaches it.
const patience = time.Minute

// exchanger sends a request and takes the answer.
type exchanger interface {
	exchange() error
	close()
}

// connect makes a connection.
func (l *load) connect(ctx context.Context) (exchanger, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", l.to)
	if err != nil {
		return nil, err
	}
	if l.tls != nil {
		config := l.tls.Clone()
		config.ServerName, config.NextProtos = l.host, []string{"http/1.1"}
		if l.protocol == http2 {
			config.NextProtos = []string{"h2"}
		}
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if got := secure.ConnectionState().NegotiatedProtocol; got != config.NextProtos[0] && l.protocol == http2 {
			return nil, errors.Join(fmt.Errorf("%s speaks %q, not HTTP/2", l.to, got), conn.Close())
		}
		conn = secure
	}
	limit := time.Now().Add(2*l.each + patience)
	if err := conn.SetDeadline(limit); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if l.protocol == http2 {
		return newFrames(conn, l.host)
	}
	return newMessages(conn, l.host), nil
}

// connectAll makes all connections, some at a time, and sends a request on each: what is made at
// the first one is not measured. The caller closes them also when there is an error.
func (l *load) connectAll(ctx context.Context) (all []exchanger, err error) {
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(16)
	for range l.connections {
		g.Go(func() error {
			c, err := l.connect(ctx)
			if err != nil {
				return fmt.Errorf("connect to %s: %w", l.to, err)
			}
			mu.Lock()
			all = append(all, c)
			mu.Unlock()
			if err := c.exchange(); err != nil {
				return fmt.Errorf("the first request to %s: %w", l.to, err)
			}
			return nil
		})
	}
	err = g.Wait()
	return all, err
}

// run measures. use returns the use of the program that is asked; nil measures none.
func (l *load) run(ctx context.Context, use func() (sides.Usage, error)) (o outcome, err error) {
	all, err := l.connectAll(ctx)
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	if err != nil {
		return o, err
	}
	if use == nil {
		use = func() (sides.Usage, error) { return sides.Usage{}, nil }
	}
	before, err := use()
	if err != nil {
		return o, err
	}
	results := make([]outcome, len(all))
	var running sync.WaitGroup
	began := time.Now()
	for i, c := range all {
		running.Go(func() { results[i] = l.client(ctx, i, c, began) })
	}
	running.Wait()
	o.took = time.Since(began)
	after, err := use()
	if err != nil {
		return o, err
	}
	o.cpu = after.CPU - before.CPU
	for _, r := range results {
		o.requests += r.requests
		o.failed += r.failed
		o.waits = append(o.waits, r.waits...)
		if o.first == nil {
			o.first = r.first
		}
	}
	slices.Sort(o.waits)
	return o, ctx.Err()
}

// client sends the requests of one connection. A failed one ends it: what follows would be another
// measurement.
func (l *load) client(ctx context.Context, i int, c exchanger, began time.Time) (o outcome) {
	var interval time.Duration
	next := began
	if l.rate > 0 {
		interval = time.Duration(l.connections) * time.Second / time.Duration(l.rate)
		// They do not send in step.
		next = began.Add(time.Duration((float64(i) + rand.Float64()) / float64(l.connections) * float64(interval)))
	}
	most := l.most / int64(l.connections)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for end := began.Add(l.each); o.requests < most; next = next.Add(interval) {
		sent := time.Now()
		if l.rate > 0 {
			if wait := next.Sub(sent); wait > 0 {
				timer.Reset(wait)
				select {
				case <-timer.C:
				case <-ctx.Done():
					return o
				}
				sent = time.Now() // that the timer is late is not the proxy's doing
			} else {
				sent = next // the answer before was late
			}
		}
		if !sent.Before(end) || ctx.Err() != nil {
			return o
		}
		o.requests++
		if err := c.exchange(); err != nil {
			o.failed++
			o.first = err
			return o
		}
		o.waits = append(o.waits, time.Since(sent))
	}
	return o
}

// percentile returns the least of sorted durations that so many of a hundred do not exceed.
func percentile(sorted []time.Duration, of int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*of+99)/100-1]
}
