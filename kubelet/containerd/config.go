package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/barque/barque/kubelet/exits"
)

// capSysResource is the number of CAP_SYS_RESOURCE: lowering an OOM score
// below one's own needs it.
const capSysResource = 24

// host has the properties of the machine that the configuration depends on.
type host struct {
	apparmor       bool // the kernel enforces AppArmor profiles
	canLowerOOM    bool
	overlaySupport bool
}

// detectHost looks at the running kernel, and at the filesystem of the data directory.
func detectHost(dataDir string) (host, error) {
	var h host
	enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	h.apparmor = err == nil && strings.HasPrefix(string(enabled), "Y")
	effective, err := effectiveCapabilities()
	if err != nil {
		return host{}, err
	}
	h.canLowerOOM = effective&(1<<capSysResource) != 0
	h.overlaySupport = tryOverlay(dataDir) == nil
	return h, nil
}

// snapshotter returns the snapshotter for images' layers on this machine.
func (h host) snapshotter() string {
	if h.overlaySupport {
		return "overlayfs"
	}
	return "native" // copies instead of layers: slow, but it works everywhere
}

func effectiveCapabilities() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if hex, found := strings.CutPrefix(line, "CapEff:"); found {
			return strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no CapEff line")
}

// table is a TOML table.
type table = map[string]any

// writeConfig writes containerd's configuration. It has only differences from containerd's
// defaults; see containerd's docs/cri/config.md.
func writeConfig(l layout, registries, cniConf, sandboxImage string, h host) error {
	content, err := toml.Marshal(configuration(l, registries, cniConf, sandboxImage, h))
	if err != nil {
		return fmt.Errorf("containerd configuration: %w", err)
	}
	header := "# Written by Barque at every start; changes are lost.\n"
	temporary := l.config() + ".new"
	if err := os.WriteFile(temporary, append([]byte(header), content...), 0o600); err != nil {
		return fmt.Errorf("containerd configuration: %w", err)
	}
	return os.Rename(temporary, l.config())
}

func configuration(l layout, registries, cniConf, sandboxImage string, h host) table {
	snapshotter := h.snapshotter()
	runc := table{
		"runtime_type": "io.containerd.runc.v2",
		"runtime_path": filepath.Join(l.bin(), "containerd-shim-runc-v2"),
		"options": table{
			"BinaryName":    filepath.Join(l.bin(), "runc"),
			"Root":          filepath.Join(l.state(), "runc"),
			"SystemdCgroup": false,
		},
	}
	return table{
		"version":          4,
		"root":             l.root(),
		"state":            l.state(),
		"temp":             filepath.Join(l.root(), "tmp"),
		"disabled_plugins": []string{stockShimManager},
		"timeouts":         table{"io.containerd.timeout.shim.load": shimLoadTimeout.String()},
		// A node does not work without these plugins: containerd must fail rather than
		// run without them.
		"required_plugins": []string{
			"io.containerd.shim.v1." + shimManagerID,
			"io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
			"io.containerd.snapshotter.v1." + snapshotter,
		},
		"plugins": table{
			"io.containerd.server.v1.grpc":  table{"address": l.socket()},
			"io.containerd.server.v1.ttrpc": table{"address": l.ttrpcSocket()},
			"io.containerd.shim.v1." + shimManagerID: table{
				"socket_dir": l.shimSockets(),
				"env":        []string{exits.Env + "=" + string(l.exits())},
			},
			// The streaming server is reached only by the kubelet on this node.
			"io.containerd.grpc.v1.cri": table{
				"stream_server_address": "127.0.0.1",
				"stream_server_port":    "0",
			},
			// An image counts as unpacked only when its files are on the disk. Otherwise a machine
			// that loses power soon after has images whose files are empty, and no way to see that:
			// no container of them starts.
			"io.containerd.service.v1.diff-service": table{"sync_fs": true},
			"io.containerd.cri.v1.images": table{
				"snapshotter":             snapshotter,
				"pinned_images":           table{"sandbox": sandboxImage},
				"registry":                table{"config_path": registries},
				"image_pull_with_sync_fs": true,
				"use_local_image_pull":    true, // the other way to pull cannot sync
			},
			"io.containerd.cri.v1.runtime": table{
				"disable_apparmor":             !h.apparmor,
				"restrict_oom_score_adj":       !h.canLowerOOM,
				"netns_mounts_under_state_dir": true,
				// The kubelet reads control groups itself. Each collection would ask every shim,
				// and read the machine's table of mounts for each sandbox.
				"stats_collect_period": "24h",
				"cni": table{
					"bin_dirs":              l.cniBins(),
					"conf_dir":              cniConf,
					"use_internal_loopback": true,
					"ip_pref":               "cni", // the first family of the cluster comes first
				},
				"containerd": table{
					"default_runtime_name": "runc",
					"runtimes":             table{"runc": runc},
				},
			},
		},
	}
}
