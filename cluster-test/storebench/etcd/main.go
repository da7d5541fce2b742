// Command etcdload puts loads on etcd in the shape of those that storebench puts on Barque's store,
// and prints the results as JSON. It is a module of its own so that Barque does not depend on etcd.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// maxConnections is how many connections the clients share, as in etcd's own benchmark tool.
const maxConnections = 100

type config struct {
	kind      string
	endpoints []string
	clients   int
	bytes     int
	prefix    string
	keys      int
	length    time.Duration
	timeout   time.Duration
	every     time.Duration
}

// report is the output.
type report struct {
	Ops, Errors int
	Error       string
	Elapsed     time.Duration
	P50, P99    time.Duration
	LongestGap  time.Duration
	Leader      string
}

func main() {
	var c config
	var endpoints string
	flag.StringVar(&c.kind, "kind", "put", "put, read, stale-read, list, watch, fill or leader")
	flag.StringVar(&endpoints, "endpoints", "", "URLs, separated by commas")
	flag.IntVar(&c.clients, "clients", 1, "clients, each with one request at a time")
	flag.IntVar(&c.bytes, "bytes", 256, "bytes of a value")
	flag.StringVar(&c.prefix, "prefix", "/bench/", "prefix of the keys")
	flag.IntVar(&c.keys, "keys", 10_000, "how many keys there are")
	flag.DurationVar(&c.length, "for", 5*time.Second, "how long it lasts")
	flag.DurationVar(&c.timeout, "timeout", 10*time.Second, "of one request")
	flag.DurationVar(&c.every, "every", 10*time.Millisecond, "time between two puts for watchers")
	flag.Parse()
	c.endpoints = strings.Split(endpoints, ",")
	r, err := c.run(context.Background())
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcdload:", err)
		os.Exit(1)
	}
}

func (c *config) run(ctx context.Context) (report, error) {
	connections, err := c.connect()
	if err != nil {
		return report{}, err
	}
	switch c.kind {
	case "leader":
		return c.leader(ctx, connections)
	case "fill":
		return c.fill(ctx, connections)
	case "watch":
		return c.watch(ctx, connections)
	}
	return c.load(ctx, connections)
}

// connect opens connections to one endpoint each, all endpoints in turn.
func (c *config) connect() ([]*clientv3.Client, error) {
	var all []*clientv3.Client
	for i := range max(min(c.clients, maxConnections), len(c.endpoints)) {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{c.endpoints[i%len(c.endpoints)]}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return nil, err
		}
		all = append(all, client)
	}
	return all, nil
}

// leader waits until a member knows its leader, and returns the URL of that one.
func (c *config) leader(ctx context.Context, clients []*clientv3.Client) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		for i, client := range clients {
			asking, cancel := context.WithTimeout(ctx, time.Second)
			s, err := client.Status(asking, c.endpoints[i%len(c.endpoints)])
			cancel()
			if err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId {
				return report{Leader: c.endpoints[i%len(c.endpoints)]}, nil
			}
		}
		<-time.After(50 * time.Millisecond)
	}
	return report{}, errors.New("nobody leads")
}

func (c *config) key(i int) string { return fmt.Sprintf("%s%08d", c.prefix, i) }

func (c *config) fill(ctx context.Context, clients []*clientv3.Client) (report, error) {
	value := make([]byte, c.bytes)
	rand.Read(value)
	var next atomic.Int64
	errs := make([]error, len(clients))
	var writing sync.WaitGroup
	for i, client := range clients {
		writing.Go(func() {
			for k := next.Add(1) - 1; k < int64(c.keys) && errs[i] == nil; k = next.Add(1) - 1 {
				_, errs[i] = client.Put(ctx, c.key(int(k)), string(value))
			}
		})
	}
	writing.Wait()
	return report{Ops: c.keys}, errors.Join(errs...)
}

