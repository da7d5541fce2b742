// Command gatewayconformance runs the Gateway API's own conformance suite, unmodified, against a
// dev cluster, and keeps the results in docs/conformance.md.
//
// The suite and its server are built from the module upstream/. Images are stand-ins (images.go).
// The suite asks the GatewayClass for the features that it is to test.
//
// It is not for Barque's own promises: those have tests in cluster-test and edge/gateway.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/suiterun"
)

type options struct {
	only  string // name of a test; "" for all
	page  string
	out   string
	cache string
	build bool // nothing else
	// The size of the cluster. By default backends are on servers and on an agent.
	servers, agents int
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "", "run the test with this name, with all that it says; the page stays as it is")
	flag.StringVar(&o.page, "page", "docs/conformance.md", "the page that has the results")
	flag.StringVar(&o.out, "out", "bin/conformance-gateway-report", "directory for the report and logs")
	flag.StringVar(&o.cache, "cache", "", "directory for what is built once "+
		"(default: barque-conformance-gateway in the user's cache directory)")
	flag.IntVar(&o.servers, "servers", 3, "how many servers the cluster has")
	flag.IntVar(&o.agents, "agents", 1, "how many agents the cluster has")
	flag.BoolVar(&o.build, "build-only", false, "build the suite and make the images, and start no cluster")
	clustertest.Main("gatewayconformance", func(ctx context.Context) error {
		flag.Parse()
		return conformance(ctx, o)
	})
}

func conformance(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 && !o.build {
		return errors.New("the cluster has network namespaces and containers: run this as root")
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return fmt.Errorf("%w; run this in the root of Barque's source", err)
	}
	once, err := section.List(string(page), passedHeading)
	if err != nil {
		return fmt.Errorf("%s: %w", o.page, err)
	}
	if err := suiterun.Directories(&o.out, &o.cache, "barque-conformance-gateway"); err != nil {
		return err
	}
	p, standIns, err := prepare(ctx, o.cache)
	if err != nil || o.build {
		return err
	}
	lab, err := open(ctx, o, p, standIns)
	if lab != nil {
		defer func() { err = errors.Join(err, lab.close(o.out)) }()
	}
	if err != nil {
		return err
	}
	if o.only != "" {
		return lab.one(ctx, o)
	}
	return lab.all(ctx, o, once)
}

// say prints progress.
func say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
