//go:build linux && amd64

package clock

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
)

// Moved is a process whose wall clock is not that of the machine. Back ends that.
type Moved struct {
	pid   int
	pidfd int      // names the process even when another one has its number
	mem   *os.File // its memory, likewise
	vdso  *vdso
	entry []byte // the original instructions
}

// Possible is nil where clocks can be moved, and otherwise an error with the reason. It tries it on
// this process, without changing anything.
func Possible() error {
	mem, err := openMemory(os.Getpid())
	if err != nil {
		return err
	}
	defer mem.Close()
	v, err := findVDSO(os.Getpid(), mem)
	if err != nil {
		return err
	}
	var zero [8]byte // where an offset would be
	if _, err := mem.WriteAt(zero[:], int64(v.cave+detourCode)); err != nil {
		return fmt.Errorf("the kernel lets nobody write to a vDSO: %w", err)
	}
	return nil
}

// Move moves the wall clock of a process, by whole seconds. It stops the process for some
// milliseconds; one that was stopped before runs afterwards.
func Move(pid int, by time.Duration) (_ *Moved, err error) {
	if by%time.Second != 0 {
		return nil, fmt.Errorf("move a clock by %v: only whole seconds are possible", by)
	}
	m := &Moved{pid: pid, pidfd: -1, entry: make([]byte, jumpSize)}
	defer func() {
		if err != nil {
			m.close()
			err = fmt.Errorf("move the clock of process %d: %w", pid, err)
		}
	}()
	if m.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		return nil, err
	}
	if m.mem, err = openMemory(pid); err != nil {
		return nil, err
	}
	if m.vdso, err = findVDSO(pid, m.mem); err != nil {
		return nil, err
	}
	if _, err := m.mem.ReadAt(m.entry, int64(m.vdso.entry)); err != nil {
		return nil, err
	}
	lead := jump(m.vdso.entry, m.vdso.cave)
	if bytes.Equal(m.entry, lead) {
		return nil, errors.New("it is moved already")
	}
	err = m.stopped(func() error {
		if _, err := m.mem.WriteAt(detour(int64(by/time.Second)), int64(m.vdso.cave)); err != nil {
			return err
		}
		_, err := m.mem.WriteAt(lead, int64(m.vdso.entry))
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Back gives the process the machine's clock again. It is no error that the process has ended: so
// has its clock.
func (m *Moved) Back() error {
	defer m.close()
	err := m.stopped(func() error {
		_, err := m.mem.WriteAt(m.entry, int64(m.vdso.entry))
		return err
	})
	if err != nil && m.ended() {
		return nil
	}
	if err != nil {
		return fmt.Errorf("put right the clock of process %d: %w", m.pid, err)
	}
	return nil
}

func (m *Moved) ended() bool {
	return errors.Is(m.signal(0), unix.ESRCH)
}

func (m *Moved) close() {
	if m.pidfd >= 0 {
		unix.Close(m.pidfd)
		m.pidfd = -1
	}
	if m.mem != nil {
		m.mem.Close()
	}
}

func (m *Moved) signal(s unix.Signal) error { return unix.PidfdSendSignal(m.pidfd, s, nil, 0) }

// errHalfway: a thread is about to execute instructions that would be changed.
var errHalfway = errors.New("a thread is in the first instructions of clock_gettime")

// stopped calls f while the process is stopped, with no thread between the bytes that f replaces. A
// thread that is further on in clock_gettime, or in the detour, goes on to the end: both stay as
// they are. (A thread that was between these bytes and is now in a signal handler is not seen.)
func (m *Moved) stopped(f func() error) error {
	for deadline := time.Now().Add(await.Hang); ; {
		if err := m.signal(unix.SIGSTOP); err != nil {
			return err
		}
		err := m.still()
		for ; errors.Is(err, errRuns) && time.Now().Before(deadline); err = m.still() {
			<-time.After(time.Millisecond) // brief: the interval of a poll
		}
		if err == nil {
			err = f()
		}
		err = errors.Join(err, m.signal(unix.SIGCONT))
		if !errors.Is(err, errHalfway) || time.Now().After(deadline) {
			return err
		}
	}
}

// errRuns is that a thread has not stopped yet.
var errRuns = errors.New("a thread does not stop")

// still is nil when all threads are stopped where they do not matter.
func (m *Moved) still() error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", m.pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(filepath.Join(thread, "stat"))
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		switch state[0] {
		case 'T', 't':
		case 'Z', 'X':
			continue
		default:
			return fmt.Errorf("%w: %s is in state %c", errRuns, filepath.Base(thread), state[0])
		}
		// The last word is the program counter.
		call, err := os.ReadFile(filepath.Join(thread, "syscall"))
		if err != nil {
			return err
		}
		words := strings.Fields(string(call))
		at, err := strconv.ParseUint(words[len(words)-1], 0, 64)
		if err != nil {
			return fmt.Errorf("%w: where %s is is not known: %q", errRuns, filepath.Base(thread), call)
		}
		if at > m.vdso.entry && at < m.vdso.entry+jumpSize {
			return errHalfway
		}
	}
	return nil
}

func openMemory(pid int) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
}
