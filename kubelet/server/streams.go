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
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
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

// running finds the running container of a pod that a request is about.
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
	return &httpError{http.StatusNotFound, fmt.Sprintf("container %s of pod %s/%s does not run", container, pod.Namespace, pod.Name)}
}

// streams says which streams a request wants. The API server and clients write 1 or true.
type streams struct {
	stdin, stdout, stderr, tty bool
}

func streamsOf(q url.Values) (streams, error) {
	is := func(names ...string) bool {
		for _, name := range names {
			if v := q.Get(name); v == "1" || v == "true" {
				return true
			}
		}
		return false
	}
	st := streams{stdin: is("input", "stdin"), stdout: is("output", "stdout"), stderr: is("error", "stderr"), tty: is("tty")}
	if st.tty && st.stderr {
		st.stderr = false // a terminal has one output
	}
	if !st.stdin && !st.stdout && !st.stderr {
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
		ContainerId: id, Cmd: r.URL.Query()["command"], Tty: st.tty, Stdin: st.stdin, Stdout: st.stdout, Stderr: st.stderr})
	s.carry(w, r, location, err)
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
	at := slices.IndexFunc(boxes, func(b *runtimeapi.PodSandbox) bool { return b.State == runtimeapi.PodSandboxState_SANDBOX_READY })
	if at < 0 {
		fail(w, &httpError{http.StatusNotFound, fmt.Sprintf("pod %s/%s does not run", pod.Namespace, pod.Name)})
		return
	}
	req := &runtimeapi.PortForwardRequest{PodSandboxId: boxes[at].Id}
	for _, text := range r.URL.Query()["port"] { // WebSocket clients name the ports here, others in their streams
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			fail(w, &httpError{http.StatusBadRequest, fmt.Sprintf("%q is not a port", text)})
			return
		}
		req.Port = append(req.Port, int32(port))
	}
	location, err := s.Runtime.PortForward(r.Context(), req)
	s.carry(w, r, location, err)
}

// carry hands the connection through to the runtime's streaming server.
func (s *Server) carry(w http.ResponseWriter, r *http.Request, location string, err error) {
	if err != nil {
		fail(w, err)
		return
	}
	target, err := url.Parse(location)
	if err != nil {
		fail(w, fmt.Errorf("the runtime's streaming address %q: %w", location, err))
		return
	}
	proxy.NewUpgradeAwareHandler(target, toRuntime, false, true, responder{}).ServeHTTP(w, r)
}

// toRuntime connects to the runtime's streaming server.
var toRuntime = &http.Transport{
	TLSClientConfig: &tls.Config{}, // a runtime that serves https shows a certificate
	DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return runtimeConn{conn}, nil
	},
}

// runtimeConn drops what is written after the runtime has closed, as it does when a command ends. A
// failed write would end the stream at once, and be logged; what the runtime said last has to reach
// the client first. The end of that ends the stream.
type runtimeConn struct{ net.Conn }

func (c runtimeConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return len(p), nil
	}
	return n, err
}

// responder answers when the runtime's streaming server cannot be reached.
type responder struct{}

func (responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}
