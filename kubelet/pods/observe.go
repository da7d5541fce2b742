package pods

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// observe asks the runtime for all it knows of a pod.
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
		o.Containers = append(o.Containers, w.container(item, status))
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
	return nil
}

func (w *worker) container(item *runtimeapi.Container, s *runtimeapi.ContainerStatus) Container {
	c := Container{
		ID: s.Id, Name: item.Labels[cri.LabelContainerName], SandboxID: item.PodSandboxId,
		Attempt: s.GetMetadata().GetAttempt(), CreatedAt: time.Unix(0, s.CreatedAt),
		ExitCode: s.ExitCode, Reason: s.Reason, Message: s.Message,
		SpecImage: s.Annotations[cri.AnnotationImage], Image: s.GetImage().GetImage(), ImageID: s.ImageRef,
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
		c.Message = w.lastWords(s)
	default:
		c.State = Unknown
	}
	if u := s.GetUser().GetLinux(); u != nil {
		c.User = &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: u.Uid, GID: u.Gid, SupplementalGroups: u.SupplementalGroups}}
	}
	return c
}

// How much of a termination message, or of the log in its place, is shown.
const (
	maxMessage     = 4096
	maxLogMessage  = 2048
	maxLogMsgLines = 80
)

// lastWords returns the message that an ended container left.
func (w *worker) lastWords(s *runtimeapi.ContainerStatus) string {
	if said, ok := w.messages[s.Id]; ok {
		return said
	}
	said := readHead(s.Annotations[cri.AnnotationTerminationFile], maxMessage)
	if said == "" && s.ExitCode != 0 &&
		s.Annotations[cri.AnnotationTerminationPolicy] == string(v1.TerminationMessageFallbackToLogsOnError) {
		said = logTail(s.LogPath)
	}
	if said == "" {
		said = s.Message
	}
	w.messages[s.Id] = said
	return said
}

func readHead(path string, limit int64) string {
	if path == "" {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(data), "")
}

// logTail returns the last lines of a CRI log, without the runtime's prefix to each line.
func logTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const look = 4 * maxLogMessage // prefixes included
	if info, err := f.Stat(); err == nil && info.Size() > look {
		if _, err := f.Seek(-look, io.SeekEnd); err != nil {
			return ""
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, look))
	if err != nil {
		return ""
	}
	var lines []string
	for line := range bytes.Lines(raw) {
		// time stream tag content
		if parts := bytes.SplitN(line, []byte(" "), 4); len(parts) == 4 {
			lines = append(lines, string(parts[3]))
		}
	}
	if len(lines) > maxLogMsgLines {
		lines = lines[len(lines)-maxLogMsgLines:]
	}
	tail := strings.Join(lines, "")
	if len(tail) > maxLogMessage {
		tail = tail[len(tail)-maxLogMessage:]
	}
	return strings.ToValidUTF8(tail, "")
}
