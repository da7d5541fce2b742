// Command storebench measures the store: members in processes of their own on this machine, with
// real disks and TLS between them, and, when it is given their binaries, etcd's members beside them
// in the same run. It prints tables in Markdown and judges nothing; `make bench-store` runs it,
// tests never do.
//
// The clients of Barque's store run inside the members, as the API server does. Those of etcd run
// in a process of their own and speak gRPC, without TLS. docs/benchmarks.md has the consequences
// for comparisons.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/barque/barque/cluster-test/store/member"
)

// bench is one run.
type bench struct {
	dir      string // on the disk that is measured
	only     *regexp.Regexp
	repeats  int
	length   time.Duration // of one load
	kills    int
	stops    int
	many     int // keys of the large state
	soak     time.Duration
	busy     int    // processes that want a core each during the soak
	etcd     string // path of etcd's server; empty: no comparison
	etcdLoad string // path of the program that puts loads on it
	logStore string
	silent   time.Duration // Timeouts.Silence of the members; 0: the default
}

// part is one thing to measure.
type part struct {
	name string
	run  func(*bench, context.Context) error
}

func parts() []part {
	return []part{
		{"puts", (*bench).puts}, {"reads", (*bench).reads}, {"watches", (*bench).watches},
		{"failover", (*bench).failover}, {"silence", (*bench).silence}, {"logstores", (*bench).logStores},
		{"sizes", (*bench).sizes},
		{"soak", (*bench).soaked},
	}
}

func main() {
	member.ServeIfMember()
	burnIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := parse(os.Args[1:])
	if err == nil {
		err = b.run(ctx)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "storebench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*bench, error) {
	b := new(bench)
	var only string
	f := flag.NewFlagSet("storebench", flag.ContinueOnError)
	f.StringVar(&b.dir, "dir", ".", "where the members' directories are made: on the disk that is to be measured")
	f.StringVar(&only, "only", "",
		"measure only the parts whose names match: puts, reads, watches, failover, silence, logstores, sizes, soak")
	f.IntVar(&b.repeats, "repeats", 3, "how often each load is repeated")
	f.DurationVar(&b.length, "for", 5*time.Second, "how long each load lasts")
	f.IntVar(&b.kills, "kills", 50, "how often the leader is killed")
	f.IntVar(&b.stops, "stops", 20, "how often the leader is stopped")
	f.IntVar(&b.many, "many", 1_000_000, "how many keys the large state has")
	f.DurationVar(&b.soak, "soak", 0, "how long to look for elections while all cores are busy; 0: not at all")
	f.IntVar(&b.busy, "busy", 2*runtime.NumCPU(), "how many processes keep the cores busy meanwhile")
	f.StringVar(&b.etcd, "etcd", "", "etcd's server, to compare with")
	f.StringVar(&b.etcdLoad, "etcd-load", "", "the program in ./etcd, which puts loads on it")
	f.StringVar(&b.logStore, "log-store", "", "log store of the members; empty: the default")
	f.DurationVar(&b.silent, "silent", 0,
		"how long a leader may be silent (Timeouts.Silence of the members); 0: the default, negative: until Raft's time-out")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	b.only, err = regexp.Compile(only)
	return b, err
}

func (b *bench) run(ctx context.Context) error {
	b.describe()
	if b.etcd == "" {
		fmt.Println("etcd was not measured: its binary was not given (`make bench-store` builds it)")
	}
	for _, p := range parts() {
		if !b.only.MatchString(p.name) {
			continue
		}
		progress("%s", p.name)
		if err := p.run(b, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// progress prints that a long step begins.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
