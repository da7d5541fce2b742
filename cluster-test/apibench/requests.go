package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/sides"
)

const (
	// laid is the namespace of the objects that are read and updated, long that of those that are
	// listed, and made that of new ones.
	laid, long, made = "apibench", "apibench-long", "apibench-made"

	objects    = 1000 // in laid
	size       = 1024 // of an object's data, in bytes
	mostClient = 64
)

// A testCase is one line of the table.
type testCase struct {
	operation string
	kind      *kind
	encoding  encoding
	clients   int
}

func (c testCase) String() string {
	form := c.encoding.name
	if c.kind.definition != nil {
		form = "custom" // they have no other encoding
	}
	return fmt.Sprintf("%s %s %d", c.operation, form, c.clients)
}

// lists: the case reads the long list. A case "first" looks at the first byte of the answers.
func (c testCase) lists() bool { return c.operation == "list" || c.operation == "first" }

// wanted returns the cases whose names match.
func wanted(only *regexp.Regexp) []testCase {
	var out []testCase
	for _, operation := range []string{"create", "get", "update", "list", "first", "watch"} {
		numbers := []int{1, 16, mostClient}
		switch operation {
		case "first":
			numbers = numbers[:2]
		case "watch":
			numbers = append(numbers, 200, 2000)
		}
		for _, k := range kinds {
			for _, e := range k.encodings {
				for _, clients := range numbers {
					if c := (testCase{operation, k, e, clients}); only.MatchString(c.String()) {
						out = append(out, c)
					}
				}
			}
		}
	}
	return out
}

// sample is one measurement. For a watch, an event is counted each time that a watcher gets it.
type sample struct {
	perSecond float64
	median    time.Duration // of the answers, or of their first bytes; 0 for a watch
	most      time.Duration // until a first byte
	megabytes float64       // in a second, of lists
	cpu       time.Duration // of the servers, for 1,000 requests or events
	clients   time.Duration // CPU time of the clients, for as many
	writes    float64       // of the servers for one event of a watch: system calls
	failed    int
}

// request sends the request of a case by client i.
func (l *load) request(ctx context.Context, c testCase, i int) (answer, error) {
	client := l.clients[i]
	switch c.operation {
	case "create":
		obj := c.kind.object(made, fmt.Sprintf("n%d", l.names.Add(1)), 0)
		return client.write(ctx, http.MethodPost, c.kind.path(made, ""), c.encoding, obj)
	case "update":
		return l.update(ctx, c, i)
	case "list", "first":
		return client.read(ctx, http.MethodGet, c.kind.path(long, ""), c.encoding, nil)
	default:
		path := c.kind.path(laid, laidName(rand.IntN(objects)))
		return client.read(ctx, http.MethodGet, path, c.encoding, nil)
	}
}

// measure measures a case once.
func (l *load) measure(ctx context.Context, c testCase, each time.Duration) (sample, error) {
	if c.operation == "watch" {
		return l.measureWatch(ctx, c, each)
	}
	took := make([][]time.Duration, c.clients)
	failures := make([]error, c.clients)
	failed := make([]int, c.clients)
	bytes := make([]int64, c.clients)
	before, err := l.use()
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	var all sync.WaitGroup
	for i := range c.clients {
		all.Go(func() {
			for time.Since(began) < each && ctx.Err() == nil {
				at := time.Now()
				a, err := l.request(ctx, c, i)
				if err != nil {
					failures[i] = err
					failed[i]++
					continue
				}
				if bytes[i] += a.bytes; c.operation == "first" {
					took[i] = append(took[i], a.first)
				} else {
					took[i] = append(took[i], time.Since(at))
				}
			}
		})
	}
	all.Wait()
	lasted := time.Since(began)
	used, err := l.since(before)
	if err != nil {
		return sample{}, err
	}
	times := slices.Concat(took...)
	if len(times) == 0 {
		return sample{}, fmt.Errorf("%s on %s: no request succeeded: %w", c, l.Name, errors.Join(failures...))
	}
	slices.Sort(times)
	s := sample{perSecond: float64(len(times)) / lasted.Seconds(), median: times[len(times)/2]}
	s.cpu, s.clients = used.perThousand(len(times))
	for i := range c.clients {
		s.failed += failed[i]
		if c.lists() {
			s.megabytes += float64(bytes[i]) / 1e6 / lasted.Seconds()
		}
	}
	if c.operation == "first" {
		s.most = times[len(times)-1]
	}
	return s, ctx.Err()
}

// caseBound is how long a case may take beside the time for which it is measured.
const caseBound = 2 * time.Minute

// requests measures all cases and prints the table.
func requests(ctx context.Context, o options, cases []testCase, theirs, ours *sides.Side) error {
	var both []*load
	for _, s := range []*sides.Side{theirs, ours} {
		progress("laying objects on %s", s.Name)
		l, err := newLoad(ctx, s)
		if err == nil {
			err = l.layFor(ctx, cases, o)
		}
		if err != nil {
			return fmt.Errorf("laying objects on %s: %w", s.Name, err)
		}
		both = append(both, l)
	}
	fmt.Printf("\n%s\n", header)
	for _, c := range cases {
		var samples [2][]sample
		for n := range o.repeats {
			progress("%s, %d of %d", c, n+1, o.repeats)
			for i, l := range both {
				s, err := l.bounded(ctx, c, o.each)
				if err != nil {
					return err
				}
				samples[i] = append(samples[i], s)
			}
		}
		fmt.Println(row(c.String(), samples[0], samples[1]))
	}
	return nil
}

// bounded measures a case, and gives up when requests get no answers.
func (l *load) bounded(ctx context.Context, c testCase, each time.Duration) (sample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, each+caseBound, fmt.Errorf("%s on %s did not end", c, l.Name))
	defer cancel()
	s, err := l.measure(ctx, c, each) // brief: how long it is measured, not a bound
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return s, err
}
