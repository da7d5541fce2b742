package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

type podList []*v1.Pod

func (l podList) Pods() []*v1.Pod { return l }

// oneContainer is a runtime with one container that it reports as running.
type oneContainer struct {
	Runtime
	pid      int
	attached *runtimeapi.AttachRequest
}

func (o *oneContainer) ListContainers(context.Context, map[string]string) ([]*runtimeapi.Container, error) {
	return []*runtimeapi.Container{{Id: "c1", State: runtimeapi.ContainerState_CONTAINER_RUNNING}}, nil
}

func (o *oneContainer) ContainerPID(context.Context, string) (int, error) { return o.pid, nil }

func (o *oneContainer) Attach(_ context.Context, r *runtimeapi.AttachRequest) (string, error) {
	o.attached = r
	return "http://127.0.0.1:1/", nil
}

var _ cri.Streams = (*oneContainer)(nil)

// TestAttachRefused: an attach that would show nothing or never end is refused, so that kubectl run
// shows the log instead.
func TestAttachRefused(t *testing.T) {
	over := exec.Command("true")
	if err := over.Start(); err != nil {
		t.Fatal(err)
	}
	zombie := over.Process.Pid // once it has ended, until it is waited for
	if err := unix.Waitid(unix.P_PID, zombie, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = over.Wait() })
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, query string
		tty         bool
		pid         int
		want        int // 0: asked of the runtime
		text        string
	}{
		{"lives", "stdin=true&stdout=true&stderr=true", false, os.Getpid(), 0, ""},
		{"a runtime that tells no process", "stdout=true", false, 0, 0, ""},
		{"a terminal for a terminal", "stdin=true&stdout=true&tty=true", true, os.Getpid(), 0, ""},
		{"stderr of a terminal", "stdin=true&stdout=true&stderr=true", true, os.Getpid(), http.StatusBadRequest,
			"no stderr of its own"},
		{"ended, not collected", "stdout=true", false, zombie, http.StatusNotFound, "does not run"},
		{"ended and collected", "stdout=true", false, gone.Process.Pid, http.StatusNotFound, "does not run"},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
			Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", TTY: c.tty}}}}
		runtime := &oneContainer{pid: c.pid}
		s, err := New(
			Config{NodeName: "n1", TLS: &tls.Config{ClientCAs: x509.NewCertPool()}, Pods: podList{pod},
				Runtime: runtime})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/attach/ns/p/c?"+c.query, nil)
		r.SetPathValue("namespace", "ns")
		r.SetPathValue("pod", "p")
		r.SetPathValue("container", "c")
		w := httptest.NewRecorder()
		s.attach(w, r)
		passed := c.want == 0 // the stream is not served then, but it was requested
		if !passed && w.Code != c.want || !strings.Contains(w.Body.String(), c.text) ||
			(runtime.attached != nil) != passed {
			t.Errorf("%s: %d %q, attached %v", c.name, w.Code, w.Body, runtime.attached)
		}
	}
}
