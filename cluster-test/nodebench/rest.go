package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/cluster-test/figure"
	"github.com/barque/barque/cluster-test/sides"
	"github.com/barque/barque/internal/procstat"
)

// rest measures a node at rest: its memory with ever more pods, and its CPU time with all of them.
func rest(ctx context.Context, b *bench) (figures []figure.Figure, err error) {
	for _, n := range b.options.pods {
		if more := n - b.created; more > 0 {
			progress("creating pods until there are %d", n)
			if _, err := b.create(ctx, more); err != nil {
				return figures, err
			}
		}
		if !b.wants(memory) {
			continue
		}
		if err := pause(ctx, b.settle); err != nil {
			return figures, err
		}
		held, err := b.held()
		if err != nil {
			return figures, err
		}
		figures = append(figures, held.figures(n)...)
	}
	if b.wants(idle) {
		if err := pause(ctx, b.settle); err != nil {
			return figures, err
		}
		progress("watching it for %v", b.watched)
		before, err := b.usage()
		if err != nil {
			return figures, err
		}
		if err := pause(ctx, b.watched); err != nil {
			return figures, err
		}
		after, err := b.usage()
		if err != nil {
			return figures, err
		}
		what := fmt.Sprintf("idle with %d pods, CPU time in a minute: ", b.created)
		figures = append(figures, after.since(before, what, "s", 60/after.at.Sub(before.at).Seconds())...)
	}
	return figures, b.clear(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// The parts of a node, in the order of the tables. The service proxy is in Barque's process, and
// beside kubelet.
const (
	nodeItself = "the node's process"
	withProxy  = "the same, and kube-proxy"
	allShims   = "all shims"
)

var parts = []string{nodeItself, withProxy, containerd, allShims}

// processes returns those of each part that there is.
func (b *bench) processes() (map[string][]int, error) {
	of := map[string][]int{}
	for name, pid := range b.pids {
		of[withProxy] = append(of[withProxy], pid)
		if name != kubeProxy {
			of[nodeItself] = append(of[nodeItself], pid)
		}
	}
	if _, ok := b.pids[kubeProxy]; !ok && b.tenant != nil { // it could not run
		delete(of, withProxy)
	}
	pid, err := b.Containerd(agent)
	if err != nil {
		return nil, err
	}
	of[containerd] = []int{pid}
	of[allShims], err = b.shims()
	return of, err
}

// shims returns the processes that stand between containerd and the node's pods.
func (b *bench) shims() (out []int, err error) {
	there, err := os.Stat(filepath.Join("/run/netns", b.Netns(agent)))
	if err != nil {
		return nil, err
	}
	all, err := procstat.All()
	if err != nil {
		return nil, err
	}
	for _, pid := range all {
		args, err := procstat.Args(pid)
		if err != nil || len(args) == 0 || filepath.Base(args[0]) != "containerd-shim-runc-v2" {
			continue // a process that has ended meanwhile is none
		}
		if in, err := procstat.InNetwork(pid, there); err == nil && in != procstat.Absent {
			out = append(out, pid)
		}
	}
	return out, nil
}

// usage is the CPU time that each part has used so far, with that of its children that have ended.
type usage struct {
	at  time.Time
	cpu map[string]time.Duration
}

func (b *bench) usage() (usage, error) {
	u := usage{at: time.Now(), cpu: map[string]time.Duration{}}
	of, err := b.processes()
	if err != nil {
		return u, err
	}
	for part, pids := range of {
		if part == allShims { // they come and go with the pods
			continue
		}
		for _, pid := range pids {
			used, err := sides.Process(pid)
			if err != nil {
				return u, err
			}
			u.cpu[part] += used.CPU + used.Children
		}
	}
	return u, nil
}

// since are figures of the use since before.
func (u usage) since(before usage, what, unit string, factor float64) (out []figure.Figure) {
	for _, part := range parts {
		if used, ok := u.cpu[part]; ok {
			out = append(out, figure.One(what+part, unit, (used-before.cpu[part]).Seconds()*factor))
		}
	}
	return out
}

// memoryOf is the memory of processes, in MiB.
type memoryOf struct {
	rss       float64
	pss       float64 // a share of the pages that others have, too
	anonymous float64 // pages that are of no file
}

// held is the memory of each part.
type held map[string]memoryOf

func (b *bench) held() (held, error) {
	of, err := b.processes()
	if err != nil {
		return nil, err
	}
	h := held{}
	for part, pids := range of {
		var sum memoryOf
		for _, pid := range pids {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			if err != nil {
				return nil, err
			}
			m, err := parseRollup(data)
			if err != nil {
				return nil, fmt.Errorf("process %d: %w", pid, err)
			}
			sum = memoryOf{sum.rss + m.rss, sum.pss + m.pss, sum.anonymous + m.anonymous}
		}
		h[part] = sum
	}
	return h, nil
}

// parseRollup reads /proc/PID/smaps_rollup (proc_pid_smaps(5)).
func parseRollup(data []byte) (m memoryOf, err error) {
	wanted := map[string]*float64{"Rss:": &m.rss, "Pss:": &m.pss, "Anonymous:": &m.anonymous}
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 || wanted[fields[0]] == nil {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return m, err
		}
		*wanted[fields[0]] = kib / 1024
		delete(wanted, fields[0])
	}
	if len(wanted) > 0 {
		return m, fmt.Errorf("its smaps_rollup lacks %d of what is wanted", len(wanted))
	}
	return m, nil
}

// figures are those with so many pods. Of shims only their share is shown: they are all alike.
func (h held) figures(pods int) (out []figure.Figure) {
	for _, part := range parts {
		m, ok := h[part]
		if !ok || part == allShims && pods == 0 {
			continue
		}
		what := fmt.Sprintf("%d pods, memory of %s, ", pods, part)
		if part != allShims {
			out = append(out, figure.One(what+"RSS", "MiB", m.rss))
		}
		out = append(out, figure.One(what+"PSS", "MiB", m.pss))
		if part != allShims {
			out = append(out, figure.One(what+"anonymous", "MiB", m.anonymous))
		}
	}
	return out
}
