// Command schedbench measures the scheduler and the controllers of three servers of Barque beside
// those of upstream: kube-scheduler and kube-controller-manager on three kube-apiservers, each with
// a member of etcd, and on Barque's own API. `make bench-scheduler` runs it, as root; tests never
// do.
//
// One side runs after the other, each case on fresh servers. Nodes are objects that this process
// keeps alive, and it writes their pods' status as kubelets do: see hollow.go. CPU time and memory
// are those of all processes of a side. Upstream's controllers and scheduler may send as many
// requests as they like, as Barque's do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

type options struct {
	bin         string
	only        *regexp.Regexp
	side        *regexp.Regexp
	nodes       int
	pods        int
	deployments int
	jobs        int
	kills       int
	watched     time.Duration
	repeats     int
}

func main() {
	var o options
	only := flag.String("only", "",
		"regular expression that names what is measured: pods, rollout, jobs, takeover, crowd")
	side := flag.String("side", "", "regular expression that names whose: "+strings.Join(everybody, ", "))
	flag.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, upstream's programs")
	flag.IntVar(&o.nodes, "nodes", 1000, "how many hollow nodes there are")
	flag.IntVar(&o.pods, "pods", 5000, "how many pods are bound, or rolled")
	flag.IntVar(&o.deployments, "deployments", 100, "how many Deployments share the pods that are rolled")
	flag.IntVar(&o.jobs, "jobs", 2000, "how many Jobs are run")
	flag.IntVar(&o.kills, "kills", 3, "how often the leader is killed")
	flag.DurationVar(&o.watched, "watched", time.Minute, "how long a full cluster is watched, at rest and at work each")
	flag.IntVar(&o.repeats, "repeats", 1, "how often each case is measured on each side")
	clustertest.Main("schedbench", func(ctx context.Context) error {
		flag.Parse()
		var err, sideErr error
		o.only, err = regexp.Compile(*only)
		o.side, sideErr = regexp.Compile(*side)
		if err := errors.Join(err, sideErr); err != nil {
			return err
		}
		return run(ctx, o)
	})
}

// The sides. mixed is upstream's scheduler and controllers on Barque's API.
const (
	upstream = "upstream"
	mixed    = "upstream on Barque"
	barque   = "Barque"
)

var everybody = []string{upstream, mixed, barque}

// testCase is a measurement.
type testCase struct {
	name    string
	whose   []string
	measure func(context.Context, *bench) ([]figure.Figure, error)
}

// The death of a server says nothing about actors that have none of their own, and a full cluster
// is about the servers.
var cases = []testCase{
	{"pods", everybody, bindPods},
	{"rollout", everybody, rollOut},
	{"jobs", everybody, runJobs},
	{"takeover", []string{upstream, barque}, takeOver},
	{"crowd", []string{upstream, barque}, crowd},
}

func (o options) check() error {
	if min(o.nodes, o.deployments, o.jobs, o.kills, o.repeats) < 1 || o.watched <= 0 {
		return errors.New("-nodes, -deployments, -jobs, -kills, -watched and -repeats must be above 0")
	}
	if o.pods < o.deployments {
		return fmt.Errorf("-pods %d must be at least -deployments, %d", o.pods, o.deployments)
	}
	if free := o.nodes * podsPerNode; o.pods+turnover > free {
		return fmt.Errorf("-pods %d and some more do not fit on the nodes, which take %d", o.pods, free)
	}
	if blockLength(o.nodes) > 30 {
		return fmt.Errorf("-nodes %d are more than the pod network has blocks for", o.nodes)
	}
	return nil
}

// clusterCIDR is the range of pods, that of Barque's dev clusters.
const clusterCIDR = "10.42.0.0/16"

// blockLength is the length of a node's prefix with which all nodes get one from clusterCIDR.
func blockLength(nodes int) int { return max(24, 16+bits.Len(uint(nodes+8))) }

