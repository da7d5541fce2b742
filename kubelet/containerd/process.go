package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/procstat"
)

// process has the fields of one entry of /proc that are needed here.
type process struct {
	pid     int
	started uint64 // with the pid it identifies one process
	args    []string
	cgroups []string // "controllers:path", one per hierarchy
}

// processes lists the running processes, without those that end meanwhile and those whose details
// the kernel does not show.
func processes() ([]process, error) {
	list, err := procstat.All()
	if err != nil {
		return nil, err
	}
	var all []process
	for _, pid := range list {
		p, err := readProcess(pid)
		switch {
		case err == nil:
			all = append(all, p)
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return nil, err
		}
	}
	return all, nil
}

// readProcess reads one process. Its error is fs.ErrNotExist when it is gone or has
// ended, so that no signal reaches it any more. One that is ending has no arguments.
func readProcess(pid int) (process, error) {
	stat, err := procstat.Read(pid)
	if err != nil {
		return process{}, err
	}
	if !stat.Runs() {
		return process{}, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
	}
	args, err := procstat.Args(pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return process{}, err
	}
	cgroups, err := procstat.Cgroups(pid)
	if err != nil {
		return process{}, err
	}
	p := process{pid: pid, started: stat.Started, args: args}
	for line := range strings.Lines(cgroups) {
		// "hierarchy-ID:controllers:path"
		if _, rest, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			p.cgroups = append(p.cgroups, rest)
		}
	}
	return p, nil
}

// hasFlag reports whether the arguments hold the flag with this value.
func (p process) hasFlag(flag, value string) bool {
	for i, arg := range p.args {
		if arg == flag && i+1 < len(p.args) && p.args[i+1] == value {
			return true
		}
	}
	return false
}

// isContainerd reports whether p is the containerd of this data directory.
func (p process) isContainerd(l layout) bool {
	return p.hasFlag("--config", l.config()) && slices.Contains(p.args, Command)
}

// isShim reports whether p is a shim of this data directory's containerd.
func (p process) isShim(l layout) bool {
	return len(p.args) > 0 && strings.HasSuffix(p.args[0], "containerd-shim-runc-v2") &&
		p.hasFlag("-address", l.socket())
}

// inCgroup reports whether p lives in a cgroup whose path want accepts.
func (p process) inCgroup(want func(path string) bool) bool {
	for _, line := range p.cgroups {
		if _, path, found := strings.Cut(line, ":"); found && want(path) {
			return true
		}
	}
	return false
}

// endProcess sends a signal and waits for the end. The pid cannot be taken over
// by another process in between: the descriptor holds on to this one.
func endProcess(ctx context.Context, p process, signal unix.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.pid, err)
	}
	defer unix.Close(fd)
	// Between the look and the open, the pid may have been reused.
	now, err := procstat.Read(p.pid)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now.Started != p.started {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	for {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(polled, 50)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", p.pid, err)
		case ctx.Err() != nil:
			return fmt.Errorf("process %d (%s) does not end: %w", p.pid, strings.Join(p.args, " "), context.Cause(ctx))
		}
	}
}

// stopLeftover ends a containerd of this data directory that an earlier Barque
// left running. Its pods are not touched.
func stopLeftover(ctx context.Context, l layout) error {
	all, err := processes()
	if err != nil {
		return err
	}
	for _, p := range all {
		if !p.isContainerd(l) || p.pid == os.Getpid() {
			continue
		}
		gently, cancel := context.WithTimeout(ctx, stopTimeout)
		err := endProcess(gently, p, unix.SIGTERM)
		cancel()
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		hard, cancel := context.WithTimeout(ctx, stopTimeout)
		err = endProcess(hard, p, unix.SIGKILL)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetEarlierBoot empties the state directory when the machine has booted
// since it was filled: no task, mount or pid in it exists any more, and a pid
// may belong to another process now.
func forgetEarlierBoot(l layout) error {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	boot := strings.TrimSpace(string(raw))
	mark := filepath.Join(l.dir, "boot-id")
	seen, err := os.ReadFile(mark)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if strings.TrimSpace(string(seen)) == boot {
		return nil
	}
	if err := removeUnmounted(l.state()); err != nil {
		return fmt.Errorf("clear the state of an earlier boot: %w", err)
	}
	return os.WriteFile(mark, []byte(boot+"\n"), 0o600)
}

// waitUntil polls a condition for which the kernel has no notification.
func waitUntil(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}
