// Command nodebench measures a node of Barque beside upstream's kubelet and kube-proxy: how fast
// pods start, the CPU time of many that start at once, how much memory the node's process takes,
// and its CPU time while the node is idle. `make bench-node` runs it, as root; tests never do.
//
// Both sides have the same API server and the same machine: a dev cluster of one server and one
// agent, made anew for each case. On Barque's side the pods run on the agent. On upstream's side
// the agent is stopped, and kubelet and kube-proxy run in its network namespace, on the containerd
// with the configuration, images and CNI plugins that the agent has left: see room.go.
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
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
)

type options struct {
	bin     string
	only    *regexp.Regexp
	side    *regexp.Regexp
	atOnce  []int         // pods that are created at once
	rounds  int           // most rounds of each of these numbers
	many    []int         // pods that are created at once while CPU time is read
	scrape  time.Duration // how often the node's metrics are read meanwhile; never when 0
	pods    []int         // pods that run while memory is read
	settle  time.Duration // how long a node is left alone before its memory is read
	watched time.Duration // how long an idle node is watched
	repeats int
}

func main() {
	clustertest.Main("nodebench", func(ctx context.Context) error {
		if err := serveIfAsked(os.Args[1:]); !errors.Is(err, errNotAsked) {
			return err
		}
		o, err := parse(os.Args[1:])
		if err != nil {
			return err
		}
		return run(ctx, o)
	})
}

// The sides.
const (
	upstream = "kubelet"
	barque   = "Barque"
)

var everybody = []string{upstream, barque}

// testCase is a measurement on one dev cluster.
type testCase struct {
	names   []string // names for -only
	measure func(context.Context, *bench) ([]figure.Figure, error)
}

func (c testCase) name() string { return strings.Join(c.names, " and ") }

const (
	start  = "start"
	many   = "many"
	memory = "memory"
	idle   = "idle"
)

// A node that is idle has the pods that memory was read with last.
var cases = []testCase{
	{[]string{start}, startPods},
	{[]string{many}, startMany},
	{[]string{memory, idle}, rest},
}

// mostPods is how many a kubelet runs by default.
const mostPods = 110

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("nodebench", flag.ContinueOnError)
	only := f.String("only", "", "regular expression that names what is measured: start, many, memory, idle")
	side := f.String("side", "", "regular expression that names whose: "+strings.Join(everybody, ", "))
	atOnce := f.String("at-once", "1,10,50", "how many pods are created at once")
	pods := f.String("pods", "0,30,110",
		"how many pods run while memory is read; with the last of them the node is idle")
	at := f.String("many", "10,30,60,110",
		"how many pods are created at once while CPU time is read by the kind of process")
	f.DurationVar(&o.scrape, "scrape", 15*time.Second, "how often the node's metrics are read meanwhile; never when 0")
	f.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, kubelet and kube-proxy")
	f.IntVar(&o.rounds, "rounds", 20, "how many rounds of each number of pods at once there are at most")
	f.DurationVar(&o.settle, "settle", 30*time.Second, "how long a node is left alone before its memory is read")
	f.DurationVar(&o.watched, "watched", time.Minute, "how long an idle node is watched")
	f.IntVar(&o.repeats, "repeats", 1, "how often each case is measured on each side")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var atOnceErr, manyErr, podsErr, sideErr error
	o.atOnce, atOnceErr = ascending("-at-once", *atOnce, 1)
	o.many, manyErr = ascending("-many", *at, 1)
	o.pods, podsErr = ascending("-pods", *pods, 0)
	o.only, err = regexp.Compile(*only)
	o.side, sideErr = regexp.Compile(*side)
	if err := errors.Join(err, sideErr, atOnceErr, manyErr, podsErr); err != nil {
		return o, err
	}
	if min(o.rounds, o.repeats) < 1 || o.settle < 0 || o.scrape < 0 || o.watched <= 0 {
		return o, errors.New("-rounds, -watched and -repeats must be above 0, and -settle and -scrape not below")
	}
	return o, nil
}

// ascending reads numbers of pods.
func ascending(flag, text string, least int) (all []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < least || n > mostPods || len(all) > 0 && n <= all[len(all)-1] {
			return nil, fmt.Errorf("%s %q: want ascending numbers from %d to %d", flag, text, least, mostPods)
		}
		all = append(all, n)
	}
	return all, nil
}

// wants reports whether a name is chosen.
func (o options) wants(name string) bool { return o.only.MatchString(name) }

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("it makes network namespaces and containers: run this as root")
	}
	wanted := slices.DeleteFunc(slices.Clone(cases),
		func(c testCase) bool { return !slices.ContainsFunc(c.names, o.wants) })
	whose := slices.DeleteFunc(slices.Clone(everybody), func(w string) bool { return !o.side.MatchString(w) })
	if len(wanted) == 0 || len(whose) == 0 {
		return fmt.Errorf("-only %q and -side %q name nothing", o.only, o.side)
	}
	if slices.Contains(whose, upstream) {
		if err := kubeapiserver.Build(ctx, o.bin, "kubelet", "kube-proxy"); err != nil {
			return err
		}
	}
	fmt.Printf("load average at the start: %s\n", sides.LoadAverage())
	for _, c := range wanted {
		of, err := measure(ctx, o, c, whose)
		fmt.Printf("\n%s\n%s", figure.Header(whose), figure.Table(c.name(), whose, of))
		if err != nil {
			return err
		}
	}
	fmt.Printf("\nload average at the end: %s\n", sides.LoadAverage())
	return nil
}

// measure measures a case on its sides in turn. It returns the figures before an error, too.
func measure(ctx context.Context, o options, c testCase, whose []string) (map[string][]figure.Figure, error) {
	of := map[string][]figure.Figure{}
	for i := range o.repeats {
		for _, w := range whose {
			name := c.name()
			progress("%s of %s, %d of %d; load average %s", name, w, i+1, o.repeats, sides.LoadAverage())
			err := with(ctx, o, w, func(b *bench) error {
				figures, err := c.measure(ctx, b)
				of[w] = figure.Merge(of[w], figures)
				return err
			})
			if err != nil {
				return of, fmt.Errorf("%s of %s: %w", name, w, err)
			}
		}
	}
	return of, nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+"  "+format+"\n", args...)
}
