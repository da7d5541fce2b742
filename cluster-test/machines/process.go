package machines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/internal/syncbuf"
)

// Process is a command that runs in a machine.
type Process struct {
	cmd       *exec.Cmd
	script    string
	out, errs syncbuf.Buffer
	log       io.Closer // nil when the output is kept
	done      chan struct{}
	err       error // of waiting; read after done
}

// Result is the outcome of a command.
type Result struct {
	Out   string // standard output
	Err   string // standard error
	Code  int
	Error error // nil when the code is 0; names the command and has all that it said
}

// Start runs a line of shell in the machine's home directory, with the text as its standard input.
func (m *Machine) Start(stdin, script string) (*Process, error) {
	p := &Process{script: script}
	return p, m.start(p, stdin, &p.out, &p.errs)
}

// Serve is Start for a process that runs on; its output is added to the machine's log.
func (m *Machine) Serve(script string) (*Process, error) {
	log, err := os.OpenFile(m.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	// The shell becomes the command, so that the code is the command's also when a signal ends
	// both.
	p := &Process{script: "exec " + script, log: log}
	if err := m.start(p, "", log, log); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return p, nil
}

func (m *Machine) start(p *Process, stdin string, out, errs io.Writer) error {
	p.done = make(chan struct{})
	p.cmd = exec.Command("/bin/sh", "-c", p.script)
	p.cmd.Dir = Home
	p.cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + Home,
		"NO_COLOR=1"}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = strings.NewReader(stdin), out, errs
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 10 * time.Second // a grandchild may hold the pipes
	err := osthread.Do(func() error {
		if err := m.enter(); err != nil {
			return err
		}
		return p.cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("on %s: %s: %w", m.Name, p.script, err)
	}
	go func() { // ends with the process, at the latest when its machine is switched off
		defer close(p.done)
		p.err = p.cmd.Wait()
		if p.log != nil {
			p.err = errors.Join(p.err, p.log.Close())
		}
	}()
	return nil
}

// Run runs a line of shell to its end.
func (m *Machine) Run(ctx context.Context, stdin, script string) Result {
	p, err := m.Start(stdin, script)
	if err != nil {
		return Result{Code: -1, Error: err}
	}
	return p.Wait(ctx)
}

// Signal sends a signal to the process and its children, as a terminal does.
func (p *Process) Signal(s syscall.Signal) error {
	if err := syscall.Kill(-p.cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s: %w", p.script, err)
	}
	return nil
}

// Said is the output, on both streams, until now, if it was not served.
func (p *Process) Said() string { return p.out.String() + p.errs.String() }

// Done is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for its end. It is killed when the context ends.
func (p *Process) Wait(ctx context.Context) Result {
	var cut error
	select {
	case <-p.done:
	case <-ctx.Done():
		cut = errors.Join(context.Cause(ctx), p.Signal(syscall.SIGKILL))
		<-p.done
	}
	r := Result{Out: p.out.String(), Err: p.errs.String(), Code: p.cmd.ProcessState.ExitCode()}
	if p.err != nil || cut != nil {
		r.Error = fmt.Errorf("%s: %w\n%s%s", p.script, errors.Join(p.err, cut), r.Out, r.Err)
	}
	return r
}

// Stop asks it to end, as an init system does, and waits.
func (p *Process) Stop(ctx context.Context) Result {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return Result{Code: -1, Error: err}
	}
	return p.Wait(ctx)
}
