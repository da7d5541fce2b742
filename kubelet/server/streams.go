package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/internal/execstream"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/portforward"
)

// containers lists a pod's containers of one name, newest first.
func (s *Server) containers(ctx context.Context, pod *v1.Pod, name string) ([]*runtimeapi.Container, error) {
	list, err := s.Runtime.ListContainers(ctx, map[string]string{
		cri.LabelPodUID: string(pod.UID), cri.LabelContainerName: name})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	return list, nil
}

// running finds the running container of a request.
func (s *Server) running(r *http.Request, pod *v1.Pod) (string, error) {
	name := r.PathValue("container")
	list, err := s.containers(r.Context(), pod, name)
	if err != nil {
		return "", err
	}
	for _, c := range list {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return c.Id, nil
		}
	}
	return "", notRunning(pod, name)
}

func notRunning(pod *v1.Pod, container string) error {
	return &httpError{http.StatusNotFound,
		fmt.Sprintf("container %s of pod %s/%s does not run", container, pod.Namespace, pod.Name)}
}

// streamsOf reads the requested streams. The API server and clients write 1 or true.
func streamsOf(q url.Values) (execstream.Streams, error) {
	is := func(names ...string) bool {
		for _, name := range names {
			if v := q.Get(name); v == "1" || v == "true" {
				return true
			}
		}
		return false
	}
	st := execstream.Streams{Stdin: is("input", "stdin"), Stdout: is("output", "stdout"), Stderr: is("error", "stderr"),
		TTY: is("tty")}
	if st.TTY && st.Stderr {
		st.Stderr = false // a terminal has one output
	}
	if !st.Stdin && !st.Stdout && !st.Stderr {
		return st, &httpError{http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr"}
	}
	return st, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	pod, err := s.podNamed(r)
	if err != nil {
		fail(w, err)
		return
	}
	id, err := s.running(r, pod)
	if err != nil {
		fail(w, err)
		return
	}
	st, err := streamsOf(r.URL.Query())
	if err != nil {
		fail(w, err)
		return
	}
	location, err := s.Runtime.Exec(r.Context(), &runtimeapi.ExecRequest{
		ContainerId: id, Cmd: r.URL.Query()["command"], Tty: st.TTY, Stdin: st.Stdin, Stdout: st.Stdout,
		Stderr: st.Stderr})
	s.carry(w, r, location, st, err)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	pod, err := s.podNamed(r)
	if err != nil {
		fail(w, err)
		return
	}
	boxes, err := s.Runtime.ListPodSandboxes(r.Context(), map[string]string{cri.LabelPodUID: string(pod.UID)})
	if err != nil {
		fail(w, err)
		return
	}
	at := slices.IndexFunc(boxes,
		func(b *runtimeapi.PodSandbox) bool { return b.State == runtimeapi.PodSandboxState_SANDBOX_READY })
	if at < 0 {
		fail(w, &httpError{http.StatusNotFound, fmt.Sprintf("pod %s/%s does not run", pod.Namespace, pod.Name)})
		return
	}
	id := boxes[at].Id
	portforward.Serve(w, r, portforward.Target{
		Pod: pod.Namespace + "/" + pod.Name, UID: string(pod.UID), Logger: s.Logger, Refusals: &s.refusals,
		Idle:    s.idle(),
		Network: func(ctx context.Context) (string, error) { return s.Runtime.SandboxNetwork(ctx, id) },
	})
}

// carry passes the client's streams to the runtime's streaming server.
func (s *Server) carry(w http.ResponseWriter, r *http.Request, location string, streams execstream.Streams, err error) {
	if err != nil {
		fail(w, err)
		return
	}
	target, err := url.Parse(location)
	if err != nil {
		fail(w, fmt.Errorf("the runtime's streaming address %q: %w", location, err))
		return
	}
	(&execstream.Handler{Location: target, Transport: toRuntime, Streams: streams, Idle: s.idle(),
		Fail: unreachable}).ServeHTTP(w, r)
}

// toRuntime connects to the runtime's streaming server.
var toRuntime = &http.Transport{
	TLSClientConfig: &tls.Config{}, // a runtime that serves https shows a certificate
	DialContext:     (&net.Dialer{}).DialContext,
}

// unreachable answers when the runtime's streaming server cannot be reached, or the request is no
// request for streams.
func unreachable(w http.ResponseWriter, _ *http.Request, err error) {
	code := http.StatusBadGateway
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		code = int(known.Status().Code)
	}
	http.Error(w, err.Error(), code)
}

// idle bounds a stream without traffic.
func (s *Server) idle() time.Duration { return s.Settings.StreamingConnectionIdleTimeout.Duration }
