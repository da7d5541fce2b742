package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/faultrun/clusterrun"
	"github.com/barque/barque/cluster-test/schedule"
)

func main() { clustertest.Main("addresschaos", command) }

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
		return fmt.Errorf("%w; repeat with\n  %s", errors.Join(clusterrun.ErrFailed, err), repeat)
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
