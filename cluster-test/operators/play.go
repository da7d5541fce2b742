package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/operators/workshop"
	"github.com/barque/barque/cluster-test/registry"
)

const servers = 3

// result is the outcome of a program.
type result struct {
	program
	held []round
	err  error // why it failed, in the first round that is not in held
}

// play runs the scenarios on one cluster. A program that fails does not end it.
func play(ctx context.Context, o options, w *workshop.Workshop, programs []program) (results []result, err error) {
	images, err := registry.New(ctx, w.Images())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, images.Close()) }()
	scratch, err := os.MkdirTemp("", "barque-operators-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	say("starting %d servers", servers)
	started, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	c, err := clustertest.Up(started,
		clustertest.Options{Servers: servers, Registry: images,
			ServerArgs: []string{"--controllers=*,-service-lb-controller"}})
	if c != nil {
		defer func() { err = errors.Join(err, c.Down()) }()
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, n := range c.Nodes() {
			err = errors.Join(err, keep(c.LogFile(n), filepath.Join(o.out, n+".log")))
		}
	}()
	st := &stage{Cluster: c, out: o.out}
	for _, p := range programs {
		s := &site{Cluster: c, program: p, workshop: w, scratch: filepath.Join(scratch, p.name)}
		if p.module != "" {
			if s.dir, err = w.Module(ctx, p.module, p.version); err != nil {
				return nil, err
			}
		}
		if err := os.MkdirAll(s.scratch, 0o755); err != nil {
			return nil, err
		}
		st.sites = append(st.sites, s)
		st.results = append(st.results, result{program: p})
	}
	for i := range st.sites {
		if err := st.one(ctx, i); err != nil {
			return st.results, err
		}
	}
	return st.results, st.all(ctx)
}

// stage is where the scenarios play.
type stage struct {
	*clustertest.Cluster
	out     string
	sites   []*site
	results []result
}

// one installs a program and looks at its fact, then again while the leader is killed. An error is
// one of the cluster.
func (st *stage) one(ctx context.Context, i int) error {
	s := st.sites[i]
	say("%s %s: installing", s.program.name, s.program.version)
	err := s.program.install(ctx, s)
	if err == nil {
		err = s.ready(ctx, start)
	}
	if err != nil {
		return st.fail(ctx, i, fmt.Errorf("install: %w", err))
	}
	if !st.begin(ctx, i, installed) || !st.look(ctx, i, installed) || !st.begin(ctx, i, killed) {
		return ctx.Err()
	}
	leader, err := st.leader(ctx)
	if err != nil {
		return err
	}
	say("%s: killing %s, the leader", s.program.name, leader)
	if err := st.KillNodes(ctx, leader); err != nil {
		return err
	}
	back := make(chan error, 1)
	go func() { back <- st.StartNode(ctx, leader) }() // ends with the command, which ctx bounds
	held := st.look(ctx, i, killed)
	if err := <-back; err != nil {
		return fmt.Errorf("start %s again: %w", leader, err)
	}
	if held && s.program.leave != nil {
		if err := s.program.leave(ctx, s); err != nil {
			return st.fail(ctx, i, fmt.Errorf("clean up: %w", err))
		}
	}
	return st.healthy(ctx)
}

