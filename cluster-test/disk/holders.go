package disk

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// holders returns the processes that keep a loop device in use: they have a file open on it, or it
// is mounted in their mount namespace, which may have been copied from that of the tests at any
// time. Processes that share a mount namespace are reported once.
func holders(device string) string {
	var block unix.Stat_t
	if err := unix.Stat(filepath.Join("/dev", device), &block); err != nil {
		return err.Error()
	}
	mounted := fmt.Appendf(nil, " %d:%d ", unix.Major(block.Rdev), unix.Minor(block.Rdev)) // the third word of a line
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err.Error()
	}
	var found []string
	told := make(map[string]bool)
	for _, p := range processes { // of one that ends meanwhile nothing can be read
		name, _ := os.ReadFile(filepath.Join(p, "comm"))
		who := fmt.Sprintf("process %s (%s)", filepath.Base(p), bytes.TrimSpace(name))
		namespace, err := os.Readlink(filepath.Join(p, "ns/mnt"))
		if mounts, _ := os.ReadFile(filepath.Join(p, "mountinfo")); err == nil && !told[namespace] &&
			bytes.Contains(mounts, mounted) {
			told[namespace] = true
			found = append(found, who+" has it mounted in "+namespace)
		}
		links, _ := filepath.Glob(filepath.Join(p, "fd/*"))
		for _, link := range append(links, filepath.Join(p, "cwd")) {
			var file unix.Stat_t
			if unix.Stat(link, &file) == nil && file.Dev == block.Rdev {
				path, _ := os.Readlink(link)
				found = append(found, who+" has "+path+" open")
				break
			}
		}
	}
	if len(found) == 0 {
		return "nobody is seen to hold it any more"
	}
	return strings.Join(found, "; ")
}
