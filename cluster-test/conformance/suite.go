package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
)

// suite runs the specs against a cluster.
type suite struct {
	programs   *programs
	kubeconfig string
	out        string // directory for logs and reports
	kubeletDir string // of the nodes; "" for the suite's default
}

// selection says which specs run, and how.
type selection struct {
	name        string // of the files in the directory for logs and reports
	labels      string // a label filter of Ginkgo; "" for the conformance specs
	focus, skip string // regular expressions; "" for none
	// done are the names of specs that do not run: an interrupted run has their outcomes.
	done []string
	// wanted selects from the report; nil: all of conformance, or, with labels, those that ran.
	wanted  func(spec) bool
	procs   int
	verbose bool // all that the suite says goes to standard output, too
}

// limit ends a run whose specs hang. On two cores those of conformance take some 50 minutes, and
// 263 others took 35.
const limit = 8 * time.Hour

// filter is the label filter, and which specs of the report are asked for. Those without the labels
// and those that are left out for their names are skipped alike: only conformance specs are known
// by name.
func (s selection) filter() (string, func(spec) bool) {
	switch {
	case s.labels == "":
		return "Conformance", spec.conformance
	case s.wanted != nil:
		return s.labels, s.wanted
	}
	return s.labels, spec.ran
}

// patience is the time that interrupted specs have to clean up and the suite to write its report.
const patience = 3 * time.Minute

// run runs the selected specs and returns them; of the conformance specs it returns all, those that
// it left out as skipped. With the error of an interruption it returns the specs until then, too.
func (s suite) run(ctx context.Context, which selection) ([]spec, error) {
	// kubectl keeps what it has discovered below HOME; some specs write temporary files.
	home, err := os.MkdirTemp("", "barque-conformance-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(home)
	report := filepath.Join(s.out, which.name+".json")
	if err := os.Remove(report); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	log, err := os.Create(filepath.Join(s.out, which.name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	labels, wanted := which.filter()
	args := []string{
		fmt.Sprintf("--procs=%d", which.procs), "--no-color", "--timeout=" + limit.String(),
		"--output-dir=" + s.out, "--json-report=" + which.name + ".json",
		"--label-filter=" + labels, "--silence-skips",
	}
	if which.focus != "" {
		args = append(args, "--focus="+which.focus)
	}
	if which.skip != "" {
		args = append(args, "--skip="+which.skip)
	}
	// One argument of a program has 128 KiB at most.
	for names := range slices.Chunk(which.done, 200) {
		args = append(args, "--skip="+exactly(names))
	}
	if which.verbose {
		args = append(args, "-v")
	}
	args = append(args, filepath.Join(s.programs.dir, "e2e.test"), "--",
		"--kubeconfig="+s.kubeconfig, "--kubectl-path="+filepath.Join(s.programs.dir, "kubectl"), "--provider=skeleton",
		// The suite would begin with lists of ReplicationControllers and DaemonSets.
		"--minStartupPods=-1", "--system-daemonsets-startup-timeout=1s",
		"--max-nodes-to-gather-from=0", "--num-nodes="+strconv.Itoa(servers+agents))
	if s.kubeletDir != "" {
		args = append(args, "--kubelet-root-dir="+s.kubeletDir)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs.dir, "ginkgo"), args...)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home)
	progress := &counter{}
	cmd.Stdout = io.MultiWriter(log, progress)
	if which.verbose {
		cmd.Stdout = io.MultiWriter(log, os.Stdout)
	}
	cmd.Stderr = cmd.Stdout
	// It is process 1 of a namespace: all that it has started ends with it, and it ends with us.
	// Not with our process group: Ctrl-C is for us first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Its group gets the interrupt, as from a terminal: the workers end their specs, too.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = patience
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends that has started the process
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the suite: %w", err)
	}
	done := make(chan struct{})
	if !which.verbose {
		go progress.tell(done) // until the suite has ended
	}
	ended := cmd.Wait() // not zero when a spec has failed: the report counts
	close(done)
	interrupted := context.Cause(ctx)
	file, err := os.Open(report)
	if err != nil {
		if interrupted != nil {
			return nil, interrupted
		}
		return nil, fmt.Errorf("the suite has written no report (%v); its last words:\n%s",
			ended, clustertest.Tail(log.Name(), 20))
	}
	defer file.Close()
	specs, err := readReport(file, wanted)
	if err != nil {
		return nil, errors.Join(interrupted, fmt.Errorf("%w; see %s", err, log.Name()))
	}
	return specs, interrupted
}

// counter counts the specs that have ended by the marks that Ginkgo writes.
type counter struct {
	done, failed atomic.Int64
	rest         []byte // the end of the written text, in which a mark may have begun
}

var (
	doneMark   = []byte("•")
	failedMark = []byte("• [FAILED]")
)

func (c *counter) Write(p []byte) (int, error) {
	data := append(c.rest, p...)
	c.done.Add(int64(bytes.Count(data, doneMark) - bytes.Count(c.rest, doneMark)))
	c.failed.Add(int64(bytes.Count(data, failedMark)))
	c.rest = bytes.Clone(data[max(0, len(data)-len(failedMark)+1):])
	return len(p), nil
}

func (c *counter) tell(done <-chan struct{}) {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			say("%d specs have ended, %d of them failed", c.done.Load(), c.failed.Load())
		}
	}
}
