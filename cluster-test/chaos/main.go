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
	schedule.Main("chaos", func(ctx context.Context) error { return errors.Join(command(ctx), clustertest.Reap()) })
}

// quiet silences the clients' library, which logs broken connections: the faults break them
// on purpose.
func quiet() {
	klog.SetLogger(logr.Discard())
}

var errFailed = errors.New("the cluster, or the harness, is at fault")

func command(ctx context.Context) error {
	flags := schedule.NewFlags(flag.CommandLine, 10*time.Minute)
	page := flag.String("page", "chaos.html", "the file for the time line")
	flag.Parse()
	plan, err := schedule.Choose(flags, allFaults(), os.Stdout)
	if plan == nil {
		return err
	}
	cfg := config{Schedule: plan.Schedule, out: os.Stdout, page: *page, repeat: plan.Repeat("chaos")}
	plan.Announce(os.Stdout, cfg.repeat)
	r, err := execute(ctx, cfg)
	if r == nil {
		return err
	}
	if err := errors.Join(err, r.report(os.Stdout)); err != nil {
		return err
	}
	if r.Failed() {
		return fmt.Errorf("%w; repeat with\n  %s", errFailed, cfg.repeat)
	}
	return nil
}

// config of a run.
type config struct {
	schedule.Schedule[fault]
	out    io.Writer // progress; nil is none
	page   string    // file; empty: none
	repeat string    // the command that makes it again
}
