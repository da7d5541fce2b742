package adminapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/version"
)

// bootFile identifies a running kernel: a reboot changes the ID. Servers with the same ID are on
// one machine.
const bootFile = "/proc/sys/kernel/random/boot_id"

// machineFiles are the kernel's files about this machine.
var machineFiles = []string{
	"/proc/version", "/proc/loadavg", "/proc/uptime", "/proc/meminfo", "/proc/stat", "/proc/diskstats", "/proc/net/dev",
	"/proc/net/snmp", "/proc/net/sockstat",
	bootFile, "/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory", "/proc/self/limits",
	"/proc/self/status", "/proc/self/cgroup", "/proc/self/mountinfo",
	"/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/file-nr", "/proc/sys/net/netfilter/nf_conntrack_count",
	"/proc/sys/net/netfilter/nf_conntrack_max",
	"/proc/sys/fs/inotify/max_user_instances", "/proc/sys/fs/inotify/max_user_watches", "/etc/os-release",
}

// MachineFacts returns files about this machine, for a Diagnosis. checks are the findings of
// `barque check`. The data directory may be missing.
func MachineFacts(dataDir string, checks []check.Finding) map[string]string {
	var facts strings.Builder
	for _, path := range machineFiles {
		data, err := os.ReadFile(path)
		if err != nil {
			data = []byte(err.Error() + "\n")
		}
		fmt.Fprintf(&facts, "== %s\n%s\n", path, data)
	}
	return map[string]string{"machine.txt": facts.String(), "check.json": indented(checks),
		"files.txt": FileSizes(dataDir)}
}

// measured are the small directories in a data directory, whose files are listed with their sizes.
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
			fmt.Fprintf(&out, "%12d  %s  %s\n", info.Size(), info.ModTime().UTC().Format(time.RFC3339),
				strings.TrimPrefix(path, dataDir+"/"))
			return nil
		})
		if err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	return out.String()
}

// volumeOf returns the file system of a directory; nil when the kernel returns an error.
func volumeOf(dir string) *clusterstatus.VolumeStatus {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return nil
	}
	return &clusterstatus.VolumeStatus{Path: dir, Bytes: fs.Blocks * uint64(fs.Bsize),
		Free: fs.Bavail * uint64(fs.Bsize)}
}

// indented writes a value in JSON for people.
func indented(value any) string {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(data) + "\n"
}

// goroutines returns the stacks of this process's goroutines, each with the number of goroutines
// that have it. A list of all of them would stop the process while it is made, and has megabytes.
func goroutines() string {
	var out bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&out, 1); err != nil {
		return err.Error()
	}
	return out.String()
}

// metricsText returns the output of /metrics.
func metricsText() string {
	request, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return err.Error()
	}
	out := &page{header: http.Header{}}
	legacyregistry.Handler().ServeHTTP(out, request)
	return out.String()
}

// page records a handler's response.
type page struct {
	bytes.Buffer
	header http.Header
}

func (p *page) Header() http.Header { return p.header }
func (p *page) WriteHeader(int)     {}

// buildText describes the build of this program.
func buildText() string {
	text := fmt.Sprintf("barque %s, Kubernetes %s, %s on %s/%s\n", version.String(), version.Kubernetes,
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		text += info.String()
	}
	return text
}
