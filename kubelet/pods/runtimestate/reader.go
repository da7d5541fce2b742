package runtimestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"

	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/pods/lifecycle"
)

// Runtime is the part of cri.Runtime that a Reader needs.
type Runtime interface {
	ListPodSandboxes(ctx context.Context, selector map[string]string) ([]*runtimeapi.PodSandbox, error)
	PodSandboxStatus(ctx context.Context, id string) (*runtimeapi.PodSandboxStatus, error)
	ListContainers(ctx context.Context, selector map[string]string) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error)
}

// Reader reads the runtime's state of one pod. It is for one goroutine.
type Reader struct {
	runtime Runtime
	pod     types.UID
	hostIPs []string

	messages map[string]string // of ended containers, by ID: they are read once
}

// NewReader returns a reader of a pod on a node with the addresses hostIPs.
func NewReader(runtime Runtime, pod types.UID, hostIPs []string) *Reader {
	return &Reader{runtime: runtime, pod: pod, hostIPs: hostIPs, messages: map[string]string{}}
}

// Forget drops the message of a container that was removed.
func (r *Reader) Forget(containerID string) { delete(r.messages, containerID) }

// Read reads the runtime's state of the pod.
func (r *Reader) Read(ctx context.Context) (lifecycle.Observed, error) {
	var o lifecycle.Observed
	selector := map[string]string{cri.LabelPodUID: string(r.pod)}
	boxes, err := r.runtime.ListPodSandboxes(ctx, selector)
	if err != nil {
		return o, err
	}
	for _, b := range boxes {
		box := lifecycle.Sandbox{ID: b.Id, Attempt: b.GetMetadata().GetAttempt(), CreatedAt: time.Unix(0, b.CreatedAt),
			Ready: b.State == runtimeapi.PodSandboxState_SANDBOX_READY}
		if box.Ready {
			if err := r.addressesOf(ctx, &box); err != nil {
				return o, err
			}
		}
		o.Sandboxes = append(o.Sandboxes, box)
	}
	slices.SortFunc(o.Sandboxes, func(a, b lifecycle.Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt))
	})
	list, err := r.runtime.ListContainers(ctx, selector)
	if err != nil {
		return o, err
	}
	for _, item := range list {
		status, err := r.runtime.ContainerStatus(ctx, item.Id)
		if cri.IsNotFound(err) {
			continue // gone since
		}
		if err != nil {
			return o, err
		}
		o.Containers = append(o.Containers, r.container(ctx, item, status))
	}
	slices.SortFunc(o.Containers, func(a, b lifecycle.Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt))
	})
	return o, nil
}

func (r *Reader) addressesOf(ctx context.Context, box *lifecycle.Sandbox) error {
	status, err := r.runtime.PodSandboxStatus(ctx, box.ID)
	if cri.IsNotFound(err) {
		box.Ready = false
		return nil
	}
	if err != nil {
		return err
	}
	box.Ready = status.State == runtimeapi.PodSandboxState_SANDBOX_READY
	if ip := status.GetNetwork().GetIp(); ip != "" {
		box.IPs = append(box.IPs, ip)
	}
	for _, more := range status.GetNetwork().GetAdditionalIps() {
		box.IPs = append(box.IPs, more.Ip)
	}
	box.IPs = orderIPs(box.IPs, r.hostIPs)
	return nil
}

// orderIPs keeps the first address of each family, and puts that of the node's first family first.
func orderIPs(ips, hostIPs []string) []string {
	var of [2][]string // of the node's first family, and of the other one
	for _, ip := range ips {
		other := 0
		if len(hostIPs) > 0 && strings.Contains(ip, ":") != strings.Contains(hostIPs[0], ":") {
			other = 1
		}
		if len(of[other]) == 0 {
			of[other] = []string{ip}
		}
	}
	return append(of[0], of[1]...)
}

