package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/schedule"
)

func main() {
	clustertest.ReapIfAsked()
	quiet()
	// Also when a second signal ends it at once, the cluster is removed.
	schedule.Main("addresschaos", func(ctx context.Context) error {
		return errors.Join(command(ctx), clustertest.Reap())
	})
}

// quiet silences the clients' library, which logs broken connections: the faults break them on
// purpose.
func quiet() { klog.SetLogger(logr.Discard()) }

var errFailed = errors.New("the cluster, or the harness, is at fault")

func command(ctx context.Context) error {
	flags := schedule.NewFlags(flag.CommandLine, 10*time.Minute)
	flag.Parse()
	plan, err := schedule.Choose(flags, allFaults(), os.Stdout)
	if plan == nil {
		return err
	}
	cfg := config{Schedule: plan.Schedule, out: os.Stdout, strict: true}
	repeat := plan.Repeat("chaos-addresses")
	plan.Announce(os.Stdout, repeat)
	r, err := execute(ctx, cfg)
	if r == nil {
		return err
	}
	r.report(os.Stdout)
	if r.Failed() {
		return fmt.Errorf("%w; repeat with\n  %s", errors.Join(errFailed, err), repeat)
	}
	return err
}

// config of a run.
type config struct {
	schedule.Schedule[fault]
	out io.Writer // progress; nil is none
	// strict makes a longer time without an answer than stated a failure. A test does not: it runs
	// beside others.
	strict bool
}
