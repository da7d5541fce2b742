// Command conformance runs the [Conformance] specs of Kubernetes' own e2e suite, unmodified,
// against a dev cluster. It keeps the results in docs/conformance.md, which says how to read them.
// With -others it runs ordinary specs outside of conformance, and keeps their results there, too.
// With -labels it runs any specs of the suite, and only prints their results.
//
// The suite is built from the module upstream/, which alone depends on k8s.io/kubernetes. Images
// are stand-ins (cluster-test/images), so no image registry is asked. parts.tsv says which specs
// wait for a part of Kubernetes that a cluster may lack, reasons.tsv which cannot run here.
//
// It is not for Barque's own promises: those have tests in cluster-test.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/suiterun"
)

// The size of the cluster: pods move between nodes that are servers and nodes that are not.
const (
	servers = 3
	agents  = 2
)

type options struct {
	only   string // regular expression; "" for all
	labels string // Ginkgo's filter; "" for the conformance specs
	others string // SIGs; "" for the conformance specs
	procs  int
	page   string
	out    string
	cache  string
	build  bool // nothing else
	resume bool // an interrupted run of others
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "run the specs whose names match this regular expression, one at a time, "+
		"with all that they say; the page stays as it is")
	flag.StringVar(&o.labels, "labels", "", "run the specs with these labels (a label filter of Ginkgo), such as "+
		"'Feature: containsAny NetworkPolicy', instead of the conformance specs; the page stays as it is")
	flag.StringVar(&o.others, "others", "",
		"run the ordinary specs outside of conformance of these SIGs, such as 'node,network' "+
			"or 'all', and write their part of the page")
	flag.IntVar(&o.procs, "procs", 6, "how many specs run at the same time")
	flag.StringVar(&o.page, "page", "docs/conformance.md", "the page that has the results")
	flag.StringVar(&o.out, "out", "bin/conformance-report", "directory for reports and logs")
	flag.StringVar(&o.cache, "cache", "", "directory for what is built once "+
		"(default: barque-conformance in the user's cache directory)")
	flag.BoolVar(&o.resume, "resume", false, "with -others: take up the interrupted run whose reports are in -out; "+
		"its specs that passed do not run again")
	flag.BoolVar(&o.build, "build-only", false, "build the suite and make the images, and start no cluster")
	clustertest.Main("conformance", func(ctx context.Context) error {
		flag.Parse()
		return conformance(ctx, o)
	})
}

func conformance(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 && !o.build {
		return errors.New("the cluster has network namespaces and containers: run this as root")
	}
	if o.procs < 1 {
		return errors.New("-procs: want one at least")
	}
	if o.resume && o.others == "" {
		return errors.New("-resume: only runs of -others are taken up again")
	}
	if _, err := regexp.Compile(o.only); err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	once, err := passing(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", o.page, err)
	}
	parts, err := parseParts(partsTable)
	if err != nil {
		return err
	}
	if err := suiterun.Directories(&o.out, &o.cache, "barque-conformance"); err != nil {
		return err
	}
	if o.build {
		_, _, err := prepare(ctx, o.cache)
		return err
	}
	lab, err := open(ctx, o, parts)
	if lab != nil {
		defer func() { err = errors.Join(err, lab.close(o.out)) }()
	}
	if err != nil {
		return err
	}
	switch {
	case o.only != "":
		return lab.some(ctx, o, once)
	case o.others != "":
		return lab.others(ctx, o)
	case o.labels != "":
		return lab.labelled(ctx, o)
	}
	return lab.all(ctx, o, once)
}

// say prints progress.
func say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
