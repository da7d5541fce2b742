// Package procstat reads the kernel's data about a process in /proc/PID (proc(5)).
//
// A process lives as long as one of its threads does, and /proc/PID is about the first of them.
// While that is dead and others are not, most of the data are with the others only. That is
// permanent in a program that ends its first thread. It is temporary when another thread starts a
// new program (execve(2)), until it takes the first one's place. A reader at that moment may see a
// thread under removal, and there are no arguments until the new program is in memory. The answers
// here are those of the process.
package procstat

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stat is a part of /proc/PID/stat (proc_pid_stat(5)).
type Stat struct {
	// State is that of the first thread: 'R', 'S', 'T' when it is stopped by a signal, 'Z' when it
	// has ended, 'X' when it is being taken away.
	State byte
	// Threads is how many there are.
	Threads int
	// Started is when the process started, in clock ticks since boot. With the pid it names one
	// process for ever.
	Started uint64

	flags uint64
	// argsAt is where in its memory the arguments of the process were laid; 0 when they are not
	// yet, or this process may not see it.
	argsAt uint64
}

// Flags of a thread, from the kernel's include/linux/sched.h.
const (
	flagExiting      = 0x00000004 // PF_EXITING
	flagKernelThread = 0x00200000 // PF_KTHREAD
)

// looks is how often a process is looked at that seems to be gone. A look that began before its
// first thread was replaced finds one without threads, or none at all; the next finds what has
// taken its place, unless that is replaced, too.
const looks = 3

