package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/internal/procstat"
)

// Process is a process that may outlive its parent. The kernel reuses pids; together with the start
// time a pid identifies one process for ever.
type Process struct {
	PID int `json:"pid"`
	// Started is field 22 of /proc/PID/stat: clock ticks since boot.
	Started uint64 `json:"started"`
	// Log is where in its log file its words begin.
	Log int64 `json:"log,omitempty"`
}

// startTime returns when the process started and whether it still runs (a zombie does not).
func startTime(pid int) (ticks uint64, running bool) {
	stat, err := procstat.Read(pid)
	return stat.Started, err == nil && stat.Runs()
}

// Alive reports whether the process still runs.
func (p *Process) Alive() bool {
	if p == nil {
		return false
	}
	started, running := startTime(p.PID)
	return running && started == p.Started
}

// Paused reports whether the process is stopped by a signal.
func (p *Process) Paused() bool {
	if p == nil {
		return false
	}
	stat, err := procstat.Read(p.PID)
	return err == nil && stat.Started == p.Started && stat.Stopped()
}

// open returns a descriptor that stays with this process when its pid is reused. running is false
// when the process has ended.
func (p *Process) open() (fd int, running bool, err error) {
	if !p.Alive() {
		return 0, false, nil
	}
	fd, err = unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("process %d: %w", p.PID, err)
	}
	if !p.Alive() { // the process ended meanwhile, and the descriptor may be another's
		return 0, false, unix.Close(fd)
	}
	return fd, true, nil
}

func (p *Process) signal(s syscall.Signal) error {
	fd, running, err := p.open()
	if err != nil || !running {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// waitGone waits until the process has ended.
func (p *Process) waitGone(ctx context.Context) error {
	fd, running, err := p.open()
	if err != nil || !running {
		return err
	}
	defer unix.Close(fd)
	for p.Alive() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("process %d does not end: %w", p.PID, context.Cause(ctx))
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch process %d: %w", p.PID, err)
		}
	}
	return nil
}

// stop asks the process to end, and kills it after a while.
func (p *Process) stop(patience time.Duration) error {
	if err := errors.Join(p.signal(syscall.SIGTERM), p.signal(syscall.SIGCONT)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if p.waitGone(ctx) == nil {
		return nil
	}
	return p.kill()
}

// killPatience bounds the end of a killed process. The kernel first removes its mounts and memory,
// which takes a busy machine a while.
const killPatience = time.Minute

func (p *Process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	return p.waitGone(ctx)
}

// start runs the command detached from this process: its own session, output to the log file, in
// the network namespace if one is named.
func start(namespace, logFile string, command []string) (*Process, error) {
	if err := os.MkdirAll(filepath.Dir(logFile), 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	// The settings of this machine, if it is a node itself, are not those of the cluster's nodes.
	cmd.Env = append(os.Environ(), "BARQUE_CONFIG=none")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	begin := cmd.Start
	if namespace != "" {
		begin = func() error { return osthread.InNetwork(namespace, cmd.Start) }
	}
	if err := begin(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	started, _ := startTime(cmd.Process.Pid) // a process that has ended by now is found dead at the next look
	p := &Process{PID: cmd.Process.Pid, Started: started, Log: before.Size()}
	// Reaps the child while this process lives; after that init does.
	go func() { _ = cmd.Wait() }()
	return p, nil
}

// processesIn returns the processes in the named network namespace with at least that presence,
// without this process.
func processesIn(name string, least procstat.Presence) ([]*Process, error) {
	target, err := os.Stat(filepath.Join("/run/netns", name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return processesWhere(func(pid int) (bool, error) {
		there, err := procstat.InNetwork(pid, target)
		return there >= least, err
	})
}

// processesWhere returns the processes that match, this one excluded.
func processesWhere(match func(pid int) (bool, error)) ([]*Process, error) {
	all, err := procstat.All()
	if err != nil {
		return nil, err
	}
	var out []*Process
	for _, pid := range all {
		if pid == os.Getpid() {
			continue
		}
		// The start time is read first: if the pid is reused after it, the record matches no
		// process.
		started, running := startTime(pid)
		if !running {
			continue
		}
		matches, err := match(pid)
		if err != nil {
			return nil, err
		}
		if matches {
			out = append(out, &Process{PID: pid, Started: started})
		}
	}
	return out, nil
}
