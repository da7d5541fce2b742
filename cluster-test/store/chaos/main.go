package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
)

func main() {
	member.ServeIfMember()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := command(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "chaos-store:", err)
		stop()
		os.Exit(1)
	}
}

var errFailed = errors.New("the store, or the harness, is at fault")

func command(ctx context.Context) error {
	seed := flag.Uint64("seed", 0, "seed of the faults; 0 draws one")
	duration := flag.Duration("duration", 5*time.Minute, "for how long faults begin; 0: each once")
	only := flag.String("faults", "", "only the faults whose name matches this expression")
	logStore := flag.String("log-store", "", "boltdb or wal; empty draws one from the seed")
	dir := flag.String("dir", "", "where the members' directories are made; empty: the directory for temporary files")
	page := flag.String("page", "", "write the report as a page of HTML to this file, too")
	list := flag.Bool("list", false, "list the faults")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-faults: %w", err)
	}
	faults, left := possible(pattern)
	if *list {
		for _, f := range faults {
			fmt.Println(f.name)
		}
		return nil
	}
	if len(faults) == 0 {
		return fmt.Errorf("no fault matches %q; -list lists them", *only)
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	cfg := config{seed: *seed, duration: *duration, faults: faults, dir: *dir, out: os.Stdout, options: options(*seed, *logStore)}
	repeat := fmt.Sprintf("make chaos-store SEED=%d DURATION=%v LOGSTORE=%s", *seed, *duration, cfg.options.LogStore)
	if *only != "" {
		repeat += fmt.Sprintf(" FAULTS='%s'", *only)
	}
	fmt.Printf("seed %d, log in %s, %d kinds of faults, %d CPUs; repeat with\n  %s\n", *seed, cfg.options.LogStore, len(faults), runtime.NumCPU(), repeat)
	if left > 0 {
		fmt.Printf("%d kinds are left out: %v\n", left, store.DisksPossible())
	}
	r, err := execute(ctx, cfg)
	if r != nil && r.log != nil {
		r.report(os.Stdout)
		if *page != "" {
			if e := r.page(repeat).WriteFile(*page); e != nil {
				err = errors.Join(err, e)
			} else {
				fmt.Printf("\nthe faults drawn against the writes: %s\n", *page)
			}
		}
	}
	if err != nil {
		return err
	}
	if len(r.failures) > 0 {
		return fmt.Errorf("%w; repeat with\n  %s", errFailed, repeat)
	}
	return nil
}

// possible returns the faults that match and can be made here, and how many match and cannot.
func possible(pattern *regexp.Regexp) (faults []fault, left int) {
	disks := store.DisksPossible() == nil
	for _, f := range allFaults() {
		switch {
		case !pattern.MatchString(f.name):
		case f.disk && !disks:
			left++
		default:
			faults = append(faults, f)
		}
	}
	return faults, left
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
