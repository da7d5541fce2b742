package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/internal/procstat"
)

// A containerd that is killed while it creates a sandbox leaves a shim with a half-made container,
// a network namespace, and an allocated address. The next containerd keeps the shim, but its CRI
// does not know the sandbox, so that it would never end. leftovers are the remains of an earlier
// containerd, listed while none runs. Those that CRI does not know once it answers are orphans.
type leftovers struct {
	taken     time.Time
	shims     map[string]process // by the ID of the sandbox
	notes     []cniNote
	addresses []cniNote // allocated addresses, by sandbox; nothing else is known of these
	netns     []string  // where network namespaces are mounted
}

func listLeftovers(l layout, cniConf string) (leftovers, error) {
	c := leftovers{taken: time.Now(), shims: map[string]process{}}
	all, err := processes()
	if err != nil {
		return c, err
	}
	for _, p := range all {
		if !p.isShim(l) {
			continue
		}
		if at := slices.Index(p.args, "-id"); at >= 0 && at+1 < len(p.args) {
			c.shims[p.args[at+1]] = p
		}
	}
	if err := dropDeadSockets(l); err != nil {
		return c, err
	}
	if c.notes, err = cniNotes(l); err != nil {
		return c, err
	}
	if c.addresses, err = addressesOut(cniConf); err != nil {
		return c, err
	}
	c.netns, err = filepath.Glob(filepath.Join(l.state(), "io.containerd.grpc.v1.cri/netns/*"))
	return c, err
}

