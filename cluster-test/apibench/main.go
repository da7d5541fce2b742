// Command apibench measures three API servers of Barque beside three of upstream, each with a
// member of etcd, on the same machine and in one run: `make bench-api` runs it, as root; tests
// never do.
//
// Both sides run all the time, and each case is measured on one right after the other, so that
// whatever else the machine does meets both. The clients share the machine with the servers, and do
// little: they decode nothing. What a case costs is the CPU time of all processes of a side, which
// depends less on the neighbours than how fast it is. Barque's servers run their controllers,
// scheduler and kubelet and speak TLS with each other; upstream's run none, and reach etcd in
// clear.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

type options struct {
	bin         string
	only        *regexp.Regexp
	repeats     int
	each        time.Duration
	definitions int
	filled      int
	pods        int
	listed      int
	watched     time.Duration
	profiles    string
}

func main() {
	clustertest.ReapIfAsked()
	watchIfAsked()
	var o options
	only := flag.String("only", "", "regular expression that names what is measured, such as 'definitions', 'memory|collection|pages' or '^list JSON 16$'")
	flag.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, kube-apiserver and etcd")
	flag.IntVar(&o.repeats, "repeats", 3, "how often each case is measured on each side")
	flag.DurationVar(&o.each, "each", 3*time.Second, "how long each case is measured")
	flag.IntVar(&o.definitions, "definitions", 500, "how many CustomResourceDefinitions are made")
	flag.IntVar(&o.filled, "filled", 50_000, "how many ConfigMaps there are when memory is looked at")
	flag.IntVar(&o.pods, "pods", 5000, "how many pods one request deletes")
	flag.IntVar(&o.listed, "listed", 100_000, "how many pods are listed in pages")
	flag.DurationVar(&o.watched, "watched", 30*time.Second, "how long writes are measured, while nobody lists and beside lists each")
	flag.StringVar(&o.profiles, "profiles", "", "directory for a CPU profile of each of Barque's servers under each case; then nothing is compared, and upstream's servers are not started")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.only, err = regexp.Compile(*only); err == nil {
		err = run(ctx, o)
	}
	if reapErr := clustertest.Reap(); err == nil {
		err = reapErr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "apibench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if min(o.repeats, o.definitions, o.filled, o.pods, o.listed) < 1 || min(o.each, o.watched) <= 0 {
		return errors.New("-repeats, -each, -definitions, -filled, -pods, -listed and -watched must be above 0")
	}
	if o.profiles != "" {
		return profile(ctx, o, wanted(o.only))
	}
	if err := kubeapiserver.Build(ctx, o.bin, "kube-apiserver", "etcd"); err != nil {
		return err
	}
	fmt.Printf("load average at the start: %s\n", sides.LoadAverage())
	measured := false
	if cases := wanted(o.only); len(cases) > 0 {
		if err := withSides(ctx, o, func(theirs, ours *sides.Side) error { return requests(ctx, o, cases, theirs, ours) }); err != nil {
			return err
		}
		measured = true
	}
	if o.only.MatchString("definitions") {
		if err := withSides(ctx, o, func(theirs, ours *sides.Side) error { return definitions(ctx, o, theirs, ours) }); err != nil {
			return err
		}
		measured = true
	}
	for _, b := range wantedBulks(o.only) {
		if err := withSides(ctx, o, func(theirs, ours *sides.Side) error { return b.run(ctx, o, theirs, ours) }); err != nil {
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

// withSides starts both sides anew, for what must not see what was measured before.
func withSides(ctx context.Context, o options, measure func(theirs, ours *sides.Side) error) (err error) {
	work, err := os.MkdirTemp("", "barque-apibench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	progress("starting three kube-apiservers over etcd, and three servers of Barque")
	theirs, err := sides.Upstream(ctx, kubeapiserver.Options{Bin: o.bin, Work: work})
	if err != nil {
		return fmt.Errorf("start kube-apiserver: %w", err)
	}
	defer func() { err = errors.Join(err, theirs.Stop()) }()
	ours, err := sides.Barque(ctx)
	if err != nil {
		return fmt.Errorf("start Barque: %w", err)
	}
	defer func() { err = errors.Join(err, ours.Stop()) }()
	return measure(theirs, ours)
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
