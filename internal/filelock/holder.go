package filelock

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/procstat"
)

// Holder returns the process ID and command line of the process that holds the lock on a file, from
// proc_locks(5). ok is false when no process holds it, or when this process cannot see the holder.
func Holder(path string) (pid int, command string, ok bool) {
	var file unix.Stat_t
	if unix.Stat(path, &file) != nil {
		return 0, "", false
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0, "", false
	}
	defer locks.Close()
	// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF
	of := fmt.Sprintf("%02x:%02x:%d", unix.Major(file.Dev), unix.Minor(file.Dev), file.Ino)
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != of {
			continue // a waiting process has an arrow in between
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil || pid <= 0 {
			return 0, "", false
		}
		if _, err := procstat.Read(pid); err != nil {
			return 0, "", false
		}
		args, _ := procstat.Args(pid) // a process that is ending has none
		return pid, strings.Join(args, " "), true
	}
	return 0, "", false
}
