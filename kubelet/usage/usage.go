// Package usage measures the pods of a node: CPU time, memory, tasks and I/O by their control
// groups, network by the interfaces of their network namespace, and writable layers by the runtime.
//
// A measurement costs two lists of the runtime, which it answers from memory, and some ten small
// files for each pod and container. It asks the runtime for no usage: containerd has its shims read
// the groups, and reads the machine's table of mounts for each sandbox. Writable layers alone come
// from there, by one question for all containers, at most once in the time that a caller allows.
package usage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cgroups"
	"github.com/barque/barque/kubelet/cri"
)

// Runtime names the sandboxes and containers that there are, and measures writable layers.
type Runtime interface {
	ListPodSandboxes(ctx context.Context, selector map[string]string) ([]*runtimeapi.PodSandbox, error)
	ListContainers(ctx context.Context, selector map[string]string) ([]*runtimeapi.Container, error)
	ListContainerStats(ctx context.Context, selector map[string]string) ([]*runtimeapi.ContainerStats, error)
}

// Groups are the control groups of the node's pods.
type Groups interface {
	// Groups returns the group of each pod that has one.
	Groups() (map[types.UID]string, error)
	// Stats measures a group. The error is fs.ErrNotExist when the group is gone.
	Stats(group string) (cgroups.Stats, error)
	// Processes returns the processes in a group itself.
	Processes(group string) ([]int, error)
}

// Pod is the usage of a pod.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	Group           string // the path in each hierarchy
	Figures
	// Network has the interfaces of the pod's network namespace but the loopback. A pod on the
	// machine's own network has none.
	Network    []Interface
	Containers []Container
}

// Container is the usage of a container of a pod.
type Container struct {
	ID, Name string
	Group    string // "" without figures
	Running  bool
	Figures         // of a container that runs
	Layer    *Layer // nil when it is not measured yet
}

// Figures are the figures of a control group.
type Figures struct {
	At time.Time // when they were read; zero without figures
	cgroups.Stats
	// CPURate is the CPU time per second since the last measurement; nil at the first one.
	CPURate *time.Duration
}

// Layer is the space that the writable layer of a container takes on the disk.
type Layer struct {
	At            time.Time
	Bytes, Inodes uint64
}

// Meter measures. It is safe for concurrent use.
type Meter struct {
	runtime Runtime
	groups  Groups
	now     func() time.Time

	mu    sync.Mutex
	rates map[string]rate // by group

	layersMu sync.Mutex
	layers   map[string]*Layer // by container
	asked    time.Time         // when they were measured; zero before
	asking   *question         // nil while none is under way
}

// question is a running call of the runtime. Callers share its answer.
type question struct {
	done chan struct{}
	err  error // set before done is closed
}

// New returns a meter without figures. A nil now is time.Now.
func New(runtime Runtime, groups Groups, now func() time.Time) *Meter {
	if now == nil {
		now = time.Now
	}
	return &Meter{runtime: runtime, groups: groups, now: now, rates: map[string]rate{}}
}