// wanted returns the cases and sides that match, in order.
func (o options) wanted() []testCase {
	var out []testCase
	for _, c := range cases {
		c.whose = slices.DeleteFunc(slices.Clone(c.whose), func(w string) bool { return !o.side.MatchString(w) })
		if o.only.MatchString(c.name) && len(c.whose) > 0 {
			out = append(out, c)
		}
	}
	return out
}

func run(ctx context.Context, o options) error {
	if err := o.check(); err != nil {
		return err
	}
	wanted := o.wanted()
	if len(wanted) == 0 {
		return fmt.Errorf("-only %q and -side %q name nothing", o.only, o.side)
	}
	if slices.ContainsFunc(wanted, func(c testCase) bool { return c.whose[0] != barque }) {
		if err := kubeapiserver.Build(ctx, o.bin, "etcd", "kube-apiserver", "kube-controller-manager",
			"kube-scheduler"); err != nil {
			return err
		}
	}
	fmt.Printf("%d nodes, %d pods, %d Deployments, %d Jobs; load average at the start: %s\n", o.nodes, o.pods,
		o.deployments, o.jobs, sides.LoadAverage())
	for _, c := range wanted {
		of, err := measure(ctx, o, c)
		fmt.Printf("\n%s\n%s", figure.Header(c.whose), figure.Table(c.name, c.whose, of))
		if err != nil {
			return err
		}
	}
	fmt.Printf("\nload average at the end: %s\n", sides.LoadAverage())
	return nil
}

// measure measures a case on its sides in turn. It returns the figures before an error, too.
func measure(ctx context.Context, o options, c testCase) (map[string][]figure.Figure, error) {
	of := map[string][]figure.Figure{}
	for range o.repeats {
		for _, whose := range c.whose {
			progress("%s of %s; load average %s", c.name, whose, sides.LoadAverage())
			err := with(ctx, o, whose, func(b *bench) error {
				figures, err := c.measure(ctx, b)
				of[whose] = figure.Merge(of[whose], figures)
				return err
			})
			if err != nil {
				return of, fmt.Errorf("%s of %s: %w", c.name, whose, err)
			}
		}
	}
	return of, nil
}

// with starts a side with hollow nodes, and takes it down.
func with(ctx context.Context, o options, whose string, measure func(*bench) error) (err error) {
	work, err := os.MkdirTemp("", "barque-schedbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	side, err := start(ctx, o, whose, work)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, side.Stop()) }()
	b, err := newBench(ctx, side, o, scheduler(whose))
	if err != nil {
		return err
	}
	defer b.stop()
	return measure(b)
}

// mixedControllers are those of upstream that work in place of Barque's.
var mixedControllers = []string{"deployment-controller", "replicaset-controller", "job-controller"}

// start starts a side. Both give each node a block of addresses, of the same length.
func start(ctx context.Context, o options, whose, work string) (*sides.Side, error) {
	length := fmt.Sprintf("--node-cidr-mask-size=%d", blockLength(o.nodes))
	theirs := kubeapiserver.Options{Bin: o.bin, Work: work, Controllers: true}
	switch whose {
	case upstream:
		theirs.ControllerArgs = []string{"--allocate-node-cidrs", "--cluster-cidr", clusterCIDR, length}
		return sides.Upstream(ctx, theirs)
	case mixed:
		theirs.ControllerArgs = []string{"--controllers", strings.Join(mixedControllers, ",")}
		return sides.UpstreamOnBarque(ctx, theirs, mixedScheduler, length,
			"--controllers=*,-"+strings.Join(mixedControllers, ",-"))
	default:
		return sides.Barque(ctx, length)
	}
}

// mixedScheduler is the name of upstream's scheduler where Barque's runs, too.
const mixedScheduler = "kube-scheduler"

// scheduler is the one that is measured.
func scheduler(whose string) string {
	if whose == mixed {
		return mixedScheduler
	}
	return corev1.DefaultSchedulerName
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+"  "+format+"\n", args...)
}
