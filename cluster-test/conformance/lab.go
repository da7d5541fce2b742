package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/registry"
	"github.com/barque/barque/cluster-test/suiterun"
)

// lab is a cluster on which the suite can run.
type lab struct {
	suite   suite
	cluster *clustertest.Cluster
	images  *registry.Registry
	parts   []part
	absent  []part // those of them that the cluster has not
}

// prepare makes the suite and the images, or finds those of an earlier time.
func prepare(ctx context.Context, cache string) (*programs, map[name.Tag]v1.Image, error) {
	programs, err := build(ctx, cache)
	if err != nil {
		return nil, nil, err
	}
	names, err := programs.images(ctx)
	if err != nil {
		return nil, nil, err
	}
	say("making the images; the first time this takes some 2 minutes")
	standIns, err := images.ForSuite(ctx, images.Suite{
		Images: names, Programs: programs.dir, Source: programs.source, Cache: cache,
	})
	return programs, standIns, err
}

// open makes all that the suite needs. A lab that is returned with an error is to be closed, too.
func open(ctx context.Context, o options, parts []part) (*lab, error) {
	programs, standIns, err := prepare(ctx, o.cache)
	if err != nil {
		return nil, err
	}
	l := &lab{parts: parts}
	if l.images, err = registry.New(ctx, standIns); err != nil {
		return nil, err
	}
	say("starting %d servers and %d agents", servers, agents)
	started, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	size := clustertest.Options{Servers: servers, Agents: agents, Registry: l.images}
	outside := o.others != "" || o.labels != "" // of conformance
	if outside {
		size.ServerArgs = othersArgs
	}
	if l.cluster, err = clustertest.Up(started, size); err != nil {
		return l, err
	}
	l.suite = suite{programs: programs, kubeconfig: l.cluster.Kubeconfig(), out: o.out}
	say("pulling the images")
	tags := slices.Collect(maps.Keys(standIns))
	if err := pull(ctx, l.cluster.Client, l.cluster.Nodes(), tags); err != nil {
		return l, err
	}
	if outside {
		if err := spread(ctx, l.cluster.Client, l.cluster.Nodes()); err != nil {
			return l, err
		}
		if err := makePool(ctx, l.cluster); err != nil {
			return l, err
		}
	}
	has, err := present(ctx, l.cluster.Client, parts)
	if err != nil {
		return l, err
	}
	l.absent = absent(parts, has)
	return l, nil
}

// close removes everything but the nodes' logs, which it moves to the directory.
func (l *lab) close(out string) error {
	var err error
	if l.cluster != nil {
		for _, n := range l.cluster.Nodes() {
			err = errors.Join(err, suiterun.CopyFile(l.cluster.LogFile(n), filepath.Join(out, n+".log")))
		}
		err = errors.Join(err, l.cluster.Down())
	}
	return errors.Join(err, l.images.Close())
}

// tried has the results of specs that ran.
type tried struct {
	first   []spec   // as they were reported before some ran once more
	again   []spec   // those that ran once more
	reports []string // names of the files
	took    time.Duration
}

// twice runs the selected specs, and those that failed once more, fewer at a time and by another
// name. With the error of an interruption it returns the outcomes until then.
func (l *lab) twice(ctx context.Context, which selection, more string) (t tried, err error) {
	say("running the specs, %d at a time", which.procs)
	began := time.Now()
	t.reports = []string{which.name + ".json"}
	if t.first, err = l.run(ctx, which); err != nil {
		return t, err
	}
	if names := failures(t.first, l.absent); len(names) > 0 {
		// A spec that fails for good mostly waits, for up to ten minutes: one at a time, they would
		// take longer than all the others.
		procs := (which.procs + 1) / 2
		say("running the %d that failed once more, %d at a time", len(names), procs)
		t.reports = append(t.reports, more+".json")
		t.again, err = l.run(ctx, selection{name: more, labels: which.labels, focus: exactly(names), procs: procs})
		if err != nil {
			return t, err
		}
		if n := ran(t.again); n != len(names) {
			return t,
				fmt.Errorf("%d specs were to run once more, %d did; see %s.log in %s", len(names), n, more, l.suite.out)
		}
	}
	t.took = time.Since(began)
	fmt.Printf("\nreports and logs are in %s\n", l.suite.out)
	return t, nil
}

// judge makes results of the outcomes of specs, and prints them.
func (l *lab) judge(t tried) []result {
	results := judge(t.first, t.again, l.absent)
	summarize(os.Stdout, results)
	return results
}

