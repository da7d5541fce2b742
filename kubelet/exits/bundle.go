package exits

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// OfBundle returns the end of the container of an OCI bundle, by the file that containerd's shim
// writes into it; false if it has not ended.
func OfBundle(bundle string) (Record, bool, error) {
	raw, err := os.ReadFile(filepath.Join(bundle, "exit.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	if err != nil {
		return Record{}, false, err
	}
	var exit struct {
		Timestamp time.Time
		Status    int
	}
	if err := json.Unmarshal(raw, &exit); err != nil || exit.Timestamp.IsZero() {
		return Record{}, false, err
	}
	return Record{ExitCode: uint32(exit.Status), FinishedAt: exit.Timestamp, OOMKilled: OOMKilled(bundle)}, true, nil
}

// OOMKilled reports whether the kernel has killed a process of the bundle's container for want of
// memory. It asks the container's cgroup, which is there until the container is deleted.
func OOMKilled(bundle string) bool {
	raw, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return false
	}
	var spec struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(raw, &spec); err != nil || !strings.HasPrefix(spec.Linux.CgroupsPath, "/") {
		return false
	}
	return oomKills("/sys/fs/cgroup", spec.Linux.CgroupsPath) > 0
}

// oomKills is the kernel's count for a cgroup: 0 where the cgroup is gone.
func oomKills(root, cgroup string) int {
	for _, file := range []string{
		filepath.Join(root, "memory", cgroup, "memory.oom_control"), // version 1
		filepath.Join(root, cgroup, "memory.events"),                // version 2
	} {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
			if count, found := strings.CutPrefix(lines.Text(), "oom_kill "); found {
				n, _ := strconv.Atoi(strings.TrimSpace(count))
				return n
			}
		}
	}
	return 0
}
