// Command operators runs programs of other authors, as these ship them, on a dev cluster: the
// manifests or charts of a pinned release, and images of their own programs. Each has a scenario
// that ends in a fact. The fact must hold after the installation, while the leader is killed and
// started again, and after all machines were restarted. The results go to docs/operators.md.
//
// A program is data and a scenario (see program). Package workshop builds it from its Go module,
// with the go.mod of its authors; its manifests are those in the module. A registry on the loopback
// of each node serves the images under the names that the manifests have. Nothing else is asked.
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
	"github.com/barque/barque/cluster-test/operators/workshop"
	"github.com/barque/barque/cluster-test/suiterun"
)

type options struct {
	only      string // regular expression; "" for all
	buildOnly bool
	page      string
	out       string
	cache     string
}

func main() {
	var o options
	flag.StringVar(&o.only, "only", "",
		"run the programs whose names match this regular expression; the page stays as it is")
	flag.BoolVar(&o.buildOnly, "build-only", false, "build the programs and end")
	flag.StringVar(&o.page, "page", "docs/operators.md", "the page that has the results")
	flag.StringVar(&o.out, "out", "bin/operators-report", "directory for the state of what failed, and logs")
	flag.StringVar(&o.cache, "cache", "",
		"directory for what is built once (default: barque-operators in the user's cache directory)")
	clustertest.Main("operators", func(ctx context.Context) error {
		flag.Parse()
		return operators(ctx, o)
	})
}

func operators(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the cluster has network namespaces and containers: run this as root")
	}
	only, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	var chosen []program
	for _, p := range programs {
		if only.MatchString(p.name) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-only: no program has a name that matches %q", o.only)
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return fmt.Errorf("%w; run this in the root of Barque's source", err)
	}
	if err := suiterun.Directories(&o.out, &o.cache, "barque-operators"); err != nil {
		return err
	}
	w := workshop.New(o.cache, say)
	var orders []workshop.Order
	for _, p := range chosen {
		orders = append(orders, p.order())
	}
	if err := w.Build(ctx, orders); err != nil || o.buildOnly {
		return err
	}
	began := time.Now()
	results, err := play(ctx, o, w, chosen)
	if len(results) > 0 {
		fmt.Printf("\n%s\n", table(results)) // also of a cluster that broke, or left something behind
	}
	if err != nil {
		return errors.Join(err, failures(results))
	}
	if o.only == "" {
		version, err := barqueVersion(ctx)
		if err != nil {
			return err
		}
		text, err := update(string(page), run{Barque: version, Date: began.UTC(), Took: time.Since(began)}, results)
		if err != nil {
			return fmt.Errorf("%s stays as it was: %w", o.page, err)
		}
		if err := os.WriteFile(o.page, []byte(text), 0o644); err != nil {
			return err
		}
		fmt.Println("written:", o.page)
	}
	return failures(results)
}

// say prints a line of progress.
func say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
