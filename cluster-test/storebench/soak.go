package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/barque/barque/cluster-test/store/member"
)

const burnVariable = "BARQUE_STOREBENCH_BURN"

// burnIfAsked is the whole of a process that keeps a core busy. It ends when its parent does.
func burnIfAsked() {
	if os.Getenv(burnVariable) == "" {
		return
	}
	for x, parent := uint64(1), os.Getppid(); os.Getppid() == parent; {
		for range 1 << 26 {
			x = x*6364136223846793005 + 1
		}
		runtime.KeepAlive(x)
	}
	os.Exit(0)
}

// soaked counts the elections of a healthy group while other processes want all cores.
func (b *bench) soaked(ctx context.Context) error {
	if b.soak <= 0 {
		return nil
	}
	return b.withGroup(ctx, 3, member.Options{}, func(g group) error {
		before, err := g.term(ctx)
		if err != nil {
			return err
		}
		stop, err := burn(b.busy)
		if err != nil {
			return err
		}
		defer stop()
		at, err := g.at(ctx, onLeader)
		if err != nil {
			return err
		}
		r, err := at[0].Load(ctx, member.Load{
			Kind: member.Puts, Clients: 4, ValueBytes: 256, Prefix: prefix, Keys: keyCount, For: b.soak,
			Every: 50 * time.Millisecond,
		})
		if err != nil {
			return err
		}
		after, err := g.term(ctx)
		if err != nil {
			return err
		}
		average, _ := os.ReadFile("/proc/loadavg")
		fmt.Printf(
			"\n### No election without a fault\n\n%v with %d busy processes on %d cores, 4 clients with pauses: %d elections (term %d, then %d), "+
				"%d writes, p50 %s, p99 %s, longest gap %s, failed %d; load average at the end %s\n", b.soak, b.busy,
			runtime.NumCPU(),
			after-before, before, after, r.Ops, short(r.Latency.Quantile(0.5)), short(r.Latency.Quantile(0.99)),
			short(r.LongestGap), r.Errors, average)
		return nil
	})
}

// term is the highest that a member is in.
func (g group) term(ctx context.Context) (uint64, error) {
	highest, errs := uint64(0), []error(nil)
	for _, m := range g.Members() {
		status, _, err := m.Status(ctx)
		errs, highest = append(errs, err), max(highest, status.Term)
	}
	return highest, errors.Join(errs...)
}

// burn starts processes that do nothing but compute.
func burn(n int) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var all []*exec.Cmd
	stop = func() {
		for _, cmd := range all {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	for range n {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), burnVariable+"=1")
		if err := cmd.Start(); err != nil {
			stop()
			return nil, err
		}
		all = append(all, cmd)
	}
	return stop, nil
}
