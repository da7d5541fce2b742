package schedule

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Main runs a program until a signal asks it to end; a second one ends it at once. An error is
// printed, and is exit code 1. flag.ErrHelp is no error: help was asked for, and is printed.
func Main(program string, run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := run(ctx)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		os.Exit(1)
	}
}

// Flags are those by which a program's faults are chosen.
type Flags struct {
	seed     *uint64
	duration *time.Duration
	count    *int
	only     *string
	list     *bool
}

// NewFlags adds the flags to the others.
func NewFlags(flags *flag.FlagSet, duration time.Duration) *Flags {
	return &Flags{
		seed:     flags.Uint64("seed", 0, "seed of the faults; 0 draws one"),
		duration: flags.Duration("duration", duration, "for how long faults begin; 0: each once"),
		count:    flags.Int("count", 0, "how many faults there are, however long they take; 0: -duration decides"),
		only:     flags.String("faults", "", "only the faults whose name matches this expression"),
		list:     flags.Bool("list", false, "list the faults"),
	}
}

// Plan is a schedule that was chosen on the command line.
type Plan[F Fault] struct {
	Schedule[F]
	only string
	left []error
}

// Choose draws the schedule that the flags ask for. When they ask for a list of the faults it
// writes that, and plan is nil.
func Choose[F Fault](f *Flags, all []F, out io.Writer) (plan *Plan[F], err error) {
	pattern, err := regexp.Compile(*f.only)
	if err != nil {
		return nil, fmt.Errorf("-faults: %w", err)
	}
	plan = &Plan[F]{only: *f.only}
	plan.Schedule, plan.left = New(*f.seed, pattern, all)
	plan.Duration, plan.Count = *f.duration, *f.count
	if *f.list {
		for _, fault := range plan.Faults {
			fmt.Fprintln(out, fault.Name())
		}
		plan.tellLeft(out)
		return nil, nil
	}
	if len(plan.Faults) == 0 {
		plan.tellLeft(out)
		return nil, fmt.Errorf("no fault that can be made here matches %q; -list lists them", *f.only)
	}
	return plan, nil
}

func (p *Plan[F]) tellLeft(out io.Writer) {
	for _, err := range p.left {
		fmt.Fprintf(out, "left out: %v\n", err)
	}
}

// Repeat is the command that makes the same faults again, of a Make target and more of its
// variables.
func (p *Plan[F]) Repeat(target string, more ...string) string {
	words := []string{"make", target, fmt.Sprintf("SEED=%d", p.Seed)}
	if p.Count > 0 {
		words = append(words, fmt.Sprintf("COUNT=%d", p.Count))
	} else {
		words = append(words, fmt.Sprintf("DURATION=%v", p.Duration))
	}
	words = append(words, more...)
	if p.only != "" {
		words = append(words, fmt.Sprintf("FAULTS='%s'", p.only))
	}
	return strings.Join(words, " ")
}

// Announce prints the chosen faults, and those that are left out.
func (p *Plan[F]) Announce(out io.Writer, repeat string) {
	fmt.Fprintf(out, "seed %d, %d kinds of faults, %d CPUs; repeat with\n  %s\n", p.Seed, len(p.Faults),
		runtime.NumCPU(), repeat)
	p.tellLeft(out)
}
