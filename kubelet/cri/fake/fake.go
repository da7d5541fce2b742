// Package fake is a container runtime in memory, for tests. It keeps the promises of cri.Runtime
// that pods depend on: ids, states, events after each change, and stopping by a signal that a
// container may ignore until its grace is over.
package fake

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// Runtime is a runtime in memory. Its zero value is not usable; New makes one.
type Runtime struct {
	// Stubborn containers, by name, ignore the stop signal.
	Stubborn map[string]bool
	// OnExec answers ExecSync; success when nil.
	OnExec func(container string, command []string) cri.ExecResult

	fail atomic.Pointer[func(call, name string) error]

	mu         sync.Mutex
	next       int
	boxes      map[string]*runtimeapi.PodSandbox
	containers map[string]*runtimeapi.ContainerStatus
	box        map[string]string // of containers
	labels     map[string]map[string]string
	images     map[string]*runtimeapi.Image
	pulls      []string
	cut        []string
	listeners  map[int]chan *runtimeapi.ContainerEventResponse
	memory     map[string]uint64        // used, by container name
	ended      map[string]chan struct{} // of running containers
}

var (
	_ cri.Runtime = (*Runtime)(nil)
	_ cri.Images  = (*Runtime)(nil)
)

// New returns a runtime with the given images.
func New(images ...string) *Runtime {
	r := &Runtime{
		boxes: map[string]*runtimeapi.PodSandbox{}, containers: map[string]*runtimeapi.ContainerStatus{},
		box: map[string]string{}, labels: map[string]map[string]string{}, images: map[string]*runtimeapi.Image{},
		listeners: map[int]chan *runtimeapi.ContainerEventResponse{}, ended: map[string]chan struct{}{},
		Stubborn: map[string]bool{},
	}
	for _, name := range images {
		r.images[name] = &runtimeapi.Image{Id: name, RepoTags: []string{name}}
	}
	return r
}

func notFound(id string) error { return status.Errorf(codes.NotFound, "%q is not known", id) }

// Fail has f called before each call, from now on. It may refuse the call, or delay it.
// Nil ends that.
func (r *Runtime) Fail(f func(call, name string) error) {
	if f == nil {
		f = func(string, string) error { return nil }
	}
	r.fail.Store(&f)
}

func (r *Runtime) refuse(call, name string) error {
	if f := r.fail.Load(); f != nil {
		return (*f)(call, name)
	}
	return nil
}

func (r *Runtime) id(kind string) string {
	r.next++
	return fmt.Sprintf("%s%d", kind, r.next)
}

// tellLocked sends an event of a sandbox to all listeners.
func (r *Runtime) tellLocked(boxID string) {
	box := r.boxes[boxID]
	if box == nil {
		return
	}
	event := &runtimeapi.ContainerEventResponse{
		PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: boxID, Metadata: box.Metadata}}
	for _, c := range r.listeners {
		select {
		case c <- event:
		default: // events are hints
		}
	}
}

// Version implements cri.Runtime.
func (r *Runtime) Version(context.Context) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1", RuntimeApiVersion: "v1"}, nil
}

// Status implements cri.Runtime.
func (r *Runtime) Status(context.Context) (*runtimeapi.StatusResponse, error) {
	if err := r.refuse("Status", ""); err != nil {
		return nil, err
	}
	return &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}}, nil
}

// making is refuse for a creating call, which must not be cancelled.
func (r *Runtime) making(ctx context.Context, call, name string) error {
	if err := r.refuse(call, name); err != nil || ctx.Err() == nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = append(r.cut, call+" "+name)
	return status.FromContextError(ctx.Err()).Err()
}

// Cut lists the creating calls whose context ended before they were done. A real runtime keeps the
// half-made objects.
func (r *Runtime) Cut() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.cut)
}

// RunPodSandbox implements cri.Runtime.
func (r *Runtime) RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, _ string) (string, error) {
	if err := r.making(ctx, "RunPodSandbox", config.Metadata.Name); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.id("box")
	r.boxes[id] = &runtimeapi.PodSandbox{Id: id, Metadata: config.Metadata, Labels: config.Labels,
		State: runtimeapi.PodSandboxState_SANDBOX_READY, CreatedAt: int64(r.next)}
	r.tellLocked(id)
	return id, nil
}

// StopPodSandbox implements cri.Runtime.
func (r *Runtime) StopPodSandbox(_ context.Context, id string) error {
	if err := r.refuse("StopPodSandbox", id); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if box := r.boxes[id]; box != nil {
		box.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		for cid, of := range r.box {
			if of == id {
				r.endLocked(cid, 137, "")
			}
		}
		r.tellLocked(id)
	}
	return nil
}

// RemovePodSandbox implements cri.Runtime.
func (r *Runtime) RemovePodSandbox(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellLocked(id)
	delete(r.boxes, id)
	for cid, of := range r.box {
		if of == id {
			r.removeLocked(cid)
		}
	}
	return nil
}

