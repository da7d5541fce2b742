package node

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/barque/barque/clusterstatus"
)

// bootFile tells kernels that run apart: one that is started again has another ID. Servers that
// tell the same one are on one machine.
const bootFile = "/proc/sys/kernel/random/boot_id"

// machineFiles are what the kernel tells of this machine.
var machineFiles = []string{
	"/proc/version", "/proc/loadavg", "/proc/uptime", "/proc/meminfo", "/proc/stat", "/proc/diskstats", "/proc/net/dev", "/proc/net/snmp", "/proc/net/sockstat",
	bootFile, "/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory", "/proc/self/limits", "/proc/self/status", "/proc/self/cgroup", "/proc/self/mountinfo",
	"/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/file-nr", "/proc/sys/fs/inotify/max_user_instances", "/proc/sys/fs/inotify/max_user_watches", "/etc/os-release",
}

// MachineFacts are files about this machine, for a Diagnosis. Both directories may be missing.
func MachineFacts(dataDir, kubeletRootDir string) map[string]string {
	var facts strings.Builder
	for _, path := range machineFiles {
		data, err := os.ReadFile(path)
		if err != nil {
			data = []byte(err.Error() + "\n")
		}
		fmt.Fprintf(&facts, "== %s\n%s\n", path, data)
	}
	return map[string]string{"machine.txt": facts.String(), "check.json": indented(Check(dataDir, kubeletRootDir)), "files.txt": FileSizes(dataDir)}
}

// measured are the directories in a data directory that are small, and whose files are told with
// their sizes.
var measured = []string{"store", "snapshots", "pki", "ipam"}

// FileSizes lists the files of a data directory by name and size, without their content.
func FileSizes(dataDir string) string {
	var out strings.Builder
	if v := volumeOf(dataDir); v != nil {
		fmt.Fprintf(&out, "volume of %s: %d bytes, %d free\n", dataDir, v.Bytes, v.Free)
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		fmt.Fprintln(&out, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !e.IsDir() {
			fmt.Fprintf(&out, "%12d  %s  %s\n", info.Size(), info.ModTime().UTC().Format(time.RFC3339), e.Name())
		}
	}
	for _, dir := range measured {
		err := filepath.WalkDir(filepath.Join(dataDir, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err != nil {
				return nil // it is gone meanwhile
			}
			fmt.Fprintf(&out, "%12d  %s  %s\n", info.Size(), info.ModTime().UTC().Format(time.RFC3339), strings.TrimPrefix(path, dataDir+"/"))
			return nil
		})
		if err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	return out.String()
}

// volumeOf returns the file system of a directory; nil when the kernel does not tell.
func volumeOf(dir string) *clusterstatus.VolumeStatus {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return nil
	}
	return &clusterstatus.VolumeStatus{Path: dir, Bytes: fs.Blocks * uint64(fs.Bsize), Free: fs.Bavail * uint64(fs.Bsize)}
}

func indented(value any) string {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(data) + "\n"
}
