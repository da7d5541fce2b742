// Package procstat reads what the kernel tells of a process in /proc/PID (proc_pid_stat(5), proc_pid_cmdline(5)).
//
// A process that a thread other than the first starts anew (execve(2)) lives all the time, and does not look like it: its first
// thread is dead until the one that called takes its place, who looks at that moment sees a thread that is being taken away, and
// there are no arguments from then on until the new program is in memory. All answers here are those of a process that lives.
package procstat

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stat is a part of /proc/PID/stat.
type Stat struct {
	// State is that of the first thread: 'R', 'S', 'T' when it is stopped by a signal, 'Z' when it has ended, 'X' when it is being
	// taken away.
	State byte
	// Threads is how many there are.
	Threads int
	// Started is when the process started, in clock ticks since boot. With the pid it names one process for ever.
	Started uint64

	flags uint64 // PF_* of the kernel's include/linux/sched.h
}

// looks is how often a process is looked at that seems to be gone. A look that began before its first thread was replaced finds
// one without threads, or none at all; the next finds what has taken its place, unless that is replaced, too.
const looks = 3

// Read returns it, or an error that is fs.ErrNotExist when there is no such process.
func Read(pid int) (Stat, error) { return read(pid, os.ReadFile) }

func read(pid int, file func(string) ([]byte, error)) (s Stat, err error) {
	for range looks {
		var data []byte
		if data, err = fileOf(pid, "stat", file); err == nil {
			if s, err = parse(data); err != nil {
				return s, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
			}
		}
		if err == nil && s.Threads > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return s, err
}

// fileOf reads a file of a process.
func fileOf(pid int, name string, file func(string) ([]byte, error)) ([]byte, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, name)
	data, err := file(path)
	if errors.Is(err, unix.ESRCH) { // it ended after the file was opened
		err = &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	return data, err
}

func parse(data []byte) (s Stat, err error) {
	// The command, the second field, may have spaces and brackets; what follows the last bracket has none.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return Stat{}, fmt.Errorf("it has %d fields after the command, want 20 at least", len(fields))
	}
	s.State = fields[0][0]
	if s.flags, err = strconv.ParseUint(fields[6], 10, 64); err != nil {
		return Stat{}, fmt.Errorf("the flags: %w", err)
	}
	if s.Threads, err = strconv.Atoi(fields[17]); err != nil {
		return Stat{}, fmt.Errorf("the number of threads: %w", err)
	}
	if s.Started, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return Stat{}, fmt.Errorf("the start: %w", err)
	}
	return s, nil
}

// Runs tells whether the process has not ended; one that nobody has waited for yet has.
func (s Stat) Runs() bool { return s.Threads > 1 || s.State != 'Z' && s.State != 'X' }

// Stopped tells whether it is stopped by a signal.
func (s Stat) Stopped() bool { return s.State == 'T' }

// kernelThread tells whether the process is a part of the kernel: it never has arguments.
func (s Stat) kernelThread() bool {
	const PF_KTHREAD = 0x00200000
	return s.flags&PF_KTHREAD != 0
}

// execPatience is how long the arguments of a process are waited for while it starts anew: a program that is not in memory is read
// from the disk.
const execPatience = time.Second

// Args returns the arguments of a process, none of a kernel thread; its error is fs.ErrNotExist when there is no such process, or
// it has ended.
func Args(pid int) ([]string, error) {
	for end := time.Now().Add(execPatience); ; {
		line, err := commandLine(pid)
		if len(line) > 0 {
			return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		stat, err := Read(pid)
		switch {
		case err != nil:
			return nil, err
		case !stat.Runs():
			return nil, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
		case stat.kernelThread(), time.Now().After(end):
			return nil, nil
		}
		<-time.After(time.Millisecond)
	}
}

// commandLine returns what the kernel tells of the arguments: nothing of a thread that is dead, so that others are asked when the
// first is.
func commandLine(pid int) ([]byte, error) {
	line, err := fileOf(pid, "cmdline", os.ReadFile)
	if err != nil || len(line) > 0 {
		return line, err
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, thread := range threads {
		// One that is gone by now has no line.
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/cmdline", pid, thread.Name())); len(line) > 0 {
			return line, nil
		}
	}
	return nil, err
}
