package server

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"

	"github.com/barque/barque/kubelet/cri"
)

// logs serves the log of a container. A client gets all of it, or a response that is cut: a
// response that ends well although the node stops, or the log cannot be read, would pass for the
// whole log.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	pod, err := s.podNamed(r)
	if err != nil {
		fail(w, err)
		return
	}
	opts, previous, stream, err := logOptions(r.URL.Query(), s.Now())
	if err != nil {
		fail(w, err)
		return
	}
	status, err := s.logged(r, pod, previous)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	out := &flusher{w: w, control: http.NewResponseController(w)}
	if opts.Follow {
		out.flush() // a client that follows needs the header, though no line may come for long
	}
	stdout, stderr := io.Writer(out), io.Writer(out)
	switch stream {
	case v1.LogStreamStdout:
		stderr = io.Discard
	case v1.LogStreamStderr:
		stdout = io.Discard
	}
	err = logs.ReadLogs(r.Context(), status.LogPath, status.Id, opts, containerStates{runtime: s.Runtime}, stdout,
		stderr)
	if err == nil {
		return
	}
	if r.Context().Err() == nil {
		if !out.begun {
			fail(w, fmt.Errorf("read the log: %w", err))
			return
		}
		s.Logger.Warn("cannot read a log to its end", "container", status.Id, "err", err)
	}
	panic(http.ErrAbortHandler)
}

// logged finds the container of a request for logs.
func (s *Server) logged(r *http.Request, pod *v1.Pod, previous bool) (*runtimeapi.ContainerStatus, error) {
	name := r.PathValue("container")
	if !hasContainer(pod, name) {
		return nil,
			&httpError{http.StatusNotFound,
				fmt.Sprintf("container %q is not in pod %s/%s", name, pod.Namespace, pod.Name)}
	}
	list, err := s.containers(r.Context(), pod, name)
	if err != nil {
		return nil, err
	}
	if previous {
		// While a container waits to be started again, the newest one is the previous one. The
		// status may be older than a newest one that runs already.
		if len(list) > 0 &&
			(list[0].State != runtimeapi.ContainerState_CONTAINER_EXITED || waitingReason(pod, name) == "") {
			list = list[1:]
		}
		if len(list) == 0 {
			return nil,
				&httpError{http.StatusBadRequest,
					fmt.Sprintf("previous terminated container %q in pod %q not found", name, pod.Name)}
		}
	}
	if len(list) == 0 {
		return nil, &httpError{http.StatusBadRequest, fmt.Sprintf("container %q in pod %q is waiting to start: %s",
			name, pod.Name, cmp.Or(waitingReason(pod, name), "ContainerCreating"))}
	}
	return s.Runtime.ContainerStatus(r.Context(), list[0].Id)
}

func hasContainer(pod *v1.Pod, name string) bool {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return true
		}
	}
	return false
}

// waitingReason returns the reason why a container waits, or "".
func waitingReason(pod *v1.Pod, name string) string {
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; list[i].Name == name && w != nil {
				if w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff" {
					return "trying and failing to pull image"
				}
				return cmp.Or(w.Reason, "ContainerCreating")
			}
		}
	}
	return ""
}

func logOptions(q url.Values, now time.Time) (opts *logs.LogOptions, previous bool, stream string, err error) {
	opts = &logs.LogOptions{}
	number := func(name string) (*int64, error) {
		text := q.Get(name)
		if text == "" {
			return nil, nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return nil,
				&httpError{http.StatusUnprocessableEntity,
					fmt.Sprintf("%s: %q is not a number of at least 0", name, text)}
		}
		return &n, nil
	}
	flag := func(name string) bool {
		on, err := strconv.ParseBool(q.Get(name))
		return err == nil && on
	}
	if opts.TailLines, err = number("tailLines"); err != nil {
		return nil, false, "", err
	}
	if opts.LimitBytes, err = number("limitBytes"); err != nil {
		return nil, false, "", err
	}
	since, err := number("sinceSeconds")
	if err != nil {
		return nil, false, "", err
	}
	if since != nil {
		opts.Since = now.Add(-time.Duration(*since) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		if opts.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return nil, false, "", &httpError{http.StatusUnprocessableEntity, fmt.Sprintf("sinceTime: %v", err)}
		}
	}
	opts.Follow, opts.Timestamp = flag("follow"), flag("timestamps")
	return opts, flag("previous"), q.Get("stream"), nil
}

// flusher sends each write at once.
type flusher struct {
	w       io.Writer
	control *http.ResponseController
	begun   bool // the header was sent
}

func (f *flusher) Write(p []byte) (int, error) {
	f.begun = true
	n, err := f.w.Write(p)
	if err == nil {
		f.flush()
	}
	return n, err
}

func (f *flusher) flush() {
	f.begun = true
	_ = f.control.Flush() // without Flush, the server sends when its buffer is full
}

// containerStates answers the only call of the reader of logs to the runtime.
type containerStates struct {
	internalapi.RuntimeService // no other method is called
	runtime                    Runtime
}

func (c containerStates) ContainerStatus(
	ctx context.Context, id string, _ bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	status, err := c.runtime.ContainerStatus(ctx, id)
	if cri.IsNotFound(err) {
		// It was removed: the reader takes the rest of the file, and has all.
		status, err = &runtimeapi.ContainerStatus{Id: id, State: runtimeapi.ContainerState_CONTAINER_EXITED}, nil
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatusResponse{Status: status}, nil
}
