// Command edgebench measures Barque's gateway beside nginx, HAProxy and Caddy, on the same machine
// and in one run: `make bench-edge` runs it, as root; tests never do.
//
// Barque's gateway is the product's: that of an agent in a dev cluster of one server and one agent,
// with routes that are made by the API. Its CPU time and its memory are those of the agent's whole
// process. The others run in the network namespace of that agent, one at a time, with the cluster
// beside them. All have the same certificate and the same backend, which is a process of its own
// there. The clients are in this process, outside of that namespace.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/program"
	"github.com/barque/barque/cluster-test/sides"
)

type options struct {
	bin         string
	only        *regexp.Regexp
	side        *regexp.Regexp
	repeats     int
	each        time.Duration
	rate        int
	connections []int
	sizes       []int
	changes     int
}

// mostRequests bounds a measurement beside its time.
const mostRequests = 5_000_000

func main() {
	clustertest.Main("edgebench", func(ctx context.Context) error {
		if err := serveIfAsked(ctx, os.Args[1:]); !errors.Is(err, errNotAsked) {
			return err
		}
		o, err := parse(os.Args[1:])
		if err != nil {
			return err
		}
		return run(ctx, o)
	})
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("edgebench", flag.ContinueOnError)
	only := f.String("only", "", "regular expression that names cases, such as 'HTTP/1.1, 64' or 'routes'")
	side := f.String("side", "", "regular expression that names proxies: nginx, HAProxy, Caddy, Barque")
	connections := f.String("connections", "1,64,512", "numbers of connections")
	sizes := f.String("routes", "10,1000,10000", "numbers of routes, in ascending order")
	f.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, Caddy")
	f.IntVar(&o.repeats, "repeats", 3, "how often each case is measured")
	f.DurationVar(&o.each, "each", 5*time.Second, "how long requests are sent, twice in each case")
	f.IntVar(&o.rate, "rate", 1000, "how many requests a second are sent where the time of answers is measured")
	f.IntVar(&o.changes, "changes", 6, "how many routes are added, one at a time, at each number of routes")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, one := range []struct {
		text string
		to   **regexp.Regexp
	}{{*only, &o.only}, {*side, &o.side}} {
		if *one.to, err = regexp.Compile(one.text); err != nil {
			return o, err
		}
	}
	if o.connections, err = numbers(*connections); err != nil {
		return o, fmt.Errorf("-connections: %w", err)
	}
	if o.sizes, err = numbers(*sizes); err != nil {
		return o, fmt.Errorf("-routes: %w", err)
	}
	if o.repeats < 1 || o.each <= 0 || o.rate < 1 || o.changes < 1 {
		return o, errors.New("-repeats, -each, -rate and -changes must be above 0")
	}
	return o, nil
}

// numbers reads ascending numbers.
func numbers(text string) (all []int, err error) {
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil {
			return nil, err
		}
		if n < 1 || len(all) > 0 && n <= all[len(all)-1] {
			return nil, fmt.Errorf("want ascending numbers above 0, got %q", text)
		}
		all = append(all, n)
	}
	return all, nil
}

// side is a proxy that serves.
type side struct {
	name    string
	address string
	use     func() (sides.Usage, error)
	// add makes the route with a number beside those before it, and returns how long it took until
	// it worked.
	add func(ctx context.Context, n int) (time.Duration, error)
}

// bench is a run.
type bench struct {
	options
	site   *site
	barque *barque
	order  []string                              // of cases
	of     map[string]map[string][]figure.Figure // by case and side
	direct map[string][]float64                  // p99 without a proxy, in ms, by case
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it makes a cluster: run this as root")
	}
	fmt.Printf("load average at the start: %s\n", sides.LoadAverage())
	programs := map[*peer]installed{}
	for _, p := range peers {
		if !o.side.MatchString(p.name) {
			continue
		}
		if programs[p], err = p.prepare(ctx, o); err != nil {
			fmt.Printf("\n%s was not measured: %v\n", p.name, err)
			delete(programs, p)
		}
	}
	b := &bench{options: o, of: map[string]map[string][]figure.Figure{}, direct: map[string][]float64{}}
	if b.site, err = newSite(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.site.close()) }()
	if b.barque, err = newBarque(ctx, b.site); err != nil {
		return err
	}
	for i, size := range b.sizes {
		if err := b.barque.grow(ctx, size); err != nil {
			return fmt.Errorf("with %d routes, Barque: %w", size, err)
		}
		for range b.repeats {
			for _, p := range peers {
				in, ok := programs[p]
				if !ok {
					continue
				}
				if err := b.peer(ctx, p, in, size, i == 0); err != nil {
					return fmt.Errorf("%s with %d routes: %w", p.name, size, err)
				}
			}
			if b.side.MatchString("Barque") {
				if err := b.own(ctx, size, i == 0); err != nil {
					return fmt.Errorf("with %d routes, Barque: %w", size, err)
				}
			}
		}
	}
	b.print()
	fmt.Printf("load average at the end: %s\n", sides.LoadAverage())
	return nil
}

// peer measures a proxy of other authors.
func (b *bench) peer(ctx context.Context, p *peer, in installed, size int, first bool) (err error) {
	all := hosts(size)
	if err := p.configure(b.site, p, all); err != nil {
		return err
	}
	running, err := b.site.start(p.name, p.command(b.site, in))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, running.Stop()) }()
	at := b.site.at(p.port)
	err = running.Await(ctx, func() error {
		c, err := (&load{to: at, host: hostOf(0), tls: b.site.tls(), protocol: http1}).connect(ctx)
		if err == nil {
			err = c.exchange()
			c.close()
		}
		return err
	})
	if err != nil {
		return err
	}
	return b.measure(ctx, side{p.name, at, running.Use, b.adder(p, running, all)}, size, first)
}

