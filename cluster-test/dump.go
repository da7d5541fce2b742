package clustertest

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/barque/barque/internal/await"
)

const shortly = "--request-timeout=5s" // brief: an ill cluster may not answer, and is dumped all the same

// Dump writes the facts with which a search for a fault begins.
func (c *Cluster) Dump(w io.Writer) {
	ctx, cancel := context.WithTimeout(context.Background(), await.Hang)
	defer cancel()
	show := func(r Result) {
		fmt.Fprintln(w, r.Out+r.Err)
		if r.Error != nil {
			fmt.Fprintln(w, r.Error)
		}
	}
	section := func(format string, args ...any) { fmt.Fprintf(w, "──── "+format+"\n", args...) }
	section("dev status")
	show(c.DevResult(ctx, "status"))
	section("cluster status")
	show(c.BarqueResult(ctx, "cluster", "status"))
	for _, args := range [][]string{
		{"get", "all,nodes", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		section("kubectl %s", strings.Join(args, " "))
		show(c.KubectlResult(ctx, "", append(args, shortly)...))
	}
	pods := c.KubectlResult(ctx, "", "get", "pods", "-A", "--no-headers", shortly).Out
	described := 0
	for line := range strings.Lines(pods) {
		f := strings.Fields(line)
		if len(f) < 4 || described == 4 {
			continue
		}
		if ready, all, _ := strings.Cut(f[2], "/"); ready != all && f[3] != "Completed" {
			described++
			section("pod %s/%s", f[0], f[1])
			show(c.KubectlResult(ctx, "", "describe", "pod", "-n", f[0], f[1], shortly))
			show(
				c.KubectlResult(ctx, "", "logs", "--all-containers", "--prefix", "--tail=20", "-n", f[0], f[1],
					shortly))
		}
	}
	for _, n := range c.nodes {
		section("log of %s", n)
		fmt.Fprintln(w, Tail(c.LogFile(n), 25))
	}
}

// Tail returns the last lines of a file, or why it cannot.
func Tail(file string, lines int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
