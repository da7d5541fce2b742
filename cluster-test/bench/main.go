// Command bench measures what people ask about a cluster first: how fast it is there, how fast a
// pod runs, how long writes stop when the leader dies, and how much memory a server takes. It
// prints a table and judges nothing; `make bench` runs it, tests never do.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	clustertest "github.com/barque/barque/cluster-test"
)

func main() {
	clustertest.ReapIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx)
	if reapErr := clustertest.Reap(); err == nil {
		err = reapErr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// result is one row: what was measured, in the unit in which it is shown.
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

func run(ctx context.Context) error {
	var results []result
	for _, measure := range []func(context.Context) ([]result, error){measureOne, measureThree} {
		r, err := measure(ctx)
		if err != nil {
			return err
		}
		results = append(results, r...)
	}
	return report(results)
}

func report(results []result) error {
	fmt.Printf("\n%s\n\n", machine())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tn\tmin\tmedian\tmax\tunit\t")
	for _, r := range results {
		v := slices.Sorted(slices.Values(r.values))
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%.2f\t%s\t\n", r.what, len(v), v[0], v[len(v)/2], v[len(v)-1], r.unit)
	}
	return w.Flush()
}

// machine says on what it was measured.
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
	return fmt.Sprintf("%d cores of %s, %s, %s/%s, %s", runtime.NumCPU(), model, kernel, runtime.GOOS, runtime.GOARCH, time.Now().UTC().Format(time.DateOnly))
}

// progress tells what takes long.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
