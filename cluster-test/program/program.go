// Package program runs the programs that benchmarks measure: in network namespaces, each with a log
// of its own. They end with the benchmark, also when it is killed.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/sides"
	"github.com/barque/barque/internal/procstat"
)

// Program is one that runs.
type Program struct {
	Began time.Time

	cmd     *exec.Cmd
	log     string
	ended   chan struct{}
	patient time.Duration // how long it may take to end
}

// Start starts a program by a function that calls another one in a namespace, such as
// netspace.Space.Do. Its output is in a file of the directory.
func Start(in func(func() error) error, work, name string, cmd *exec.Cmd) (*Program, error) {
	p := &Program{cmd: cmd, log: filepath.Join(work, name+".log"), ended: make(chan struct{}),
		patient: 20 * time.Second}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// sent when the thread ends that has started it
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.Began = time.Now()
	started := make(chan error, 1)
	go func() { // ends with the process
		defer close(p.ended)
		defer log.Close()
		err := in(func() error {
			if err := p.cmd.Start(); err != nil {
				return err
			}
			started <- nil
			_ = p.cmd.Wait() // its message is in the log
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Stop ends it and waits until it has. Its children end with it.
func (p *Program) Stop() error {
	started := map[int]uint64{} // of the children: another process may get the number of one
	for _, pid := range p.family()[1:] {
		if stat, err := procstat.Read(pid); err == nil {
			started[pid] = stat.Started
		}
	}
	defer func() {
		for pid, when := range started {
			if stat, err := procstat.Read(pid); err == nil && stat.Started == when {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
		return nil
	case <-time.After(p.patient):
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
	return fmt.Errorf("%s did not end within %s", filepath.Base(p.cmd.Path), p.patient)
}

// Signal sends it a signal.
func (p *Program) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Await repeats a check until it succeeds.
func (p *Program) Await(ctx context.Context, check func() error) error {
	err := kubeapiserver.Retry(ctx, p.ended, check)
	if err != nil {
		said, _ := os.ReadFile(p.log)
		err = fmt.Errorf("%s: %w: %s", filepath.Base(p.cmd.Path), err, said[max(0, len(said)-2000):])
	}
	return err
}

// Use is the use of the process and of its children, those that have ended among them.
func (p *Program) Use() (total sides.Usage, err error) {
	select {
	case <-p.ended:
		return total, errors.New("it has ended")
	default:
	}
	for _, pid := range p.family() {
		u, err := sides.Process(pid)
		gone := errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
		if gone && pid != p.cmd.Process.Pid {
			continue // a child that has ended meanwhile, and counts with its parent
		}
		if err != nil {
			return total, err
		}
		total.CPU += u.CPU + u.Children
		total.Anonymous += u.Anonymous
		total.Writes += u.Writes
	}
	return total, nil
}

// family is the process, and then all that descend from it.
func (p *Program) family() []int {
	family := []int{p.cmd.Process.Pid}
	for i := 0; i < len(family); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", family[i]))
		for _, list := range lists {
			children, _ := os.ReadFile(list)
			for pid := range strings.FieldsSeq(string(children)) {
				if n, err := strconv.Atoi(pid); err == nil && !slices.Contains(family, n) {
					family = append(family, n)
				}
			}
		}
	}
	return family
}