// adder adds a route to the configuration, and lets the proxy read it again.
func (b *bench) adder(
	p *peer, running *program.Program, all []string,
) func(context.Context, int) (time.Duration, error) {
	return func(ctx context.Context, n int) (time.Duration, error) {
		all = append(all, hostOf(n))
		if err := p.configure(b.site, p, all); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := p.reload(ctx, b.site, running); err != nil {
			return 0, err
		}
		_, err := b.site.works(ctx, b.site.at(p.port), hostOf(n))
		return time.Since(began), err
	}
}

// own measures Barque.
func (b *bench) own(ctx context.Context, size int, first bool) error {
	add := func(ctx context.Context, _ int) (time.Duration, error) {
		n := b.barque.made // it keeps the routes of earlier repeats
		b.barque.made++
		if err := b.barque.create(ctx, n); err != nil {
			return 0, err
		}
		return b.site.works(ctx, b.site.at(barquePort), hostOf(n))
	}
	return b.measure(ctx, side{"Barque", b.site.at(barquePort), b.site.use, add}, size, first)
}

// measure measures all cases of a proxy: requests with the first number of routes, and new routes
// with each.
func (b *bench) measure(ctx context.Context, s side, size int, first bool) error {
	if first {
		for _, speaks := range []protocol{http1, http2} {
			for _, n := range b.connections {
				name := fmt.Sprintf("%s, %d connections", speaks, n)
				if !b.only.MatchString(name) {
					continue
				}
				progress("%s: %s", s.name, name)
				if err := b.requests(ctx, s, name, speaks, n); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	name := fmt.Sprintf("%d routes", size)
	if !b.only.MatchString(name) {
		return nil
	}
	progress("%s: %s", s.name, name)
	// The memory of a proxy that has served, and not that of reloads.
	l := load{to: s.address, host: hostOf(0), tls: b.site.tls(), protocol: http1, connections: 64, each: b.each,
		most: mostRequests}
	o, err := b.closed(ctx, s, l, name)
	if err != nil {
		return err
	}
	use, err := s.use()
	if err != nil {
		return err
	}
	var waits []time.Duration
	for i := range b.changes {
		took, err := s.add(ctx, size+i)
		if err != nil {
			return err
		}
		waits = append(waits, took)
		select { // it rests between changes
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	slices.Sort(waits)
	b.note(name, s.name,
		figure.Spread("until a new route works, median", "ms", ms(waits[len(waits)/2])),
		figure.Spread("the same, longest", "ms", ms(waits[len(waits)-1])),
		figure.Spread("memory", "MiB", use.Anonymous),
		figure.Spread("64 connections, requests for a CPU second", "", perCPU(o)))
	return nil
}

// requests measures a proxy under a load: as many requests as it can, and then so many a second.
func (b *bench) requests(ctx context.Context, s side, name string, speaks protocol, connections int) error {
	l := load{to: s.address, host: hostOf(0), tls: b.site.tls(), protocol: speaks, connections: connections,
		each: b.each, most: mostRequests}
	o, err := b.closed(ctx, s, l, name)
	if err != nil {
		return err
	}
	straight := load{to: b.site.backend, host: hostOf(0), protocol: http1, connections: connections, each: b.each,
		most: mostRequests, rate: b.rate}
	without, err := straight.run(ctx, nil)
	if err != nil {
		return fmt.Errorf("the backend itself: %w", err)
	}
	l.rate = b.rate
	paced, err := l.run(ctx, s.use)
	if err != nil {
		return err
	}
	direct := ms(percentile(without.waits, 99))
	b.direct[name] = append(b.direct[name], direct)
	if paced.first != nil {
		fmt.Printf("%s, %s: the first failure: %v\n", s.name, name, paced.first)
	}
	b.note(name, s.name,
		figure.Spread("requests for a CPU second", "", perCPU(o)),
		figure.Spread("requests a second", "", float64(o.requests)/o.took.Seconds()),
		figure.Spread(fmt.Sprintf("added p99 at %d a second", b.rate), "ms", ms(percentile(paced.waits, 99))-direct),
		figure.Spread("failed", "", float64(o.failed+paced.failed)))
	return nil
}

// closed sends as many requests as the proxy answers.
func (b *bench) closed(ctx context.Context, s side, l load, name string) (outcome, error) {
	o, err := l.run(ctx, s.use)
	if err == nil && o.first != nil {
		fmt.Printf("%s, %s: the first failure: %v\n", s.name, name, o.first)
	}
	return o, err
}

// perCPU is how many requests a proxy answers in a second of CPU time.
func perCPU(o outcome) float64 {
	if o.cpu <= 0 {
		return 0
	}
	return float64(o.requests) / o.cpu.Seconds()
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func (b *bench) note(name, side string, figures ...figure.Figure) {
	if b.of[name] == nil {
		b.of[name] = map[string][]figure.Figure{}
		b.order = append(b.order, name)
	}
	b.of[name][side] = figure.Merge(b.of[name][side], figures)
}

// print prints the table.
func (b *bench) print() {
	whose := []string{"nginx", "HAProxy", "Caddy", "Barque"}
	fmt.Printf("\n%s\n", figure.Header(whose))
	for _, name := range b.order {
		fmt.Print(figure.Table(name, whose, b.of[name]))
	}
	fmt.Printf("\np99 of the backend itself at %d a second, in ms: ", b.rate)
	for i, name := range slices.DeleteFunc(slices.Clone(b.order), func(n string) bool { return b.direct[n] == nil }) {
		if i > 0 {
			fmt.Print("; ")
		}
		fmt.Printf("%s: %.2f", name, figure.Median(b.direct[name]))
	}
	fmt.Println()
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