// all restarts all machines and looks at the facts of the programs that have not failed.
func (st *stage) all(ctx context.Context) error {
	for i := range st.sites {
		if st.results[i].err == nil {
			st.begin(ctx, i, restarted)
		}
	}
	say("restarting all machines")
	since := time.Now().Truncate(time.Second)
	for _, n := range st.Nodes() {
		if err := st.KillMachine(ctx, n); err != nil {
			return err
		}
	}
	started := make(chan error)
	for _, n := range st.Nodes() { // a server that is alone has no quorum to be ready with
		go func() { started <- st.StartNode(ctx, n) }()
	}
	var err error
	for range st.Nodes() {
		err = errors.Join(err, <-started)
	}
	if err != nil {
		return err
	}
	if err := st.healthy(ctx); err != nil {
		return err
	}
	for i, s := range st.sites {
		if st.results[i].err != nil {
			continue
		}
		if err := s.ready(ctx, since); err != nil {
			if err := st.fail(ctx, i, fmt.Errorf("%s: %w", restarted, err)); err != nil {
				return err
			}
			continue
		}
		if st.look(ctx, i, restarted) && s.program.leave != nil {
			if err := s.program.leave(ctx, s); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// begin starts the work that outlives a round, and reports whether it has begun.
func (st *stage) begin(ctx context.Context, i int, r round) bool {
	s := st.sites[i]
	if s.program.begin == nil {
		return true
	}
	if err := s.program.begin(ctx, s, r); err != nil {
		_ = st.fail(ctx, i, fmt.Errorf("%s: %w", r, err)) // the caller looks at ctx
		return false
	}
	return true
}

// look reports whether the program's fact holds in a round.
func (st *stage) look(ctx context.Context, i int, r round) bool {
	s, began := st.sites[i], time.Now()
	if err := s.program.fact(ctx, s, r); err != nil {
		_ = st.fail(ctx, i, fmt.Errorf("%s: %w", r, err)) // the caller looks at ctx
		return false
	}
	st.results[i].held = append(st.results[i].held, r)
	say("%s: the fact holds, %s (%v)", s.program.name, r, time.Since(began).Round(100*time.Millisecond))
	return true
}

// fail notes why a program failed, and keeps the state of the cluster. It returns an error when the
// run is over.
func (st *stage) fail(ctx context.Context, i int, why error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	st.results[i].err = why
	file := filepath.Join(st.out, st.results[i].name+".txt")
	say("%s: FAILED: %v\n          see %s", st.results[i].name, why, file)
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	fmt.Fprintln(f, why)
	st.Dump(f)
	for _, n := range st.results[i].namespaces {
		for _, args := range [][]string{
			{"describe", "pods", "-n", n},
			{"logs", "-n", n, "--all-containers", "--prefix", "--tail=100", "--max-log-requests=20", "--selector=",
				"--ignore-errors"},
		} {
			r := st.KubectlResult(ctx, "", args...)
			fmt.Fprintf(f, "──── %s\n%s%s\n", args, r.Out, r.Err)
		}
	}
	return f.Close()
}

func (st *stage) leader(ctx context.Context) (leader string, err error) {
	err = clustertest.Poll(ctx, limit, func(ctx context.Context) error {
		status, err := st.Status(ctx)
		if err != nil {
			return err
		}
		if leader = status.Leader; leader == "" {
			return errors.New("there is none")
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("ask for the leader: %w", err)
	}
	return leader, err
}

// healthy waits until all machines are Ready nodes without taints, and the servers have the same
// state. Other nodes do not count: a program may make some.
func (st *stage) healthy(ctx context.Context) error {
	err := clustertest.Poll(ctx, limit, func(ctx context.Context) error {
		for _, name := range st.Nodes() {
			n, err := st.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if status, reason := clustertest.NodeReady(n); status != corev1.ConditionTrue {
				return fmt.Errorf("node %s: Ready is %s: %s", name, status, reason)
			}
			if len(n.Spec.Taints) > 0 {
				return fmt.Errorf("node %s has taints: %v", name, n.Spec.Taints)
			}
		}
		return st.InStep(ctx)
	})
	if err != nil {
		err = fmt.Errorf("the cluster is not healthy: %w", err)
	}
	return err
}

// failures is an error that names the programs that failed.
func failures(results []result) error {
	var names []string
	for _, r := range results {
		if r.err != nil {
			names = append(names, r.name)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("%d of %d programs failed: %q", len(names), len(results), names)
	}
	return nil
}

// keep copies a file.
func keep(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

func barqueVersion(ctx context.Context) (string, error) {
	binary, err := clustertest.Binary()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, binary, "version", "-o", "json").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	var v struct{ Version string }
	return v.Version, json.Unmarshal(out, &v)
}
