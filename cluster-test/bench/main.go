// Command bench measures the first figures that users ask for: the start of a cluster, the start of
// a pod, the pause of writes when the leader dies, and the memory of a server. It prints a table
// and judges nothing; `make bench` runs it (ONLY=one|three|failover|starved for a part of it,
// KILLS=100 for more kills of the leader), tests never do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	clustertest "github.com/barque/barque/cluster-test"
)

func main() {
	spinIfAsked()
	only := flag.String("only", "", "regular expression that names what is measured: one, three, failover, starved")
	kills := flag.Int("kills", 20, "how often the leader is killed")
	pods := flag.Int("pods", 110, "how many pods start at once on starved servers")
	busy := flag.Int("busy", 48, "how many busy processes starve them")
	clustertest.Main("bench", func(ctx context.Context) error {
		flag.Parse()
		return run(ctx, *only, *kills, *pods, *busy)
	})
}

// result is one row: a measured value, in the unit in which it is shown.
type result struct {
	what   string
	unit   string
	values []float64
}

func seconds(what string, values []time.Duration) result {
	r := result{what: what, unit: "s"}
	for _, v := range values {
		r.values = append(r.values, v.Seconds())
	}
	return r
}

func run(ctx context.Context, only string, kills, pods, busy int) error {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if kills < 1 || pods < 1 || busy < 0 {
		return errors.New("-kills and -pods: want one at least; -busy: want none at least")
	}
	var results []result
	for _, m := range []struct {
		name    string
		measure func(context.Context) ([]result, error)
	}{
		{"one", measureOne},
		{"three", measureThree},
		{"failover", func(ctx context.Context) ([]result, error) { return measureFailover(ctx, kills) }},
		{"starved", func(ctx context.Context) ([]result, error) { return measureStarved(ctx, pods, busy) }},
	} {
		if !wanted.MatchString(m.name) {
			continue
		}
		r, err := m.measure(ctx)
		if err != nil {
			return err
		}
		results = append(results, r...)
	}
	if len(results) == 0 {
		return fmt.Errorf("-only %q names nothing: want one, three, failover or starved", only)
	}
	return report(results)
}

func report(results []result) error {
	fmt.Printf("\n%s\n\n", machine())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tn\tmin\tmedian\tp90\tmax\tunit\t")
	for _, r := range results {
		v := slices.Sorted(slices.Values(r.values))
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t\n", r.what, len(v), v[0], v[len(v)/2], v[len(v)*9/10],
			v[len(v)-1], r.unit)
	}
	return w.Flush()
}

// machine describes the machine of the measurement.
func machine() string {
	var name unix.Utsname
	kernel := "an unknown kernel"
	if unix.Uname(&name) == nil {
		kernel = "Linux " + unix.ByteSliceToString(name.Release[:])
	}
	model := "an unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	load := "?"
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(data), " ")
	}
	return fmt.Sprintf("%d cores of %s, %s, %s/%s, %s, load average %s", runtime.NumCPU(), model, kernel, runtime.GOOS,
		runtime.GOARCH, time.Now().UTC().Format(time.DateOnly), load)
}

// progress prints that a long step begins.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
