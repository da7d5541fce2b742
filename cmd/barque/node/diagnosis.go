package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/internal/redact"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/network/path"
	"github.com/barque/barque/network/wireguard"
)

// DiagnosisPath answers with a Diagnosis of the server that gets the request, or of the one that
// RelayParameter names. It is for system:masters only: logs and goroutines tell more of a cluster
// than RBAC can know of.
const DiagnosisPath = "/barque/v1/diagnosis"

// Diagnosis is what one server can tell of itself for a search for faults. There are no secrets in
// it.
type Diagnosis struct {
	Server string    `json:"server"`
	Time   time.Time `json:"time"`
	// Files have their content by their name.
	Files map[string]string `json:"files"`
}

// Logs keep the end of what a node has logged.
type Logs interface{ Bytes() []byte }

func (s *server) serveDiagnosis(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusOK, s.diagnose(r.Context()))
}

func (s *server) diagnose(ctx context.Context) *Diagnosis {
	d := &Diagnosis{Server: s.options.Name, Time: time.Now().UTC(), Files: MachineFacts(s.options.DataDir, s.options.KubeletRootDir)}
	d.Files["goroutines.txt"] = goroutines()
	d.Files["metrics.txt"] = metricsText()
	d.Files["store.json"] = indented(s.store.Status())
	d.Files["members.json"] = indented(s.store.Members())
	d.Files["gossip.json"] = indented(s.gossipViews(ctx, true))
	d.Files["options.json"] = indented(s.options.public())
	d.Files["paths.json"] = indented(s.paths(ctx))
	d.Files["wireguard.json"] = indented(s.tunnels())
	d.Files["build.txt"] = buildText()
	if s.options.Logs != nil {
		d.Files["log.txt"] = string(s.options.Logs.Bytes())
	}
	clean := redact.New(s.secrets()...)
	for name, text := range d.Files {
		if name != "metrics.txt" { // numbers
			d.Files[name] = clean.Text(text)
		}
	}
	return d
}

// pathLimit bounds how long the ways to other nodes are looked at.
const pathLimit = 10 * time.Second

// paths tells which nodes packets as large as the link allows reach.
func (s *server) paths(ctx context.Context) []path.Finding {
	ctx, cancel := context.WithTimeout(ctx, pathLimit)
	defer cancel()
	nodes := map[string]netip.Addr{}
	for _, m := range s.pool.Members() {
		if m.Name != s.options.Name && m.State == gossip.Alive {
			nodes[m.Name] = m.Addr.Addr()
		}
	}
	return path.ProbeAll(ctx, nodes, s.options.addr())
}

// tunnels tells of the nodes that are reached by WireGuard; nil when there are none.
func (s *server) tunnels() []wireguard.Seen {
	packets := s.packets.Load()
	if packets == nil {
		return nil
	}
	seen, err := packets.Tunnels()
	if err != nil {
		s.logger.Warn("what WireGuard knows of other nodes cannot be read", "err", err)
	}
	return seen
}

// secrets are those of this server that have no form of their own.
func (s *server) secrets() []string {
	out := []string{s.options.Token}
	for _, key := range s.record.gossipRing().Keys {
		out = append(out, string(key), base64.StdEncoding.EncodeToString(key), fmt.Sprintf("%x", key), fmt.Sprint(key))
	}
	return out
}

// public are the options without what they keep secret.
func (o Options) public() Options {
	if o.Token != "" {
		o.Token = "[REDACTED]"
	}
	o.Logs = nil
	return o
}

func goroutines() string {
	var out bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&out, 2); err != nil {
		return err.Error()
	}
	return out.String()
}

// metricsText is what /metrics shows.
func metricsText() string {
	request, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return err.Error()
	}
	out := &page{header: http.Header{}}
	legacyregistry.Handler().ServeHTTP(out, request)
	return out.String()
}

// page keeps what a handler answers.
type page struct {
	bytes.Buffer
	header http.Header
}

func (p *page) Header() http.Header { return p.header }
func (p *page) WriteHeader(int)     {}

func buildText() string {
	text := fmt.Sprintf("barque %s, Kubernetes %s, %s on %s/%s\n", version.String(), version.Kubernetes, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		text += info.String()
	}
	return text
}

func indented(value any) string {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(data) + "\n"
}

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
