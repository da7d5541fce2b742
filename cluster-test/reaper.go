package clustertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A test binary that panics, exceeds its time or is killed runs no clean-up. So clusters
// are registered with a child process, which sees the end of the pipe between them when the
// test process is gone, however it went, and then removes the clusters that were not
// reported as removed.

// reaperVariable in the environment makes the test binary a reaper.
const reaperVariable = "BARQUE_CLUSTERTEST_REAPER"

// ReapIfAsked is called first in TestMain: in the reaper process it does the reaper's work and
// does not return.
func ReapIfAsked() {
	if os.Getenv(reaperVariable) == "" {
		return
	}
	clusters := map[string]string{} // directory by name
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == "expect" {
			clusters[f[1]] = f[2]
		} else if len(f) == 3 {
			delete(clusters, f[1])
		}
	}
	left := 0 // the exit code: 1 when a cluster is left behind
	for name, dir := range clusters {
		c := &Cluster{ID: name, Dir: dir}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		c.thawDisks()
		// Its maker may still be holding its lock for a moment.
		err := Poll(ctx, time.Minute,
			func(ctx context.Context) error { return c.DevResult(ctx, "down", "--name", name).Error })
		cancel()
		if err != nil {
			fmt.Fprintf(os.Stderr, "cluster %s in %s is left behind: %v\n", name, dir, err)
			left = 1
		}
		_ = os.RemoveAll(c.mirrors())
		_ = os.RemoveAll(c.images())
	}
	os.Exit(left)
}

// reaper is the one of this process.
var reaper reaperClient

type reaperClient struct {
	mu   sync.Mutex
	pipe io.WriteCloser
	cmd  *exec.Cmd
}

func (r *reaperClient) expect(c *Cluster) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pipe == nil {
		if err := r.start(); err != nil {
			return fmt.Errorf("start the reaper: %w", err)
		}
	}
	_, err := fmt.Fprintln(r.pipe, "expect", c.ID, c.Dir)
	return err
}

func (r *reaperClient) done(c *Cluster) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pipe != nil {
		fmt.Fprintln(r.pipe, "done", c.ID, c.Dir)
	}
}

func (r *reaperClient) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path, err := Binary()
	if err != nil {
		return err
	}
	r.cmd = exec.Command(self)
	r.cmd.Env = append(os.Environ(), reaperVariable+"=1", "BARQUE_BIN="+path)
	// A session of its own: Ctrl-C ends the tests, not the reaper.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.cmd.Stderr = os.Stderr
	if r.pipe, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	return r.cmd.Start()
}

// Reap ends the reaper in order; it removes the clusters that are left. For the end of TestMain.
func Reap() error {
	reaper.mu.Lock()
	defer reaper.mu.Unlock()
	if reaper.pipe == nil {
		return nil
	}
	if err := reaper.pipe.Close(); err != nil {
		return err
	}
	reaper.pipe = nil
	return reaper.cmd.Wait()
}
