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

func main() { clustertest.Main("chaos", command) }

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
		return fmt.Errorf("%w; repeat with\n  %s", clusterrun.ErrFailed, cfg.repeat)
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