// load runs the clients. A failed request is counted, and no latency of it.
func (c *config) load(ctx context.Context, connections []*clientv3.Client) (report, error) {
	do, err := c.request()
	if err != nil {
		return report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.length)
	defer cancel()
	took, failed, errs := make([][]time.Duration, c.clients), make([]int, c.clients), make([]error, c.clients)
	var last, gap atomic.Int64
	began := time.Now()
	success := func() {
		now := int64(time.Since(began))
		if silent := now - last.Swap(now); silent > gap.Load() {
			gap.Store(silent)
		}
	}
	var running sync.WaitGroup
	for i := range c.clients {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				start := time.Now()
				trying, cancel := context.WithTimeout(ctx, c.timeout)
				// After a failure another endpoint is tried.
				err := do(trying, connections[(i+failed[i])%len(connections)])
				cancel()
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					failed[i]++
					errs[i] = err
					continue
				}
				took[i] = append(took[i], time.Since(start))
				success()
			}
		})
	}
	running.Wait()
	success()
	return summary(took, failed, errs, time.Since(began), time.Duration(gap.Load())), nil
}

func summary(took [][]time.Duration, failed []int, errs []error, elapsed, gap time.Duration) report {
	all := slices.Concat(took...)
	slices.Sort(all)
	r := report{Ops: len(all), Elapsed: elapsed, LongestGap: gap}
	if len(all) > 0 {
		r.P50, r.P99 = all[len(all)/2], all[len(all)*99/100]
	}
	for i, n := range failed {
		if r.Errors += n; errs[i] != nil {
			r.Error = errs[i].Error()
		}
	}
	return r
}

// settle is how long watchers get to subscribe, and to hear the last events.
const settle = time.Second

// watch has as many watchers as clients, and one client that puts through the first endpoint, at a
// steady rate.
func (c *config) watch(ctx context.Context, connections []*clientv3.Client) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, settle+c.length+settle)
	defer cancel()
	took := make([][]time.Duration, c.clients)
	var watching sync.WaitGroup
	for i := range took {
		events := connections[i%len(connections)].Watch(ctx, c.prefix, clientv3.WithPrefix())
		watching.Go(func() {
			for r := range events {
				now := time.Now().UnixNano()
				for _, e := range r.Events {
					took[i] = append(took[i], time.Duration(now-int64(binary.LittleEndian.Uint64(e.Kv.Value))))
				}
			}
		})
	}
	<-time.After(settle)
	putting, stop := context.WithTimeout(ctx, c.length)
	defer stop()
	err := c.stamp(putting, connections[0])
	watching.Wait()
	return summary(took, nil, nil, c.length, 0), err
}

// stamp puts values that begin with the time of the call.
func (c *config) stamp(ctx context.Context, client *clientv3.Client) error {
	ticker := time.NewTicker(c.every)
	defer ticker.Stop()
	value := make([]byte, max(c.bytes, 8))
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		binary.LittleEndian.PutUint64(value, uint64(time.Now().UnixNano()))
		if _, err := client.Put(ctx, c.key(mrand.IntN(c.keys)), string(value)); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// request returns the request that one client repeats.
func (c *config) request() (func(context.Context, *clientv3.Client) error, error) {
	value := make([]byte, c.bytes)
	rand.Read(value)
	text := string(value)
	get := func(ctx context.Context, client *clientv3.Client, want int64, key string, opts ...clientv3.OpOption) error {
		r, err := client.Get(ctx, key, opts...)
		if err == nil && r.Count != want {
			err = fmt.Errorf("%d keys instead of %d", r.Count, want)
		}
		return err
	}
	switch c.kind {
	case "put":
		return func(ctx context.Context, client *clientv3.Client) error {
			_, err := client.Put(ctx, c.key(mrand.IntN(c.keys)), text)
			return err
		}, nil
	case "read":
		return func(ctx context.Context, client *clientv3.Client) error {
			return get(ctx, client, 1, c.key(mrand.IntN(c.keys)))
		}, nil
	case "stale-read":
		return func(ctx context.Context, client *clientv3.Client) error {
			return get(ctx, client, 1, c.key(mrand.IntN(c.keys)), clientv3.WithSerializable())
		}, nil
	case "list":
		return func(ctx context.Context, client *clientv3.Client) error {
			return get(ctx, client, int64(c.keys), c.prefix, clientv3.WithPrefix())
		}, nil
	}
	return nil, fmt.Errorf("there is no load %q", c.kind)
}
