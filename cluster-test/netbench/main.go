// Command netbench measures cluster DNS beside CoreDNS, and the service proxy beside kube-proxy in
// its nftables mode, on the same machine and in one run: `make bench-network` runs it, as root;
// tests never do.
//
// Each program runs alone in network namespaces that are made for it, one side right after the
// other, and all are fed by the same API server, Barque's, which runs in this process over a store
// in memory. Clients and backends are in this process, too. Barque's DNS and proxy are this
// program, started anew as a child: in a node they are parts of its one process, and share their
// informers with the rest of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/schedule"
	"github.com/barque/barque/cluster-test/sides"
)

type options struct {
	bin     string
	only    *regexp.Regexp
	repeats int

	each    time.Duration // how long each DNS server is asked
	rate    int           // questions a second
	names   int           // services that are asked for
	sizes   []int         // numbers of services that the proxies lead
	changes int           // of an endpoint, at each number of services
}

// mostQuestions is the highest rate that the clients could keep at all.
const mostQuestions = 1_000_000

// parts are the names for -only.
var parts = []struct {
	name    string
	measure func(context.Context, options) error
}{{"dns", measureDNS}, {"services", measureServices}}

func main() {
	klog.SetLogger(logr.Discard())
	schedule.Main("netbench", func(ctx context.Context) error {
		if err := serveIfAsked(ctx, os.Args[1:]); !errors.Is(err, errNotAsked) {
			return err
		}
		o, err := parse(os.Args[1:])
		if err != nil {
			return err
		}
		return run(ctx, o)
	})
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("netbench", flag.ContinueOnError)
	only := f.String("only", "", "regular expression that names what is measured: dns, services")
	sizes := f.String("services", "10,1000,10000", "how many services the proxies lead, in ascending order")
	f.StringVar(&o.bin, "bin", "bin/upstream", "directory that has, or gets, kube-proxy and coredns")
	f.IntVar(&o.repeats, "repeats", 3, "how often each side is measured")
	f.DurationVar(&o.each, "each", 20*time.Second, "how long each DNS server is asked")
	f.IntVar(&o.rate, "rate", 1000, "how many questions a second it is asked")
	f.IntVar(&o.names, "names", 1000, "how many services there are to ask for, each with five endpoints")
	f.IntVar(&o.changes, "changes", 8, "how often an endpoint changes at each number of services")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, err
	}
	for text := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return o, fmt.Errorf("-services: %w", err)
		}
		if n < 1 || n > mostServices || len(o.sizes) > 0 && n <= o.sizes[len(o.sizes)-1] {
			return o, fmt.Errorf("-services: want ascending numbers from 1 to %d", mostServices)
		}
		o.sizes = append(o.sizes, n)
	}
	if o.repeats < 1 || o.each <= 0 || o.rate < 1 || o.rate > mostQuestions || o.names < headlessEach ||
		o.names > mostServices || o.changes < 1 {
		return o,
			fmt.Errorf("-repeats, -each and -changes must be above 0, -rate from 1 to %d, -names from %d to %d",
				mostQuestions, headlessEach, mostServices)
	}
	return o, nil
}

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("it makes network namespaces: run this as root")
	}
	fmt.Printf("load average at the start: %s\n", sides.LoadAverage())
	measured := false
	for _, part := range parts {
		if o.only.MatchString(part.name) {
			measured = true
			if err := part.measure(ctx, o); err != nil {
				return fmt.Errorf("%s: %w", part.name, err)
			}
		}
	}
	if !measured {
		return fmt.Errorf("-only %q names nothing", o.only)
	}
	fmt.Printf("load average at the end: %s\n", sides.LoadAverage())
	return nil
}

// built returns the path of a program of upstream. Without it there is nothing to compare with:
// that is said, and the path is empty.
func built(ctx context.Context, o options, name string) string {
	path, err := filepath.Abs(filepath.Join(o.bin, name))
	if err == nil {
		if name == "coredns" {
			err = buildCoreDNS(ctx, path)
		} else {
			err = kubeapiserver.Build(ctx, o.bin, name)
		}
	}
	if err != nil {
		fmt.Printf("\n%s was not measured: %v\n", name, err)
		return ""
	}
	return path
}

// coreModule is where CoreDNS's version is, in the root of Barque's source.
const coreModule = "cluster-test/netbench/coredns"

func buildCoreDNS(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	progress("building coredns; this takes some minutes, once")
	cmd := exec.CommandContext(ctx, kubeapiserver.Go(), "build", "-ldflags", "-s -w", "-o", path, ".")
	cmd.Dir = coreModule
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-trimpath -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build it in %s: %w: %s", coreModule, err, out)
	}
	return nil
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// toStderr is the log of a child of this program, on standard error; it ends in the child's log.
func toStderr() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }
