package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/internal/execstream"
	"github.com/barque/barque/internal/procstat"
)

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	request, err := s.attachRequest(r)
	if err != nil {
		fail(w, err)
		return
	}
	location, err := s.Runtime.Attach(r.Context(), request)
	s.carry(w, r, location,
		execstream.Streams{Stdin: request.Stdin, Stdout: request.Stdout, Stderr: request.Stderr, TTY: request.Tty}, err)
}

// attachRequest refuses an attach that would show nothing, or never end, so that the client can
// read the log instead: kubectl run does.
func (s *Server) attachRequest(r *http.Request) (*runtimeapi.AttachRequest, error) {
	pod, err := s.podNamed(r)
	if err != nil {
		return nil, err
	}
	id, err := s.running(r, pod)
	if err != nil {
		return nil, err
	}
	st, err := streamsOf(r.URL.Query())
	if err != nil {
		return nil, err
	}
	name := r.PathValue("container")
	if st.Stderr && hasTerminal(pod, name) {
		// The runtime would wait for the end of a stream that such a container does not have.
		return nil, &httpError{http.StatusBadRequest, fmt.Sprintf(
			"container %s of pod %s/%s has a terminal and so no stderr of its own: attach with a terminal, or to stdout only", name, pod.Namespace, pod.Name)}
	}
	ended, err := s.hasEnded(r.Context(), id)
	if err != nil {
		return nil, err
	}
	if ended {
		return nil, notRunning(pod, name)
	}
	return &runtimeapi.AttachRequest{ContainerId: id, Tty: st.TTY, Stdin: st.Stdin, Stdout: st.Stdout,
		Stderr: st.Stderr}, nil
}

// hasEnded reports whether the process is gone of a container that the runtime still counts as
// running. A command that takes a few milliseconds has ended before a client can attach to it, and
// its output would be lost to clients that attach before the runtime has noticed.
func (s *Server) hasEnded(ctx context.Context, id string) (bool, error) {
	pid, err := s.Runtime.ContainerPID(ctx, id)
	if err != nil || pid == 0 {
		return false, err
	}
	stat, err := procstat.Read(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return err == nil && !stat.Runs(), err
}

func hasTerminal(pod *v1.Pod, container string) bool {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].TTY
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; c.Name == container {
			return c.TTY
		}
	}
	return false
}