// dropDeadSockets removes the sockets of shims that were killed. While no
// containerd runs no shim is being started, so one that does not listen is dead.
func dropDeadSockets(l layout) error {
	entries, err := os.ReadDir(l.shimSockets())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(l.shimSockets(), entry.Name())
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// reap ends and removes the orphans, and returns the number of their sandboxes. It does as much as
// it can; the rest is for the next start.
func (c leftovers) reap(
	ctx context.Context, l layout, conn *client.Client, cri runtimeapi.RuntimeServiceClient,
) (int, error) {
	known, err := knownToCRI(ctx, cri)
	if err != nil {
		return 0, err
	}
	orphans := map[string]bool{}
	var errs []error
	for id, shim := range c.shims {
		if !known[id] {
			orphans[id] = true
			errs = append(errs, endProcess(ctx, shim, unix.SIGKILL))
		}
	}
	errs = append(errs, killContainers(ctx, orphans))
	for _, note := range c.notes {
		if !known[note.ContainerID] {
			orphans[note.ContainerID] = true
			errs = append(errs, note.takeBack(ctx, l))
		}
	}
	for _, address := range c.addresses {
		if !known[address.ContainerID] &&
			!slices.ContainsFunc(c.notes, func(n cniNote) bool { return n.ContainerID == address.ContainerID }) {
			errs = append(errs, address.takeBack(ctx, l))
		}
	}
	errs = append(errs, c.dropNamespaces(known))
	errs = append(errs, c.forgetRecords(ctx, conn, known))
	return len(orphans), errors.Join(errs...)
}

// knownToCRI returns the IDs of all sandboxes and containers, as soon as CRI has
// recovered them.
func knownToCRI(ctx context.Context, cri runtimeapi.RuntimeServiceClient) (map[string]bool, error) {
	var sandboxes *runtimeapi.ListPodSandboxResponse
	var last error
	err := waitUntil(ctx, probeEvery, func() (bool, error) {
		sandboxes, last = cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return last == nil, nil
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	containers, err := cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, one := range sandboxes.Items {
		known[one.Id] = true
	}
	for _, one := range containers.Containers {
		known[one.Id] = true
	}
	return known, nil
}

// killContainers kills the processes in the cgroups of these containers.
func killContainers(ctx context.Context, ids map[string]bool) error {
	if len(ids) == 0 {
		return nil
	}
	all, err := processes()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range all {
		if p.inCgroup(func(path string) bool {
			return slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool { return ids[part] })
		}) {
			errs = append(errs, endProcess(ctx, p, unix.SIGKILL))
		}
	}
	return errors.Join(errs...)
}

// forgetRecords removes containerd's own records of containers, with their
// snapshots, that CRI has lost.
func (c leftovers) forgetRecords(ctx context.Context, conn *client.Client, known map[string]bool) error {
	records, err := conn.Containers(ctx, `labels."io.cri-containerd.kind"`)
	if err != nil {
		return err
	}
	var errs []error
	for _, record := range records {
		if known[record.ID()] {
			continue
		}
		info, err := record.Info(ctx, client.WithoutRefreshedMetadata)
		if err != nil || info.CreatedAt.After(c.taken) {
			continue // gone, or being made
		}
		if err := record.Delete(ctx, client.WithSnapshotCleanup); err != nil {
			errs = append(errs, fmt.Errorf("forget container %s: %w", record.ID(), err))
		}
	}
	return errors.Join(errs...)
}

// The CNI library keeps its notes under cniDir, a place that cannot be configured and that all
// nodes of a machine share.
const (
	cniDir     = "/var/lib/cni"
	cniResults = cniDir + "/results"
)

// cniNote is the CNI library's note of one sandbox's network.
type cniNote struct {
	path        string
	ContainerID string      `json:"containerId"`
	Config      []byte      `json:"config"`
	IfName      string      `json:"ifName"`
	Netns       string      `json:"netns"`
	Args        [][2]string `json:"cniArgs"`
}

// cniNotes returns the notes of sandboxes of this data directory: those whose
// network namespace is kept in it.
func cniNotes(l layout) ([]cniNote, error) {
	entries, err := os.ReadDir(cniResults)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var notes []cniNote
	for _, entry := range entries {
		path := filepath.Join(cniResults, entry.Name())
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another node's, gone since
		}
		if err != nil {
			return nil, err
		}
		note := cniNote{path: path}
		if json.Unmarshal(raw, &note) != nil || !strings.HasPrefix(note.Netns, l.state()+"/") {
			continue // half-written by another one, or another's
		}
		notes = append(notes, note)
	}
	return notes, nil
}

// takeBack undoes the note: the link, the address, the note itself and the network namespace.
func (n cniNote) takeBack(ctx context.Context, l layout) error {
	list, err := libcni.NetworkConfFromBytes(n.Config)
	if err != nil {
		return fmt.Errorf("network of sandbox %s: %w", n.ContainerID, err)
	}
	plugins := libcni.NewCNIConfigWithCacheDir(l.cniBins(), cniDir, nil)
	err = plugins.DelNetworkList(ctx, list, &libcni.RuntimeConf{
		ContainerID: n.ContainerID, NetNS: n.Netns, IfName: n.IfName, Args: n.Args})
	if err != nil {
		return fmt.Errorf("network of sandbox %s: %w", n.ContainerID, err)
	}
	if n.Netns == "" {
		return nil
	}
	return removeUnmounted(n.Netns)
}

// addressesOut lists the sandboxes with an address from the host-local plugin: its files name them.
// Containerd may have been killed before the CNI library took its note.
func addressesOut(cniConf string) ([]cniNote, error) {
	confs, err := filepath.Glob(filepath.Join(cniConf, "*.conflist"))
	if err != nil {
		return nil, err
	}
	var out []cniNote
	for _, path := range confs {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var conf struct {
			Name    string `json:"name"`
			Plugins []struct {
				IPAM struct {
					Type    string `json:"type"`
					DataDir string `json:"dataDir"`
				} `json:"ipam"`
			} `json:"plugins"`
		}
		if err := json.Unmarshal(raw, &conf); err != nil {
			continue // containerd will say so
		}
		for _, plugin := range conf.Plugins {
			if plugin.IPAM.Type != "host-local" || plugin.IPAM.DataDir == "" {
				continue // its own default is shared with others
			}
			files, err := filepath.Glob(filepath.Join(plugin.IPAM.DataDir, conf.Name, "*.*.*.*"))
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				// Two lines: the container's ID, the interface's name.
				if words, err := os.ReadFile(file); err == nil && len(strings.Fields(string(words))) == 2 {
					fields := strings.Fields(string(words))
					out = append(out, cniNote{ContainerID: fields[0], IfName: fields[1], Config: raw})
				}
			}
		}
	}
	return out, nil
}

// dropNamespaces unmounts the network namespaces that are no known sandbox's and
// in which nothing runs.
func (c leftovers) dropNamespaces(known map[string]bool) error {
	used := map[string]bool{}
	for _, note := range c.notes {
		used[note.Netns] = known[note.ContainerID]
	}
	var errs []error
	for _, path := range c.netns {
		mounted, err := os.Stat(path)
		if used[path] || err != nil {
			continue
		}
		inhabited, err := inhabited(mounted)
		if err == nil && !inhabited {
			err = removeUnmounted(path)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// inhabited reports whether a process runs in a network namespace, or has a thread there.
func inhabited(namespace fs.FileInfo) (bool, error) {
	all, err := procstat.All()
	if err != nil {
		return false, err
	}
	for _, pid := range all {
		if there, err := procstat.InNetwork(pid, namespace); there != procstat.Absent || err != nil {
			return there != procstat.Absent, err
		}
	}
	return false, nil
}
