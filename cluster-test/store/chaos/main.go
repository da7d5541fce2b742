package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/store/member"
)

func main() {
	member.ServeIfMember()
	schedule.Main("chaos-store", command)
}

var errFailed = errors.New("the store, or the harness, is at fault")

func command(ctx context.Context) error {
	flags := schedule.NewFlags(flag.CommandLine, 5*time.Minute)
	logStore := flag.String("log-store", "", "boltdb or wal; empty draws one from the seed")
	dir := flag.String("dir", "", "where the members' directories are made; empty: the directory for temporary files")
	page := flag.String("page", "", "write the report as a page of HTML to this file, too")
	flag.Parse()
	plan, err := schedule.Choose(flags, allFaults(), os.Stdout)
	if plan == nil {
		return err
	}
	cfg := config{Schedule: plan.Schedule, dir: *dir, out: os.Stdout, options: options(plan.Seed, *logStore)}
	repeat := plan.Repeat("chaos-store", "LOGSTORE="+cfg.options.LogStore)
	plan.Announce(os.Stdout, repeat)
	r, err := execute(ctx, cfg)
	if r == nil {
		return err
	}
	if err := errors.Join(err, r.report(os.Stdout, *page, repeat)); err != nil {
		return err
	}
	if r.Failed() {
		return fmt.Errorf("%w; repeat with\n  %s", errFailed, repeat)
	}
	return nil
}

// options of the members: snapshots come often, so that faults meet them.
func options(seed uint64, logStore string) member.Options {
	o := member.Options{LogStore: logStore, SnapshotEvery: 2000, TrailingLogs: 500}
	if o.LogStore == "" {
		o.LogStore = [...]string{"boltdb", "wal"}[seed%2]
	}
	o.Timeouts.PromoteAfter = 100 * time.Millisecond
	return o
}
