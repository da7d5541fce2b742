package clustertest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/machines"
	"github.com/barque/barque/cluster-test/registry"
)

func TestMain(m *testing.M) {
	machines.InitIfAsked()
	ReapIfAsked()
	hearInterrupts()
	code := m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Down(); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: remove the shared cluster:", err)
			code = 1
		}
	}
	if err := Reap(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: the reaper:", err)
		code = 1
	}
	os.Exit(code)
}

// hearInterrupts lets the child processes receive Ctrl-C also when this process ignores it, as one
// does that a script has started with &: a command that is interrupted before it has set its
// handler would go on.
func hearInterrupts() {
	if signal.Ignored(syscall.SIGINT) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGINT) // a signal with a handler is not ignored after an exec
	}
}

// fastTimes make a cluster notice a dead node in seconds instead of minutes.
var fastTimes = []string{
	"--node-monitor-period=500ms",
	"--node-monitor-grace-period=4s",
	"--default-unreachable-toleration-seconds=3",
	"--node-eviction-rate=10",
}

// testRegistry is made once; its images take a while the first time.
var testRegistry = sync.OnceValues(func() (*registry.Registry, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	all, err := images.Build(ctx)
	if err != nil {
		return nil, err
	}
	return registry.New(ctx, all)
})

// shared is the cluster of most tests: three servers.
var shared struct {
	sync.Mutex
	cluster *Cluster
}

// sharedCluster returns the shared cluster, in good health: one that an earlier test has left ill
// is replaced, so that one fault does not fail all that comes after it.
func sharedCluster(t *testing.T) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if c := shared.cluster; c != nil {
		err := Poll(t.Context(), deadline, c.Healthy)
		if err == nil {
			return c
		}
		t.Logf("the shared cluster is ill, a new one is made: %v", err)
		if err := c.Down(); err != nil {
			t.Fatal(err)
		}
		shared.cluster = nil
	}
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := Up(ctx, Options{Servers: 3, NodeArgs: fastTimes, Registry: images})
	if err != nil {
		if c != nil {
			c.Dump(t.Output())
			if err := c.Down(); err != nil {
				t.Error(err)
			}
		}
		t.Fatal(err)
	}
	shared.cluster = c
	return c
}

// newSpace gives a test a namespace of the shared cluster.
func newSpace(t *testing.T) *Space {
	t.Helper()
	return NewSpace(t, sharedCluster(t))
}
