// Package procstat reads the kernel's data about a process in /proc/PID (proc(5)).
//
// A process lives as long as one of its threads does, and /proc/PID shows the first thread. When
// only that thread is dead, most of the data are with the others. In a program that ends its first
// thread this is permanent. It is temporary when another thread starts a new program (execve(2)),
// until that thread takes the first one's place. A reader at that moment may see a thread under
// removal, and no arguments before the new program is in memory. The functions here return the data
// of the whole process.
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
	// State is the state of the first thread: 'R', 'S', 'T' when a signal has stopped it, 'Z' when
	// it has ended, 'X' while the kernel removes it.
	State byte
	// Threads is the number of threads.
	Threads int
	// Started is the start of the process, in clock ticks since boot. With the pid it identifies
	// one process for ever.
	Started uint64

	flags uint64
	// argsAt is the address of the arguments; 0 when they are not there yet, or this process may
	// not see it.
	argsAt uint64
}

// Flags of a thread, from the kernel's include/linux/sched.h.
const (
	flagExiting      = 0x00000004 // PF_EXITING
	flagKernelThread = 0x00200000 // PF_KTHREAD
)

// looks is how often a process that seems to be gone is read. A read that began before the first
// thread was replaced finds no threads, or no process. The next read finds the replacement, unless
// that is replaced too.
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

// Read returns the Stat of a process. The error is fs.ErrNotExist when it does not exist.
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

// orGone returns fs.ErrNotExist for the kernel's errors about a process that ended after its file
// was opened.
func orGone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	}
	return err
}

func parse(data []byte) (s Stat, err error) {
	// The command, the second field, may have spaces and brackets; the fields after the last
	// bracket have none.
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
	var args [2]uint64 // the addresses of begin and end; the end comes last in the line
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

// Runs reports whether the process runs. A zombie has ended.
func (s Stat) Runs() bool { return s.Threads > 1 || s.State != 'Z' && s.State != 'X' }

// Stopped reports whether a signal has stopped the process, by its first thread.
func (s Stat) Stopped() bool { return s.State == 'T' }

// execPatience bounds the wait for the arguments of a process during an execve: the program may
// have to be read from the disk.
const execPatience = time.Second

// Args returns the arguments of a process. A kernel thread has none, nor a process that has removed
// them, or executes itself again for a whole second. The error is fs.ErrNotExist when the process
// does not exist or is ending.
func Args(pid int) ([]string, error) {
	var laid uint64 // their address at the last read
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
		// At the same address twice, and empty: they were removed. Once may be another program's.
		if laid != 0 && laid == thread.argsAt {
			return nil, nil
		}
		laid = thread.argsAt
	}
}

// readAtOnce reads a file in one call: between two calls the process may have started another
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

// Cgroups returns the lines of /proc/PID/cgroup of a process (cgroups(7)). While the process ends
// they have the cgroup of version 2 only. So they may once during an execve: the kernel finds a
// thread, waits for a lock, and answers when the thread is dead. The error is fs.ErrNotExist when
// the process does not exist.
func Cgroups(pid int) (lines string, err error) {
	err = ask(pid, func(dir string) error {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err == nil {
			lines = string(data)
			_, err = alive(dir) // of an ending process the kernel shows the root of version 1
		}
		return err
	})
	if lines != "" && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return lines, err
}

// WorkDir returns the working directory of a process. It fails when the process does not exist or
// is ending.
func WorkDir(pid int) (path string, err error) {
	err = ask(pid, func(dir string) (err error) {
		path, err = os.Readlink(filepath.Join(dir, "cwd"))
		return err
	})
	return path, err
}

// Presence is the share of a process's threads in a namespace. Each thread has namespaces of its
// own (namespaces(7)).
type Presence int

const (
	Absent  Presence = iota // no thread is there
	Partial                 // some threads are, and others are elsewhere: for a moment, or for good
	Whole                   // all threads are
)

// InNetwork returns the presence of a process in the network namespace that a file refers to. An
// ending process is absent. A thread that the kernel does not show is not counted: even root cannot
// see the namespaces of a machine's first process everywhere.
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
			return Partial, nil
		case here > 0:
			return Whole, nil
		case elsewhere > 0:
			return Absent, nil
		}
	}
	return Absent, nil
}

// alive reads the file "stat" in the directory of a thread. For an ending thread the error is
// fs.ErrNotExist.
func alive(dir string) (Stat, error) {
	s, err := stat(filepath.Join(dir, "stat"), os.ReadFile)
	if err == nil && s.flags&flagExiting != 0 {
		err = fs.ErrNotExist
	}
	return s, err
}

// ask calls f with the directory of the process's first thread in /proc. If f finds nothing there,
// it tries the other threads. f returns fs.ErrNotExist when it finds nothing.
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

// threads returns the directories of a process's threads in /proc; none when the process does not
// exist.
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

// gone reports whether an error is about a thread that has ended or is ending. The kernel may deny
// access to some files of a thread that ends during the read.
func gone(err error) bool {
	return errors.Is(orGone(err), fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
}
