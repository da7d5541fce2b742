package main

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/sides"
)

// bulk is a measurement with many objects. Each case has servers of its own.
type bulk struct {
	name string
	// prepare makes the objects, and returns the figures that can be measured once.
	prepare func(context.Context, options, *load) ([]figure.Figure, error)
	// measure, if there is one, is repeated.
	measure func(context.Context, options, *load) ([]figure.Figure, error)
	// apart: the sides run one after the other. The memory of both would be much for one machine.
	apart bool
	args  []string // of Barque's servers
	// sides, if it is not nil, starts the compared sides in place of upstream and Barque.
	sides func(ctx context.Context, measure func(base, ours *sides.Side) error) error
}

// bulkBound is how long a case may take on the sides that run at the same time.
const bulkBound = 3 * time.Hour

var bulks = []bulk{
	{name: "memory", prepare: fill, apart: true},
	{name: "collection", prepare: deleteTwice, measure: deleteOnce},
	{name: "pages", prepare: makePods, measure: listPages, apart: true},
	// The nodes do not exist. Upstream runs nothing that would remove their pods.
	{name: "node", prepare: makeNodePods, measure: watchNodes,
		args: []string{"--controllers=*,-pod-garbage-collector-controller"}},
	{name: "audit", prepare: layGuarded, measure: useGuarded, sides: withoutAudit},
}

func wantedBulks(only *regexp.Regexp) (out []bulk) {
	for _, b := range bulks {
		if only.MatchString(b.name) {
			out = append(out, b)
		}
	}
	return out
}

// run measures a case on both sides and prints its table.
func (b bulk) run(ctx context.Context, o options) error {
	var whose []string
	of := map[string][]figure.Figure{}
	on := func(all ...*sides.Side) error {
		for _, s := range all {
			whose = append(whose, s.Name)
		}
		return b.on(ctx, o, of, all...)
	}
	var err error
	if b.sides != nil {
		err = b.sides(ctx, func(base, ours *sides.Side) error { return on(base, ours) })
	} else if b.apart || o.alone {
		if !o.alone {
			err = withUpstream(ctx, o, func(s *sides.Side) error { return on(s) })
		}
		if err == nil {
			err = withBarque(ctx, b.args, func(s *sides.Side) error { return on(s) })
		}
	} else {
		err = withSides(ctx, o, b.args, func(theirs, ours *sides.Side) error { return on(theirs, ours) })
	}
	if len(of) > 0 { // the figures are shown although a side did not stop as it should
		fmt.Printf("\n%s\n%s", figure.Header(whose), figure.Table(b.name, whose, of))
	}
	return err
}

// on measures a case on sides that run, by turns.
func (b bulk) on(ctx context.Context, o options, of map[string][]figure.Figure, all ...*sides.Side) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bulkBound, fmt.Errorf("%s took more than %v", b.name, bulkBound))
	defer cancel()
	var loads []*load
	measure := func(l *load, f func(context.Context, options, *load) ([]figure.Figure, error)) error {
		figures, err := f(ctx, o, l)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s of %s: %w", b.name, l.Name, err)
		}
		of[l.Name] = figure.Merge(of[l.Name], figures)
		return nil
	}
	for _, s := range all {
		progress("%s of %s", b.name, s.Name)
		l, err := newLoad(ctx, s)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", b.name, s.Name, err)
		}
		loads = append(loads, l)
		if err := measure(l, b.prepare); err != nil {
			return err
		}
	}
	if b.measure == nil {
		return nil
	}
	for n := range o.repeats {
		for _, l := range loads {
			progress("%s of %s, %d of %d", b.name, l.Name, n+1, o.repeats)
			if err := measure(l, b.measure); err != nil {
				return err
			}
		}
	}
	return nil
}

// cpu returns the CPU time that all servers have used while something was done.
func (l *load) cpu(do func() error) (time.Duration, error) {
	before, err := l.Use()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := l.Use()
	return after.CPU - before.CPU, err
}