// Pods measures all pods with a sandbox, once each. Ended containers are listed without figures.
func (m *Meter) Pods(ctx context.Context) ([]*Pod, error) {
	boxes, err := m.runtime.ListPodSandboxes(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	containers, err := m.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	groups, err := m.groups.Groups()
	if err != nil {
		return nil, fmt.Errorf("list the control groups of pods: %w", err)
	}
	byBox, all := map[string]*Pod{}, map[types.UID]*Pod{}
	var pods []*Pod
	for _, box := range boxes {
		if box.Metadata == nil {
			continue
		}
		uid := types.UID(box.Metadata.Uid)
		pod := all[uid]
		if pod == nil {
			pod = &Pod{UID: uid, Namespace: box.Metadata.Namespace, Name: box.Metadata.Name, Group: groups[uid]}
			all[uid], pods = pod, append(pods, pod)
		}
		byBox[box.Id] = pod
		if box.State == runtimeapi.PodSandboxState_SANDBOX_READY && pod.Group != "" && pod.Network == nil {
			pod.Network = m.network(pod.Group, box.Id)
		}
	}
	for _, c := range containers {
		if pod := byBox[c.PodSandboxId]; pod != nil {
			pod.Containers = append(pod.Containers, Container{
				ID: c.Id, Name: c.Labels[cri.LabelContainerName],
				Running: c.State == runtimeapi.ContainerState_CONTAINER_RUNNING,
			})
		}
	}
	return pods, m.measure(pods)
}

// measure reads the groups of pods and of their running containers.
func (m *Meter) measure(pods []*Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	earlier := m.rates
	m.rates = make(map[string]rate, len(earlier))
	var errs []error
	for _, pod := range pods {
		if pod.Group == "" {
			continue // it has ended, or is starting
		}
		errs = append(errs, m.read(pod.Group, &pod.Figures, earlier))
		for i := range pod.Containers {
			if c := &pod.Containers[i]; c.Running {
				errs = append(errs, m.readContainer(pod, c, earlier))
			}
		}
	}
	return errors.Join(errs...)
}

// prefixes are the beginnings of group names below a pod's, of containerd and of CRI-O.
// An ID follows.
var prefixes = []string{"", "crio-"}

func (m *Meter) readContainer(pod *Pod, c *Container, earlier map[string]rate) error {
	for _, prefix := range prefixes {
		group := filepath.Join(pod.Group, prefix+c.ID)
		if err := m.read(group, &c.Figures, earlier); err != nil {
			return err
		}
		if !c.At.IsZero() {
			c.Group = group
			break
		}
	}
	return nil
}

func (m *Meter) read(group string, f *Figures, earlier map[string]rate) error {
	stats, err := m.groups.Stats(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has ended since the list
	}
	if err != nil {
		return fmt.Errorf("measure the control group %s: %w", group, err)
	}
	f.At, f.Stats = m.now(), stats
	if stats.CPU != nil {
		r := earlier[group].next(f.At, stats.CPU.Total)
		m.rates[group], f.CPURate = r, r.inSecond
	}
	return nil
}

// rate is a group's speed of using CPU time, between two measurements.
type rate struct {
	at       time.Time
	total    time.Duration
	inSecond *time.Duration
}

// shortest is the least time between two measurements that make a rate. Several clients may measure
// at about the same time.
const shortest = time.Second

func (r rate) next(at time.Time, total time.Duration) rate {
	passed := at.Sub(r.at)
	switch {
	case r.at.IsZero() || total < r.total:
		return rate{at: at, total: total}
	case passed < shortest:
		return r
	}
	inSecond := time.Duration(float64(total-r.total) / passed.Seconds())
	return rate{at: at, total: total, inSecond: &inSecond}
}

// AddLayers adds the sizes of writable layers, no older than allowed. The runtime measures layers
// at intervals and answers from memory, but measures all else of a container then. When ctx ends
// before the answer, the figures are the earlier ones; the answer is for later callers.
func (m *Meter) AddLayers(ctx context.Context, pods []*Pod, allowed time.Duration) error {
	layers, err := m.layersOf(ctx, allowed)
	for _, pod := range pods {
		for i := range pod.Containers {
			pod.Containers[i].Layer = layers[pod.Containers[i].ID]
		}
	}
	return err
}

func (m *Meter) layersOf(ctx context.Context, allowed time.Duration) (map[string]*Layer, error) {
	m.layersMu.Lock()
	defer m.layersMu.Unlock()
	if !m.asked.IsZero() && m.now().Sub(m.asked) < allowed {
		return m.layers, nil
	}
	q := m.asking
	if q == nil {
		q = &question{done: make(chan struct{})}
		m.asking = q
		go m.ask(context.WithoutCancel(ctx), q) // ends with the answer, for which the client has a deadline
	}
	m.layersMu.Unlock()
	var err error
	select {
	case <-q.done:
		err = q.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	m.layersMu.Lock()
	if err != nil {
		err = fmt.Errorf("measure the writable layers of containers: %w", err)
	}
	return m.layers, err
}

// ask asks the runtime for the layers of all containers at once.
func (m *Meter) ask(ctx context.Context, q *question) {
	list, err := m.runtime.ListContainerStats(ctx, nil)
	layers := make(map[string]*Layer, len(list))
	for _, c := range list {
		if l := c.GetWritableLayer(); l.GetUsedBytes() != nil {
			layers[c.GetAttributes().GetId()] = &Layer{time.Unix(0, l.Timestamp), l.UsedBytes.Value,
				l.GetInodesUsed().GetValue()}
		}
	}
	m.layersMu.Lock()
	defer m.layersMu.Unlock()
	if err == nil {
		m.layers, m.asked = layers, m.now()
	}
	m.asking, q.err = nil, err
	close(q.done)
}

// Default is the interface that stands for the pod: eth0, or the first one.
func (p *Pod) Default() *Interface {
	if i := slices.IndexFunc(p.Network, func(n Interface) bool { return n.Name == "eth0" }); i >= 0 {
		return &p.Network[i]
	}
	if len(p.Network) > 0 {
		return &p.Network[0]
	}
	return nil
}

// network reads the interfaces that the first process of a sandbox sees. There are none without a
// process, and of a pod on the machine's own network.
func (m *Meter) network(group, box string) []Interface {
	var pids []int
	for _, prefix := range prefixes {
		var err error
		if pids, err = m.groups.Processes(filepath.Join(group, prefix+box)); err == nil {
			break
		}
	}
	if len(pids) == 0 || ownNetwork(pids[0]) {
		return nil
	}
	list, err := interfacesOf(pids[0], m.now())
	if err != nil {
		return nil // the process has ended
	}
	return slices.DeleteFunc(list,
		func(n Interface) bool { return n.Name == "lo" || strings.HasPrefix(n.Name, "veth") })
}
