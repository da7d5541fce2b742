package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	clustertest "github.com/barque/barque/cluster-test"
)

func main() {
	clustertest.ReapIfAsked()
	quiet()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends it at once; the cluster is removed then, too
	err := command(ctx)
	err = errors.Join(err, clustertest.Reap())
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		stop()
		os.Exit(1)
	}
}

// quiet silences what the clients' library says of connections that break: that is what was asked for.
func quiet() {
	klog.SetLogger(logr.Discard())
}

var errFailed = errors.New("the cluster, or the harness, is at fault")

func command(ctx context.Context) error {
	seed := flag.Uint64("seed", 0, "seed of the faults; 0 draws one")
	duration := flag.Duration("duration", 10*time.Minute, "for how long faults begin; 0: each once")
	count := flag.Int("count", 0, "how many faults there are, however long they take; 0: -duration decides")
	only := flag.String("faults", "", "only the faults whose name matches this expression")
	page := flag.String("page", "chaos.html", "the file for the time line")
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
	cfg := config{seed: *seed, duration: *duration, count: *count, faults: faults, out: os.Stdout, page: *page}
	cfg.repeat = fmt.Sprintf("make chaos SEED=%d DURATION=%v", *seed, *duration)
	if *count > 0 {
		cfg.repeat = fmt.Sprintf("make chaos SEED=%d COUNT=%d", *seed, *count)
	}
	if *only != "" {
		cfg.repeat += fmt.Sprintf(" FAULTS='%s'", *only)
	}
	fmt.Printf("seed %d, %d kinds of faults, %d CPUs; repeat with\n  %s\n", *seed, len(faults), runtime.NumCPU(), cfg.repeat)
	if left > 0 {
		fmt.Printf("%d kinds are left out: %v\n", left, disksPossible())
	}
	r, err := execute(ctx, cfg)
	if r == nil {
		return err
	}
	if err := errors.Join(err, r.report(os.Stdout)); err != nil {
		return err
	}
	if len(r.failures) > 0 {
		return fmt.Errorf("%w; repeat with\n  %s", errFailed, cfg.repeat)
	}
	return nil
}

// config of a run.
type config struct {
	seed     uint64
	duration time.Duration // faults begin until then; 0: every one of faults once
	count    int           // how many there are; 0: duration decides
	faults   []fault
	out      io.Writer // progress; nil is none
	page     string    // file; empty: none
	repeat   string    // the command that makes it again
}

// possible returns the faults that match and can be made here, and how many match and cannot.
func possible(pattern *regexp.Regexp) (faults []fault, left int) {
	disks := disksPossible() == nil
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