// PodSandboxStatus implements cri.Runtime.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string) (*runtimeapi.PodSandboxStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	box := r.boxes[id]
	if box == nil {
		return nil, notFound(id)
	}
	return &runtimeapi.PodSandboxStatus{Id: id, Metadata: box.Metadata, State: box.State,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}}, nil
}

func matches(labels, selector map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// ListPodSandboxes implements cri.Runtime.
func (r *Runtime) ListPodSandboxes(_ context.Context, selector map[string]string) ([]*runtimeapi.PodSandbox, error) {
	if err := r.refuse("ListPodSandboxes", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.PodSandbox
	for _, b := range r.boxes {
		if matches(b.Labels, selector) {
			list = append(list,
				&runtimeapi.PodSandbox{Id: b.Id, Metadata: b.Metadata, State: b.State, CreatedAt: b.CreatedAt,
					Labels: b.Labels})
		}
	}
	return list, nil
}

// CreateContainer implements cri.Runtime.
func (r *Runtime) CreateContainer(
	ctx context.Context, boxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	if err := r.making(ctx, "CreateContainer", config.Metadata.Name); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.boxes[boxID] == nil {
		return "", notFound(boxID)
	}
	id := r.id("container")
	r.containers[id] = &runtimeapi.ContainerStatus{Id: id, Metadata: config.Metadata, Labels: config.Labels,
		Annotations: config.Annotations,
		Image:       config.Image, ImageRef: config.Image.Image, State: runtimeapi.ContainerState_CONTAINER_CREATED,
		CreatedAt: int64(r.next),
		LogPath:   filepath.Join(sandbox.GetLogDirectory(), config.LogPath),
		Resources: &runtimeapi.ContainerResources{Linux: config.GetLinux().GetResources()}}
	r.box[id], r.labels[id] = boxID, config.Labels
	r.tellLocked(boxID)
	return id, nil
}

// StartContainer implements cri.Runtime.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	r.mu.Lock()
	c := r.containers[id]
	r.mu.Unlock()
	if c == nil {
		return notFound(id)
	}
	if err := r.making(ctx, "StartContainer", c.Metadata.Name); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c = r.containers[id]; c == nil {
		return notFound(id)
	}
	c.State, c.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	r.ended[id] = make(chan struct{})
	r.tellLocked(r.box[id])
	return nil
}

// End makes the running container of that name end by itself. It reports whether there was one.
func (r *Runtime) End(name string, code int32, reason string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, c := range r.containers {
		if c.Metadata.Name == name && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r.endLocked(id, code, reason)
			return true
		}
	}
	return false
}

// Kill makes the sandbox of a pod die with all in it.
func (r *Runtime) Kill(pod string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, b := range r.boxes {
		if b.Metadata.Name == pod {
			b.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
			r.tellLocked(id)
		}
	}
}

func (r *Runtime) endLocked(id string, code int32, reason string) {
	c := r.containers[id]
	if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	ended := cloneStatus(c)
	ended.State, ended.ExitCode, ended.Reason = runtimeapi.ContainerState_CONTAINER_EXITED, code, reason
	ended.FinishedAt = time.Now().UnixNano()
	r.containers[id] = ended
	close(r.ended[id])
	r.tellLocked(r.box[id])
}

func cloneStatus(c *runtimeapi.ContainerStatus) *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{Id: c.Id, Metadata: c.Metadata, Labels: c.Labels, Annotations: c.Annotations,
		Image:    c.Image,
		ImageRef: c.ImageRef, State: c.State, CreatedAt: c.CreatedAt, StartedAt: c.StartedAt, FinishedAt: c.FinishedAt,
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message, LogPath: c.LogPath, Resources: c.Resources}
}

// StopContainer implements cri.Runtime.
func (r *Runtime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	r.mu.Lock()
	c := r.containers[id]
	if c == nil || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.mu.Unlock()
		return nil
	}
	if !r.Stubborn[c.Metadata.Name] {
		r.endLocked(id, 143, "")
		r.mu.Unlock()
		return nil
	}
	ended := r.ended[id]
	r.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-ended:
	case <-timer.C:
		r.mu.Lock()
		r.endLocked(id, 137, "")
		r.mu.Unlock()
	}
	return nil
}

func (r *Runtime) removeLocked(id string) {
	if r.containers[id] != nil {
		r.endLocked(id, 137, "")
	}
	delete(r.containers, id)
	delete(r.box, id)
	delete(r.labels, id)
}

// RemoveContainer implements cri.Runtime.
func (r *Runtime) RemoveContainer(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(id)
	return nil
}

// UpdateContainerResources implements cri.Runtime.
func (r *Runtime) UpdateContainerResources(
	_ context.Context, id string, resources *runtimeapi.LinuxContainerResources,
) error {
	r.mu.Lock()
	c := r.containers[id]
	r.mu.Unlock()
	if c == nil {
		return notFound(id)
	}
	if err := r.refuse("UpdateContainerResources", c.Metadata.Name); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c = r.containers[id]; c == nil {
		return notFound(id)
	}
	updated := cloneStatus(c)
	updated.Resources = &runtimeapi.ContainerResources{Linux: resources}
	r.containers[id] = updated
	return nil
}

