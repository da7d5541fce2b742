// Command apibench measures three API servers of Barque beside three of upstream, each with a
// member of etcd, on the same machine and in one run: `make bench-api` runs it, as root; tests
// never do.
//
// Both sides run all the time, and each case is measured on one right after the other, so that
// whatever else the machine does meets both; but with very many objects one side runs after the
// other. Packets cross a bridge on both sides: each server has a network namespace. The clients
// share the machine with the servers, and do little: they decode nothing. The cost of a case is the
// CPU time of all processes of a side, which depends less on the neighbours than its speed.
// Barque's servers run their controllers, scheduler and kubelet and speak TLS with each other;
// upstream's run none, and reach etcd in clear.
//
// Cases of requests and watches have ConfigMaps in protobuf, ConfigMaps in JSON, or custom
// resources of the same size, which are in JSON on both sides. Their definition is made first, and
// only if one of their cases is wanted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

type options struct {
	bin         string
	only        *regexp.Regexp
	repeats     int
	each        time.Duration
	listed      int
	definitions int
	filled      []int
	deleted     int
	pods        int
	rate        int
	nodes       int
	watched     time.Duration
	rest        time.Duration
	alone       bool
	profiles    string
}

func main() {
	watchIfAsked()
	var o options
	only := flag.String("only", "",
		"regular expression that names what is measured, such as '^list JSON 16$', '^first', ' custom ', '^definitions$' or '^(memory|collection|pages|node|audit)$'")
	filled := flag.String("filled", "0,10000,50000,100000",
		"how many ConfigMaps there are when memory looks at it, again and again")
	flag.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, kube-apiserver and etcd")
	flag.IntVar(&o.repeats, "repeats", 5,
		"how often each case is measured on each side; memory and definitions are measured once")
	flag.DurationVar(&o.each, "each", 3*time.Second, "how long a case of requests or watches is measured each time")
	flag.IntVar(&o.listed, "listed", 5000, "how many ConfigMaps, or custom resources, list and first read")
	flag.IntVar(&o.definitions, "definitions", 500, "how many CustomResourceDefinitions are made")
	flag.IntVar(&o.deleted, "deleted", 5000, "how many pods collection deletes by one request")
	flag.IntVar(&o.pods, "pods", 100_000, "how many pods pages lists")
	flag.IntVar(&o.rate, "rate", 500, "how many writes a second pages offers")
	flag.IntVar(&o.nodes, "nodes", 1000, "how many nodes have a watch each in node")
	flag.DurationVar(&o.watched, "watched", 30*time.Second,
		"how long pages and node write, each time and in each circumstance")
	flag.DurationVar(&o.rest, "rest", 90*time.Second,
		"how long servers are left alone before their memory is looked at")
	flag.BoolVar(&o.alone, "alone", false,
		"whether memory, collection, pages and node leave upstream out: with 100,000 pods three of its servers need more than 24 GiB")
	flag.StringVar(&o.profiles, "profiles", "",
		"directory for a CPU profile of each of Barque's servers under each case; then nothing is compared, and upstream's servers are not started")
	clustertest.Main("apibench", func(ctx context.Context) (err error) {
		flag.Parse()
		if o.only, err = regexp.Compile(*only); err != nil {
			return err
		}
		if o.filled, err = parseSizes(*filled); err != nil {
			return fmt.Errorf("-filled %q: %w", *filled, err)
		}
		return run(ctx, o)
	})
}

func run(ctx context.Context, o options) error {
	if min(o.repeats, o.listed, o.definitions, o.deleted, o.pods, o.rate, o.nodes) < 1 ||
		min(o.each, o.watched, o.rest) <= 0 {
		return errors.New(
			"-repeats, -each, -listed, -definitions, -deleted, -pods, -rate, -nodes, -watched and -rest must be above 0")
	}
	if o.profiles != "" {
		return profile(ctx, o, wanted(o.only))
	}
	if needsUpstream(o) {
		if err := kubeapiserver.Build(ctx, o.bin, "kube-apiserver", "etcd"); err != nil {
			return err
		}
	}
	fmt.Printf("load average at the start: %s\n", sides.LoadAverage())
	measured := false
	if cases := wanted(o.only); len(cases) > 0 {
		if err := withSides(ctx, o, nil,
			func(theirs, ours *sides.Side) error { return requests(ctx, o, cases, theirs, ours) }); err != nil {
			return err
		}
		measured = true
	}
	if o.only.MatchString("definitions") {
		if err := withSides(ctx, o, nil,
			func(theirs, ours *sides.Side) error { return definitions(ctx, o, theirs, ours) }); err != nil {
			return err
		}
		measured = true
	}
	for _, b := range wantedBulks(o.only) {
		if err := b.run(ctx, o); err != nil {
			return err
		}
		measured = true
	}
	if !measured {
		return fmt.Errorf("-only %q names nothing", o.only)
	}
	fmt.Printf("load average at the end: %s\n", sides.LoadAverage())
	return nil
}

// needsUpstream reports whether something is measured beside upstream's servers.
func needsUpstream(o options) bool {
	return len(wanted(o.only)) > 0 || o.only.MatchString("definitions") ||
		slices.ContainsFunc(wantedBulks(o.only), func(b bulk) bool { return b.sides == nil })
}

// withSides starts both sides anew, for a measurement that earlier ones must not affect. The
// arguments are those of Barque's servers.
func withSides(ctx context.Context, o options, args []string, measure func(theirs, ours *sides.Side) error) error {
	return withUpstream(ctx, o, func(theirs *sides.Side) error {
		return withBarque(ctx, args, func(ours *sides.Side) error { return measure(theirs, ours) })
	})
}

func withUpstream(ctx context.Context, o options, measure func(*sides.Side) error) (err error) {
	work, err := os.MkdirTemp("", "barque-apibench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	progress("starting three kube-apiservers over etcd")
	s, err := sides.Upstream(ctx, kubeapiserver.Options{Bin: o.bin, Work: work})
	if err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	return measure(s)
}

func withBarque(ctx context.Context, args []string, measure func(*sides.Side) error) (err error) {
	progress("starting three servers of Barque")
	s, err := sides.Barque(ctx, args...)
	if err != nil {
		return fmt.Errorf("start Barque: %w", err)
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	return measure(s)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