// All returns the numbers of all processes.
func All() (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Read returns it, or an error that is fs.ErrNotExist when there is no such process.
func Read(pid int) (Stat, error) { return read(pid, os.ReadFile) }

func read(pid int, file func(string) ([]byte, error)) (s Stat, err error) {
	for range looks {
		s, err = stat(filepath.Join(directory(pid), "stat"), file)
		if err == nil && s.Threads > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return s, err
}

func directory(pid int) string { return filepath.Join("/proc", strconv.Itoa(pid)) }

// stat reads the file "stat" of a process or of a thread.
func stat(path string, file func(string) ([]byte, error)) (Stat, error) {
	data, err := file(path)
	if err != nil {
		return Stat{}, orGone(err)
	}
	s, err := parse(data)
	if err != nil {
		return Stat{}, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

// orGone returns fs.ErrNotExist for what the kernel says of a process that ended after its file was
// opened.
func orGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	}
	return err
}

func parse(data []byte) (s Stat, err error) {
	// The command, the second field, may have spaces and brackets; what follows the last bracket
	// has none.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 47 {
		return Stat{}, fmt.Errorf("it has %d fields after the command, want 47 at least", len(fields))
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
	var args [2]uint64 // from where to where: the end is told last
	for i := range args {
		if args[i], err = strconv.ParseUint(fields[45+i], 10, 64); err != nil {
			return Stat{}, fmt.Errorf("the place of the arguments: %w", err)
		}
	}
	if args[0] < args[1] {
		s.argsAt = args[0]
	}
	return s, nil
}

// Runs tells whether the process has not ended; one that nobody has waited for yet has.
func (s Stat) Runs() bool { return s.Threads > 1 || s.State != 'Z' && s.State != 'X' }

// Stopped tells whether the process is stopped by a signal, as far as its first thread shows it.
func (s Stat) Stopped() bool { return s.State == 'T' }

// execPatience is how long the arguments of a process are waited for while it starts anew: a
// program that is not in memory is read from the disk.
const execPatience = time.Second

// Args returns the arguments of a process. It has none when it is a kernel thread, has removed
// them, or goes on starting anew for a whole second. The error is fs.ErrNotExist when there is no
// such process, or it is ending.
func Args(pid int) ([]string, error) {
	var laid uint64 // where they were at the look before
	for end := time.Now().Add(execPatience); ; <-time.After(time.Millisecond) {
		var line []byte
		err := ask(pid, func(dir string) (err error) {
			if line, err = readAtOnce(filepath.Join(dir, "cmdline")); err == nil && len(line) == 0 {
				err = fs.ErrNotExist
			}
			return err
		})
		if err == nil {
			return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		var thread Stat
		err = ask(pid, func(dir string) (err error) {
			thread, err = alive(dir)
			return err
		})
		if err != nil || thread.flags&flagKernelThread != 0 || time.Now().After(end) {
			return nil, err
		}
		// Twice in the same place, and not there: they were removed. Once is not enough, they may
		// be another program's.
		if laid != 0 && laid == thread.argsAt {
			return nil, nil
		}
		laid = thread.argsAt
	}
}

// readAtOnce reads a file in one call: between two of them a process may have begun another
// program.
func readAtOnce(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for size := 4 << 10; ; size *= 8 {
		data := make([]byte, size)
		n, err := f.Read(data)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if n < size {
			return data[:n], nil
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
	}
}

// Cgroups returns the lines of /proc/PID/cgroup of a process (cgroups(7)). While it is ending they
// tell the cgroup of version 2 only, and so they may once when it starts anew: the kernel finds a
// thread, waits for a lock, and tells of it when it is dead. The error is fs.ErrNotExist when there
// is no such process.
func Cgroups(pid int) (lines string, err error) {
	err = ask(pid, func(dir string) error {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err == nil {
			lines = string(data)
			_, err = alive(dir) // of one that is ending the kernel tells the root of version 1
		}
		return err
	})
	if lines != "" && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return lines, err
}

// WorkDir returns the working directory of a process. It is an error when there is no such process,
// or it is ending.
func WorkDir(pid int) (path string, err error) {
	err = ask(pid, func(dir string) (err error) {
		path, err = os.Readlink(filepath.Join(dir, "cwd"))
		return err
	})
	return path, err
}

// Presence is how much of a process is somewhere. Each of its threads is in namespaces of its own
// (namespaces(7)).
type Presence int

const (
	Absent Presence = iota // no thread is there
	Visits                 // some are, and others are elsewhere: for a moment, or for good
	Lives                  // all are
)

// InNetwork tells how much of a process is in the network namespace that a file leads to. One that
// is ending is in none; a thread of which the kernel does not tell, not even root of those of a
// machine's first process, counts for nothing.
func InNetwork(pid int, namespace fs.FileInfo) (Presence, error) {
	for range looks {
		threads, err := threads(pid)
		if err != nil {
			return Absent, err
		}
		here, elsewhere := 0, 0
		for _, dir := range threads {
			switch its, err := os.Stat(filepath.Join(dir, "ns/net")); {
			case err == nil && os.SameFile(its, namespace):
				here++
			case err == nil:
				elsewhere++
			case !gone(err):
				return Absent, err
			}
		}
		switch {
		case here > 0 && elsewhere > 0:
			return Visits, nil
		case here > 0:
			return Lives, nil
		case elsewhere > 0:
			return Absent, nil
		}
	}
	return Absent, nil
}

// alive reads the file "stat" in the directory of a thread; one that is ending is an error that is
// fs.ErrNotExist.
func alive(dir string) (Stat, error) {
	s, err := stat(filepath.Join(dir, "stat"), os.ReadFile)
	if err == nil && s.flags&flagExiting != 0 {
		err = fs.ErrNotExist
	}
	return s, err
}

// ask calls f with the directory of the first thread of a process in /proc, and when nothing is
// found there with those of the others, until f finds it. That f has found nothing is an error that
// is fs.ErrNotExist.
func ask(pid int, f func(dir string) error) (err error) {
	for range looks {
		if err = orGone(f(directory(pid))); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		threads, listErr := threads(pid)
		if listErr != nil {
			return listErr
		}
		for _, dir := range threads {
			if err := f(dir); !gone(err) {
				return err
			}
		}
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

// threads returns the directories of a process's threads in /proc; there are none when there is no
// such process.
func threads(pid int) (dirs []string, err error) {
	tasks := filepath.Join(directory(pid), "task")
	entries, err := os.ReadDir(tasks)
	if err = orGone(err); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, thread := range entries {
		dirs = append(dirs, filepath.Join(tasks, thread.Name()))
	}
	return dirs, nil
}

// gone tells whether an error is about a thread that has ended or is ending: some files of one that
// ends during the look may not be seen, says the kernel.
func gone(err error) bool {
	return errors.Is(orGone(err), fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}
