// Package clusterrun is the common part of the programs that break a whole cluster: its beginning
// and its end, and what is kept of a run that has failed.
package clusterrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/cluster-test/faultrun"
)

// ErrFailed is the end of a run in which a promise was broken.
var ErrFailed = errors.New("the cluster, or the harness, is at fault")

// Test runs the tests of a program, for its TestMain, and returns their exit code. It is to tests
// as clustertest.Main to programs.
func Test(tests interface{ Run() int }) int {
	clustertest.ReapIfAsked()
	klog.SetLogger(logr.Discard())
	code := tests.Run()
	if err := clustertest.Reap(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: the reaper:", err)
		code = 1
	}
	return code
}

// Run is a run on a cluster of its own.
type Run struct {
	faultrun.Run
	// Cluster is nil when it could not be made.
	Cluster *clustertest.Cluster
}

// On makes a cluster, calls begin within a time, and then work. The logs of a run that has failed
// are kept below a directory whose name has the program's. The error is about the run itself: that
// there was none. The faults of the cluster are in the failures of the run.
func (r *Run) On(ctx context.Context, program string, options clustertest.Options, within time.Duration,
	begin func(context.Context) error, work func(context.Context),
) (err error) {
	if disk.Possible() != nil {
		options.DiskMegabytes = 0
	}
	starting, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if r.Cluster, err = clustertest.Up(starting, options); r.Cluster == nil {
		return err
	}
	defer func() {
		if r.Failed() || err != nil {
			r.keep(program)
		}
		if down := r.Cluster.Down(); down != nil { // its error names the leftovers
			r.Fail("remove the cluster: %v", down)
		}
	}()
	if err != nil {
		return fmt.Errorf("start the cluster: %w", err)
	}
	if err := begin(starting); err != nil {
		return err
	}
	work(ctx)
	return context.Cause(ctx)
}

// keep puts the logs and the state of the cluster aside.
func (r *Run) keep(program string) {
	dir, err := os.MkdirTemp("", "barque-"+program+"-failed-")
	if err != nil {
		r.Say("could not keep the logs: %v", err)
		return
	}
	for _, n := range r.Cluster.Nodes() {
		data, err := os.ReadFile(r.Cluster.LogFile(n))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, n+".log"), data, 0o600)
		}
		if err != nil {
			r.Say("could not keep the log of %s: %v", n, err)
		}
	}
	f, err := os.Create(filepath.Join(dir, "cluster.txt"))
	if err != nil {
		r.Say("could not keep the state of the cluster: %v", err)
		return
	}
	r.Cluster.Dump(f)
	f.Close()
	r.Say("logs of all nodes and the state of the cluster are in %s", dir)
}
