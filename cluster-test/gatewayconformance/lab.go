package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/registry"
	"github.com/barque/barque/cluster-test/suiterun"
)

// profiles are the suite's names of those that the gateway is for.
var profiles = []string{"GATEWAY-HTTP", "GATEWAY-GRPC", "GATEWAY-TLS"}

// nodeArgs are those of the cluster: ports that the suite's Gateways have, beside 80 and 443.
var nodeArgs = []string{"--gateway-ports=80,443,8080,8090,8443,8883"}

const reportFile, eventsFile, logFile = "report.yaml", "events.json", "suite.log"

// limit ends a run that hangs.
const limit = 2 * time.Hour

// lab is a cluster on which the suite can run.
type lab struct {
	programs *programs
	cluster  *clustertest.Cluster
	images   *registry.Registry
	// addresses are for the suite's Gateways.
	addresses addresses
}

// open starts the cluster. A lab that is returned with an error is to be closed, too.
func open(ctx context.Context, o options, p *programs, standIns map[name.Tag]v1.Image) (*lab, error) {
	l := &lab{programs: p}
	var err error
	if l.images, err = registry.New(ctx, standIns); err != nil {
		return nil, err
	}
	say("starting a cluster: servers %d, agents %d", o.servers, o.agents)
	started, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	l.cluster, err = clustertest.Up(started, clustertest.Options{
		Servers: o.servers, Agents: o.agents, NodeArgs: nodeArgs, Registry: l.images,
	})
	if err != nil {
		return l, err
	}
	l.addresses, err = l.addressed(ctx)
	return l, err
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

// all runs all tests, and writes the page if no test of it is lost.
func (l *lab) all(ctx context.Context, o options, once []string) error {
	version, err := suiterun.BarqueVersion(ctx)
	if err != nil {
		return err
	}
	say("running the tests")
	began := time.Now()
	results, err := l.run(ctx, o.out, version, "-conformance-profiles="+strings.Join(profiles, ","))
	if err != nil {
		return err
	}
	took := time.Since(began)
	report, err := readReport(filepath.Join(o.out, reportFile))
	if err != nil {
		return err
	}
	summarize(os.Stdout, report, results)
	fmt.Printf("\nthe report and logs are in %s\n", o.out)
	if err := refuse(lost(once, results), o.page); err != nil {
		return err
	}
	files, err := suiterun.Describe(o.out, reportFile)
	if err != nil {
		return err
	}
	page, err := os.ReadFile(o.page)
	if err != nil {
		return err
	}
	text, err := update(string(page), run{
		Barque: version, Suite: l.programs.version, Servers: o.servers, Agents: o.agents, Date: began.UTC(), Took: took,
		Files: files,
	}, report, results)
	if err != nil {
		return fmt.Errorf("%s stays as it was: %w", o.page, err)
	}
	if err := os.WriteFile(o.page, []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Printf("written: %s\n", o.page)
	return nil
}

// one runs one test. The suite does not check then whether the GatewayClass has its features.
func (l *lab) one(ctx context.Context, o options) error {
	results, err := l.run(ctx, o.out, "", "-run-test="+o.only)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Name == o.only {
			fmt.Printf("\n%s: %s\nlogs are in %s\n", r.Name, r.outcome(), o.out)
			if r.Verdict != passed {
				return errors.New("the test did not pass")
			}
			return nil
		}
	}
	return fmt.Errorf("the suite has no test %q", o.only)
}

// run runs the suite and returns the results of its tests. With a version of Barque it writes a
// report, otherwise the output is shown.
//
// Tests do not run side by side: on this machine the cluster has two cores, and their time-outs are
// those of upstream.
func (l *lab) run(ctx context.Context, out, version string, args ...string) ([]result, error) {
	for _, f := range []string{reportFile, eventsFile, logFile} {
		if err := os.Remove(filepath.Join(out, f)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	args = append([]string{
		filepath.Join(l.programs.dir, "suite"), "-test.run=^TestConformance$", "-test.v=test2json",
		"-test.timeout=" + limit.String(),
		"-gateway-class=" + class, "-disable-parallel-tests",
		"-usable-address=" + l.addresses.usable.String(), "-unusable-address=" + l.addresses.unusable.String(),
	}, args...)
	if version != "" {
		args = append(args, "-report-output="+filepath.Join(out, reportFile), "-organization=barque", "-project=barque",
			"-url=https://github.com/barque/barque", "-version="+version,
			"-contact=https://github.com/barque/barque/issues")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(l.programs.dir, "test2json"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.cluster.Kubeconfig())
	events, err := os.Create(filepath.Join(out, eventsFile))
	if err != nil {
		return nil, err
	}
	defer events.Close()
	log, err := os.Create(filepath.Join(out, logFile))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	// As in make conformance: what it has started ends with it, and it ends with us. Ctrl-C is for
	// us first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends that has started the process
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the suite: %w", err)
	}
	to := io.Writer(log)
	if version == "" {
		to = io.MultiWriter(log, os.Stdout)
	}
	results, err := readEvents(io.TeeReader(bufio.NewReader(lines), events), to, version != "")
	ended := cmd.Wait() // not zero when a test has failed: the events count
	if interrupted := context.Cause(ctx); interrupted != nil {
		return nil, interrupted
	}
	if err != nil {
		return nil, fmt.Errorf("read the suite's output: %w; see %s", err, log.Name())
	}
	if len(results) == 0 {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			return nil, err
		}
		return nil,
			fmt.Errorf("the suite came to no test (%v): %s; see %s", ended, reason(string(text), nil), log.Name())
	}
	return results, nil
}