func (r *Reader) container(
	ctx context.Context, item *runtimeapi.Container, s *runtimeapi.ContainerStatus,
) lifecycle.Container {
	c := lifecycle.Container{
		ID: s.Id, Name: item.Labels[cri.LabelContainerName], SandboxID: item.PodSandboxId,
		Attempt: s.GetMetadata().GetAttempt(), CreatedAt: time.Unix(0, s.CreatedAt),
		ExitCode: s.ExitCode, Reason: s.Reason, Message: s.Message,
		SpecImage: s.Annotations[cri.AnnotationImage], Image: s.GetImage().GetImage(), ImageID: s.ImageRef,
	}
	if round, err := strconv.ParseUint(s.Annotations[cri.AnnotationRound], 10, 32); err == nil {
		c.Round = uint32(round)
	}
	if request, err := strconv.ParseInt(s.Annotations[cri.AnnotationMemoryRequest], 10, 64); err == nil {
		c.MemoryRequest = &request
	}
	if c.Name == "" {
		c.Name = s.GetMetadata().GetName()
	}
	if named := s.GetImage().GetUserSpecifiedImage(); named != "" {
		c.Image = named
	}
	if strings.HasPrefix(c.Image, "sha256:") && c.SpecImage != "" {
		c.Image = c.SpecImage
	}
	if c.ImageID == "" {
		c.ImageID = s.ImageId
	}
	if l := s.GetResources().GetLinux(); l != nil {
		c.Limits = &lifecycle.Limits{Shares: l.CpuShares, Quota: max(l.CpuQuota, 0),
			Memory: max(l.MemoryLimitInBytes, 0)}
	}
	if s.StartedAt > 0 {
		c.StartedAt = time.Unix(0, s.StartedAt)
	}
	switch s.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.State = lifecycle.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.State = lifecycle.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		c.State = lifecycle.Exited
		c.FinishedAt = time.Unix(0, s.FinishedAt)
		c.Message = r.terminationMessage(ctx, s)
	default:
		c.State = lifecycle.Unknown
	}
	if u := s.GetUser().GetLinux(); u != nil {
		c.User = &v1.ContainerUser{
			Linux: &v1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	return c
}

// Bounds of a container's termination message, or of the log in its place.
const (
	maxMessage     = 4096
	maxLogMessage  = 2048
	maxLogMsgLines = 80
)

// terminationMessage returns the message of an ended container: the runtime's and the container's
// own.
func (r *Reader) terminationMessage(ctx context.Context, s *runtimeapi.ContainerStatus) string {
	if said, ok := r.messages[s.Id]; ok {
		return said
	}
	said := fileTail(s.Annotations[cri.AnnotationTerminationFile])
	if said == "" && s.ExitCode != 0 &&
		s.Annotations[cri.AnnotationTerminationPolicy] == string(v1.TerminationMessageFallbackToLogsOnError) {
		said = logTail(ctx, s.LogPath)
	}
	if s.Message != "" && said != "" {
		said = s.Message + ": " + said
	}
	said = cmp.Or(said, s.Message)
	r.messages[s.Id] = said
	return said
}

// fileTail returns the end of a termination message file.
func fileTail(path string) string {
	if path == "" {
		return ""
	}
	text, err := readEnd(path, maxMessage)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("Error on reading termination log %s: %v", path, err)
	}
	return text
}

// readEnd returns at most the last limit bytes of a file.
func readEnd(path string, limit int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if _, err := f.Seek(max(info.Size()-limit, 0), io.SeekStart); err != nil {
		return "", err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	return strings.ToValidUTF8(string(data), ""), err
}

// logTail returns the last lines of a container's log.
func logTail(ctx context.Context, path string) string {
	lines := int64(maxLogMsgLines)
	var end tail
	if err := logs.ReadLogs(ctx, path, "", &logs.LogOptions{TailLines: &lines}, nil, &end, &end); err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	return strings.ToValidUTF8(string(end), "")
}

// tail keeps the last maxLogMessage bytes that are written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	all := append(*t, p...)
	*t = all[max(len(all)-maxLogMessage, 0):]
	return len(p), nil
}
