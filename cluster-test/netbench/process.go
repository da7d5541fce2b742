package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/cluster-test/netspace"
	"github.com/barque/barque/cluster-test/sides"
)

// process is a program that runs in a network namespace.
type process struct {
	cmd     *exec.Cmd
	log     string
	began   time.Time
	ended   chan struct{}
	patient time.Duration // how long it may take to end
}

// start starts a program. Its output is in a file of the directory.
func start(in netspace.Space, work, name, program string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), log: filepath.Join(work, name+".log"),
		ended: make(chan struct{}), patient: 20 * time.Second}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// sent when the thread ends that has started it
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.began = time.Now()
	started := make(chan error, 1)
	go func() { // ends with the process
		defer close(p.ended)
		defer log.Close()
		err := in.Do(func() error {
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

// stop ends it and waits until it has.
func (p *process) stop() error {
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

// await repeats a check until it succeeds.
func (p *process) await(ctx context.Context, check func() error) error {
	err := kubeapiserver.Retry(ctx, p.ended, check)
	if err != nil {
		said, _ := os.ReadFile(p.log)
		err = fmt.Errorf("%s: %w: %s", filepath.Base(p.cmd.Path), err, said[max(0, len(said)-2000):])
	}
	return err
}

// use is the use of the process, with its children that have ended.
func (p *process) use() (sides.Usage, error) {
	select {
	case <-p.ended:
		return sides.Usage{}, errors.New("it has ended")
	default:
	}
	u, err := sides.Process(p.cmd.Process.Pid)
	u.CPU += u.Children
	return u, err
}
