// Command schedbench measures the scheduler and the controllers of three servers of Barque beside
// those of upstream: kube-scheduler and kube-controller-manager on three kube-apiservers, each with
// a member of etcd. `make bench-scheduler` runs it, as root; tests never do.
//
// One side runs after the other, each case on fresh servers. Nodes are objects that this process
// keeps alive, and it does to their pods what kubelets do to the API: see hollow.go. CPU time and
// memory are those of all processes of a side. Upstream's controllers and scheduler may send as
// many requests as they like, as Barque's do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

type options struct {
	bin     string
	only    *regexp.Regexp
	side    *regexp.Regexp
	nodes   int
	pods    int
	jobs    int
	repeats int
}

func main() {
	clustertest.ReapIfAsked()
	var o options
	only := flag.String("only", "", "regular expression that names what is measured: pods, rollout, jobs, takeover, crowd")
	side := flag.String("side", "", "regular expression that names whose: upstream, Barque")
	flag.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, upstream's programs")
	flag.IntVar(&o.nodes, "nodes", 1000, "how many hollow nodes there are")
	flag.IntVar(&o.pods, "pods", 5000, "how many pods are bound, or rolled")
	flag.IntVar(&o.jobs, "jobs", 2000, "how many Jobs are run")
	flag.IntVar(&o.repeats, "repeats", 1, "how often each case is measured on each side")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err, sideErr error
	o.only, err = regexp.Compile(*only)
	o.side, sideErr = regexp.Compile(*side)
	if err = errors.Join(err, sideErr); err == nil {
		err = run(ctx, o)
	}
	if err = errors.Join(err, clustertest.Reap()); err != nil {
		fmt.Fprintln(os.Stderr, "schedbench:", err)
		os.Exit(1)
	}
}

// cases are what can be measured. Each returns lines of a table.
var cases = []struct {
	name    string
	measure func(context.Context, *bench) ([]line, error)
}{
	{"pods", bindPods},
	{"rollout", rollOut},
	{"jobs", runJobs},
	{"takeover", takeOver},
	{"crowd", crowd},
}

// line is a figure. Of several measurements, all are shown.
type line struct{ what, figure string }

func run(ctx context.Context, o options) error {
	if o.nodes < 1 || o.pods < deployments || o.jobs < 1 || o.repeats < 1 {
		return fmt.Errorf("-nodes, -jobs and -repeats must be above 0, and -pods at least %d", deployments)
	}
	if o.side.MatchString("upstream") {
		if err := kubeapiserver.Build(ctx, o.bin, "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"); err != nil {
			return err
		}
	}
	fmt.Printf("%d nodes, %d pods, %d Jobs; load average at the start: %s\n\n", o.nodes, o.pods, o.jobs, loadAverage())
	fmt.Println("| case | whose | figure | |\n|---|---|---|---|")
	measured := false
	for _, c := range cases {
		if !o.only.MatchString(c.name) {
			continue
		}
		for range o.repeats {
			for _, whose := range []string{"upstream", "Barque"} {
				if !o.side.MatchString(whose) {
					continue
				}
				measured = true
				progress("%s of %s", c.name, whose)
				err := with(ctx, o, whose, func(b *bench) error {
					lines, err := c.measure(ctx, b)
					for _, l := range lines {
						fmt.Printf("| %s | %s | %s | %s |\n", c.name, whose, l.what, l.figure)
					}
					return err
				})
				if err != nil {
					return fmt.Errorf("%s of %s: %w", c.name, whose, err)
				}
			}
		}
	}
	if !measured {
		return fmt.Errorf("-only %q and -side %q name nothing", o.only, o.side)
	}
	fmt.Printf("\nload average at the end: %s\n", loadAverage())
	return nil
}

// with starts a side with hollow nodes, and takes it down.
func with(ctx context.Context, o options, whose string, measure func(*bench) error) (err error) {
	work, err := os.MkdirTemp("", "barque-schedbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	var side *sides.Side
	if whose == "Barque" {
		side, err = sides.Barque(ctx)
	} else {
		side, err = sides.Upstream(ctx, o.bin, work, true)
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, side.Stop()) }()
	b, err := newBench(ctx, side, o)
	if err != nil {
		return err
	}
	defer b.stop()
	return measure(b)
}

func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(data))[:3], " ")
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+"  "+format+"\n", args...)
}
