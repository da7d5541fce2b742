package main

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/cluster-test/figure"
)

// usage is the use of a side's processes so far, and that of this one.
type usage struct {
	programs map[string]time.Duration // CPU time by the name of the program
	hollow   time.Duration            // CPU time of this process
}

func (b *bench) usage() (usage, error) {
	u := usage{programs: map[string]time.Duration{}}
	for _, s := range b.Servers {
		programs, err := s.Programs()
		if err != nil {
			return u, err
		}
		for name, cpu := range programs {
			u.programs[name] += cpu
		}
	}
	var own unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &own); err != nil {
		return u, err
	}
	u.hollow = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	return u, nil
}

// used are the figures of the use since before: by all processes of the side, by each program if
// there are several, and by the hollow nodes, which share the machine.
func (b *bench) used(before usage) ([]figure.Figure, error) {
	after, err := b.usage()
	if err != nil {
		return nil, err
	}
	all, err := b.Use()
	if err != nil {
		return nil, err
	}
	return append(spent(before, after), figure.One("memory of all processes (RssAnon)", "MiB", all.Anonymous),
		figure.One("requests that were repeated", "", float64(b.repeated.Load())),
		figure.One("times that a node was not Ready", "", float64(b.told.Load()))), nil
}

func spent(before, after usage) []figure.Figure {
	var total time.Duration
	var each []figure.Figure
	for _, name := range slices.Sorted(maps.Keys(after.programs)) {
		cpu := after.programs[name] - before.programs[name]
		total += cpu
		each = append(each, figure.One("CPU time of "+name, "s", cpu.Seconds()))
	}
	out := []figure.Figure{figure.One("CPU time of all processes", "s", total.Seconds())}
	if len(each) > 1 {
		out = append(out, each...)
	}
	return append(out, figure.One("CPU time of the hollow nodes", "s", (after.hollow-before.hollow).Seconds()))
}
