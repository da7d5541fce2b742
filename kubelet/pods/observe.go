package pods

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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"

	"github.com/barque/barque/kubelet/cri"
)

// observe reads the runtime's state of a pod.
func (w *worker) observe(ctx context.Context) (Observed, error) {
	var o Observed
	selector := map[string]string{cri.LabelPodUID: string(w.uid)}
	boxes, err := w.m.Runtime.ListPodSandboxes(ctx, selector)
	if err != nil {
		return o, err
	}
	for _, b := range boxes {
		box := Sandbox{ID: b.Id, Attempt: b.GetMetadata().GetAttempt(), CreatedAt: time.Unix(0, b.CreatedAt),
			Ready: b.State == runtimeapi.PodSandboxState_SANDBOX_READY}
		if box.Ready {
			if err := w.addressesOf(ctx, &box); err != nil {
				return o, err
			}
		}
		o.Sandboxes = append(o.Sandboxes, box)
	}
	slices.SortFunc(o.Sandboxes, func(a, b Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt))
	})
	list, err := w.m.Runtime.ListContainers(ctx, selector)
	if err != nil {
		return o, err
	}
	for _, item := range list {
		status, err := w.m.Runtime.ContainerStatus(ctx, item.Id)
		if cri.IsNotFound(err) {
			continue // gone since
		}
		if err != nil {
			return o, err
		}
		o.Containers = append(o.Containers, w.container(ctx, item, status))
	}
	slices.SortFunc(o.Containers, func(a, b Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt))
	})
	return o, nil
}

func (w *worker) addressesOf(ctx context.Context, box *Sandbox) error {
	status, err := w.m.Runtime.PodSandboxStatus(ctx, box.ID)
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
	box.IPs = orderIPs(box.IPs, w.m.HostIPs)
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

func (w *worker) container(ctx context.Context, item *runtimeapi.Container, s *runtimeapi.ContainerStatus) Container {
	c := Container{
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
	if r := s.GetResources().GetLinux(); r != nil {
		c.Limits = &Limits{Shares: r.CpuShares, Quota: max(r.CpuQuota, 0), Memory: max(r.MemoryLimitInBytes, 0)}
	}
	if s.StartedAt > 0 {
		c.StartedAt = time.Unix(0, s.StartedAt)
	}
	switch s.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.State = Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.State = Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		c.State = Exited
		c.FinishedAt = time.Unix(0, s.FinishedAt)
		c.Message = w.lastWords(ctx, s)
	default:
		c.State = Unknown
	}
	if u := s.GetUser().GetLinux(); u != nil {
		c.User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	return c
}

// Bounds of a termination message, or of the log in its place, for one container and for all
// containers of a pod together.
const (
	maxMessage     = 4096
	maxLogMessage  = 2048
	maxLogMsgLines = 80
	maxPodMessages = 12 << 10
)

// lastWords returns the message of an ended container: the runtime's and the container's own.
func (w *worker) lastWords(ctx context.Context, s *runtimeapi.ContainerStatus) string {
	if said, ok := w.messages[s.Id]; ok {
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
	w.messages[s.Id] = said
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