// labelled runs the specs with the labels. Those that need a part that the cluster lacks run, too.
func (l *lab) labelled(ctx context.Context, o options) error {
	t, err := l.twice(ctx, selection{name: "labelled", labels: o.labels, procs: o.procs}, "labelled-again")
	results := l.judge(t)
	if err != nil {
		return err
	}
	return allPassed(results)
}

// allPassed is an error unless all have passed.
func allPassed(results []result) error {
	if n := len(results) - len(with(results, passed)); n > 0 {
		return fmt.Errorf("%d of %d specs did not pass", n, len(results))
	}
	return nil
}

// all runs the specs that need nothing which the cluster lacks, then once more and fewer at a time
// those that failed, and writes the page if no spec of it is lost.
func (l *lab) all(ctx context.Context, o options, once []string) error {
	t, err := l.twice(ctx, selection{name: "first", skip: anyOf(l.absent), procs: o.procs}, "again")
	if err != nil {
		return err
	}
	results := l.judge(t)
	if err := refuse(lost(once, results), o.page); err != nil {
		return err
	}
	version, err := suiterun.BarqueVersion(ctx)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	artefacts, err := suiterun.Describe(l.suite.out, t.reports...)
	if err != nil {
		return err
	}
	text, err := update(string(page), run{
		Barque: version, Suite: l.suite.programs.version, Servers: servers, Agents: agents, Date: time.Now().UTC(),
		Took: t.took, Artefacts: artefacts,
	}, results)
	if err != nil {
		return fmt.Errorf("%s stays as it was: %w", o.page, err)
	}
	if err := os.WriteFile(o.page, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Printf("written: %s\n", o.page)
	if wrong := unused(l.parts, t.first); len(wrong) > 0 {
		return fmt.Errorf("parts.tsv has lines that no spec matches: %s", strings.Join(wrong, ", "))
	}
	return nil
}

// some runs the specs that match, one at a time and in full. Those that need a part that the
// cluster lacks run, too.
func (l *lab) some(ctx context.Context, o options, once []string) error {
	specs, err := l.run(ctx, selection{name: "only", labels: o.labels, focus: o.only, procs: 1, verbose: true})
	if err != nil {
		return err
	}
	specs = slices.DeleteFunc(specs, func(s spec) bool { return !s.ran() })
	if len(specs) == 0 {
		return fmt.Errorf("no spec has run: none has a name that matches %q", o.only)
	}
	results := judge(specs, nil, l.absent)
	fmt.Println()
	for _, r := range results {
		fmt.Printf("%s: %s\n", r.Spec, r.outcome())
	}
	fmt.Printf("\n%s\nreports and logs are in %s\n", table(results), l.suite.out)
	if err := refuse(lost(once, results), "the page"); err != nil {
		return err
	}
	return allPassed(results)
}

// failures are the names of the specs that failed, without those that do not count.
func failures(specs []spec, absent []part) []string {
	var out []string
	for _, s := range specs {
		if s.ran() && s.State != "passed" && missing(absent, s.Name) == "" {
			out = append(out, s.Name)
		}
	}
	return out
}

// ran counts the specs that were not left out.
func ran(specs []spec) (n int) {
	for _, s := range specs {
		if s.ran() {
			n++
		}
	}
	return n
}

// exactly is a regular expression for the specs with these names. Ginkgo matches it against the
// suite's description, a space, and the name.
func exactly(names []string) string {
	var quoted []string
	for _, n := range names {
		quoted = append(quoted, regexp.QuoteMeta(n))
	}
	return "(?:^| )(?:" + strings.Join(quoted, "|") + ")$"
}

// refuse is an error when specs are lost.
func refuse(lost []result, page string) error {
	if len(lost) == 0 {
		return nil
	}
	var b strings.Builder
	for _, r := range lost {
		fmt.Fprintf(&b, "\n  %s: %s", r.Spec, r.outcome())
	}
	return fmt.Errorf("%d specs that %s lists as passed did not pass; mend that, or take them off its list:%s",
		len(lost), page, b.String())
}

// summarize prints the specs that did not simply pass, and the table.
func summarize(w io.Writer, results []result) {
	fmt.Fprintln(w)
	for _, r := range results {
		if r.Verdict == failed || r.Verdict == notReached || r.Retried {
			fmt.Fprintf(w, "%s: %s\n", r.Spec, r.outcome())
		}
	}
	parts := map[string]int{}
	for _, r := range with(results, leftOut) {
		parts[r.Part]++
	}
	for _, p := range slices.Sorted(maps.Keys(parts)) {
		fmt.Fprintf(w, "left out, since the cluster has no %s: %d\n", p, parts[p])
	}
	fmt.Fprintf(w, "\n%s", table(results))
}