// ContainerStatus implements cri.Runtime.
func (r *Runtime) ContainerStatus(_ context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound(id)
	}
	return cloneStatus(c), nil
}

// SandboxNetwork implements cri.Runtime: all sandboxes are on the node's network.
func (r *Runtime) SandboxNetwork(context.Context, string) (string, error) { return "", nil }

// ContainerPID implements cri.Runtime: there are no processes here.
func (r *Runtime) ContainerPID(context.Context, string) (int, error) { return 0, nil }

// ListContainers implements cri.Runtime.
func (r *Runtime) ListContainers(_ context.Context, selector map[string]string) ([]*runtimeapi.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.Container
	for id, c := range r.containers {
		if matches(r.labels[id], selector) {
			list = append(list,
				&runtimeapi.Container{Id: id, PodSandboxId: r.box[id], Metadata: c.Metadata, Labels: c.Labels,
					State: c.State, CreatedAt: c.CreatedAt, Image: c.Image, ImageRef: c.ImageRef})
		}
	}
	return list, nil
}

// ReopenContainerLog implements cri.Runtime.
func (r *Runtime) ReopenContainerLog(context.Context, string) error { return nil }

// ExecSync implements cri.Runtime.
func (r *Runtime) ExecSync(_ context.Context, id string, command []string, _ time.Duration) (cri.ExecResult, error) {
	r.mu.Lock()
	c := r.containers[id]
	r.mu.Unlock()
	if c == nil {
		return cri.ExecResult{}, notFound(id)
	}
	if r.OnExec == nil {
		return cri.ExecResult{}, nil
	}
	return r.OnExec(c.Metadata.Name, command), nil
}

// Exec implements cri.Streams.
func (r *Runtime) Exec(context.Context, *runtimeapi.ExecRequest) (string, error) {
	return "", status.Error(codes.Unimplemented, "no streams in memory")
}

// Attach implements cri.Streams.
func (r *Runtime) Attach(context.Context, *runtimeapi.AttachRequest) (string, error) {
	return "", status.Error(codes.Unimplemented, "no streams in memory")
}

// ListContainerStats implements cri.Runtime.
func (r *Runtime) ListContainerStats(
	_ context.Context, selector map[string]string,
) ([]*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.ContainerStats
	for id, c := range r.containers {
		if used, ok := r.memory[c.Metadata.Name]; ok && matches(r.labels[id], selector) {
			list = append(list,
				&runtimeapi.ContainerStats{
					Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: c.Metadata, Labels: c.Labels},
					Memory: &runtimeapi.MemoryUsage{UsageBytes: &runtimeapi.UInt64Value{Value: used},
						WorkingSetBytes: &runtimeapi.UInt64Value{Value: used}}})
		}
	}
	return list, nil
}

// Uses makes the containers of that name use that much memory.
func (r *Runtime) Uses(name string, bytes uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		r.memory = map[string]uint64{}
	}
	r.memory[name] = bytes
}

// Annotate changes an annotation of a container, as if another version had made it.
func (r *Runtime) Annotate(id, key, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	updated := cloneStatus(r.containers[id])
	updated.Annotations = maps.Clone(updated.Annotations)
	updated.Annotations[key] = value
	r.containers[id] = updated
}

// Events implements cri.Runtime.
func (r *Runtime) Events(ctx context.Context, ready func(), fn func(*runtimeapi.ContainerEventResponse)) error {
	events := make(chan *runtimeapi.ContainerEventResponse, 64)
	r.mu.Lock()
	r.next++
	id := r.next
	r.listeners[id] = events
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.listeners, id)
		r.mu.Unlock()
	}()
	ready()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-events:
			fn(e)
		}
	}
}

// ListImages implements cri.Images.
func (r *Runtime) ListImages(context.Context) ([]*runtimeapi.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.images)), nil
}

// ImageStatus implements cri.Images.
func (r *Runtime) ImageStatus(_ context.Context, image string) (*runtimeapi.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.images[image], nil
}

// PullImage implements cri.Images.
func (r *Runtime) PullImage(
	_ context.Context, image string, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig,
) (string, error) {
	if err := r.refuse("PullImage", image); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pulls = append(r.pulls, image)
	r.images[image] = &runtimeapi.Image{Id: image, RepoTags: []string{image}}
	return image, nil
}

// Pulls lists the pulled images.
func (r *Runtime) Pulls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.pulls)
}

// RemoveImage implements cri.Images.
func (r *Runtime) RemoveImage(_ context.Context, image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.images, image)
	return nil
}

// ImageFsInfo implements cri.Images.
func (r *Runtime) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{
		{FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}}}}, nil
}
