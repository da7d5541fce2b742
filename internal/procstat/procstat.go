// Package procstat reads what the kernel tells of a process in /proc/PID/stat (proc_pid_stat(5)).
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Stat is a part of that.
type Stat struct {
	// State is that of the first thread: 'R', 'S', 'T' when it is stopped by a signal, 'Z' when it has ended.
	State byte
	// Threads is how many there are.
	Threads int
	// Started is when the process started, in clock ticks since boot. With the pid it names one process for ever.
	Started uint64
}

// Read returns it, or an error that is fs.ErrNotExist when there is no such process.
func Read(pid int) (Stat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	s, err := parse(data)
	if err != nil {
		return Stat{}, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return s, nil
}

func parse(data []byte) (s Stat, err error) {
	// The command, the second field, may have spaces and brackets; what follows the last bracket has none.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return Stat{}, fmt.Errorf("it has %d fields after the command, want 20 at least", len(fields))
	}
	s.State = fields[0][0]
	if s.Threads, err = strconv.Atoi(fields[17]); err != nil {
		return Stat{}, fmt.Errorf("the number of threads: %w", err)
	}
	if s.Started, err = strconv.ParseUint(fields[19], 10, 64); err != nil {
		return Stat{}, fmt.Errorf("the start: %w", err)
	}
	return s, nil
}

// Headless tells whether the first thread is dead and others are not: so it is for a moment in an exec, until the thread that
// made it takes its place. The process has no arguments then.
func (s Stat) Headless() bool { return s.State == 'Z' && s.Threads > 1 }

// Runs tells whether the process has not ended; one that nobody has waited for yet has.
func (s Stat) Runs() bool { return s.State != 'X' && (s.State != 'Z' || s.Threads > 1) }

// Stopped tells whether it is stopped by a signal.
func (s Stat) Stopped() bool { return s.State == 'T' }
