package probes

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/kubelet/cri"
)

// answers replies to commands by name: exit code.
type answers struct {
	mu    sync.Mutex
	codes map[string]int32
	asked map[string]int
}

func (a *answers) ExecSync(_ context.Context, _ string, command []string, _ time.Duration) (cri.ExecResult, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[command[0]]++
	return cri.ExecResult{ExitCode: a.codes[command[0]]}, nil
}

func (a *answers) set(name string, code int32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.codes[name] = code
}

func (a *answers) times(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[name]
}

func execProbe(name string, failures int32) *v1.Probe {
	return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{name}}}, PeriodSeconds: 1,
		FailureThreshold: failures}
}

// TestProbesOfAContainer follows one container through all results of its probes, in virtual time.
func TestProbesOfAContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exec := &answers{codes: map[string]int32{"start": 1, "ready": 1}, asked: map[string]int{}}
		told := 0
		m := New(
			Config{Exec: exec, Changed: func(types.UID) { told++ }, Unhealthy: func(*v1.Pod, *v1.Container, string) {},
				Logger: slog.New(slog.DiscardHandler)})
		defer m.Close()
		pod := &v1.Pod{}
		c := &v1.Container{StartupProbe: execProbe("start", 30), LivenessProbe: execProbe("live", 3),
			ReadinessProbe: execProbe("ready", 1)}
		target := Target{ID: "c", Container: c, StartedAt: time.Now()}
		m.Sync(pod, []Target{target})
		is := func(want Health) {
			t.Helper()
			synctest.Wait()
			if got, ok := m.Health("c"); !ok || got != want {
				t.Errorf("at %s: %+v %v, want %+v", time.Since(target.StartedAt), got, ok, want)
			}
		}
		time.Sleep(5500 * time.Millisecond)
		is(Health{})
		if exec.times("live") != 0 || exec.times("ready") != 0 {
			t.Error("it was probed before it had started")
		}
		exec.set("start", 0)
		time.Sleep(2 * time.Second)
		is(Health{Started: true})
		exec.set("ready", 0)
		time.Sleep(time.Second)
		is(Health{Started: true, Ready: true})
		exec.set("ready", 1)
		time.Sleep(time.Second)
		is(Health{Started: true})
		exec.set("live", 1)
		time.Sleep(2 * time.Second)
		is(Health{Started: true})
		time.Sleep(time.Second)
		is(Health{Started: true, Failed: "liveness"})
		if told != 4 {
			t.Errorf("told %d changes, want 4", told)
		}
		m.Sync(pod, nil)
		if _, ok := m.Health("c"); ok {
			t.Error("a container that is gone is still probed")
		}
		// A container that was ready before a restart of the kubelet stays so until a probe fails.
		target.WasStarted, target.WasReady = true, true
		m.Sync(pod, []Target{target})
		if got, _ := m.Health("c"); !got.Started || !got.Ready {
			t.Errorf("after a restart: %+v", got)
		}
	})
}

// A container that listens a moment after its start is ready then, not a period later, and without
// a warning.
func TestReadyAsSoonAsItListens(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	m := New(Config{
		Changed:   func(types.UID) { changed <- struct{}{} },
		Unhealthy: func(_ *v1.Pod, _ *v1.Container, message string) { t.Errorf("told of %q", message) },
		Logger:    slog.New(slog.DiscardHandler),
	})
	defer m.Close()
	probe := &v1.Probe{PeriodSeconds: 60, TimeoutSeconds: int32(soon / time.Second),
		ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.Parse(port), Scheme: v1.URISchemeHTTP}}}
	m.Sync(&v1.Pod{},
		[]Target{{ID: "c", Container: &v1.Container{ReadinessProbe: probe}, StartedAt: time.Now(), PodIP: host}})
	select {
	case <-changed:
	case <-time.After(3 * soon):
		t.Fatal("not ready although it answers")
	}
	if h, _ := m.Health("c"); !h.Ready || asked.Load() != 3 {
		t.Errorf("%+v after %d attempts", h, asked.Load())
	}
}

func TestOpeningEndsWithItsPeriod(t *testing.T) {
	now := time.Now()
	o := open("Readiness", &v1.Probe{}, now.Add(time.Second))
	var waits []time.Duration
	for {
		wait, ok := o.again(now)
		if !ok {
			break
		}
		waits = append(waits, wait)
		now = now.Add(wait)
	}
	want := []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond,
		300 * time.Millisecond}
	if !slices.Equal(waits, want) {
		t.Errorf("asked again after %v, want %v", waits, want)
	}
	if open("Liveness", &v1.Probe{}, now) != nil || open("Readiness", execProbe("x", 1), now) != nil {
		t.Error("a probe of life, or a command, is asked more often than its period says")
	}
}

// soon bounds an answer on a busy machine.
const soon = 20 * time.Second

func TestHTTP(t *testing.T) {
	var header http.Header
	var host string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/headers":
			header, host = r.Header, r.Host
		case "/ill":
			http.Error(w, "no", 500)
		case "/away":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		case "/slow":
			<-r.Context().Done()
		}
		if r.URL.Query().Get("q") == "bad" {
			http.Error(w, "no", 400)
		}
	}))
	defer server.Close()
	ip, text, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	port, _ := strconv.Atoi(text)
	c := &v1.Container{Ports: []v1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}}
	for path, ok := range map[string]bool{"/": true, "no-slash": true, "/ill": false, "/away": true, "/?q=bad": false,
		"/slow": false} {
		get := &v1.HTTPGetAction{Path: path, Port: intstr.FromString("web")}
		limit := soon
		if path == "/slow" {
			limit = 200 * time.Millisecond
		}
		if err := probeHTTP(context.Background(), get, c, ip, limit); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
	get := &v1.HTTPGetAction{Path: "/headers", Port: intstr.FromInt(port),
		HTTPHeaders: []v1.HTTPHeader{{Name: "Host", Value: "h"}, {Name: "X", Value: "1"}}}
	if err := probeHTTP(context.Background(), get, c, ip, soon); err != nil {
		t.Fatal(err)
	}
	if header.Get("X") != "1" || host != "h" || !strings.HasPrefix(header.Get("User-Agent"), "kube-probe/") {
		t.Errorf("%v to %s", header, host)
	}
	if err := probeHTTP(context.Background(), &v1.HTTPGetAction{Port: intstr.FromString("none")}, c, ip,
		soon); err == nil {
		t.Error("a port that is not there was found")
	}
	if err := probeTCP(context.Background(), ip, port, soon); err != nil {
		t.Error(err)
	}
	// No process listens there. A port that was released could be another process's.
	if err := probeTCP(context.Background(), ip, 1, soon); err == nil {
		t.Error("a port that is closed is open")
	}
}

func TestGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	checks := health.NewServer()
	checks.SetServingStatus("ill", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(server, checks)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	defer serving.Wait()
	defer server.Stop()
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	for service, ok := range map[string]bool{"": true, "ill": false, "unknown": false} {
		if err := probeGRPC(context.Background(), "127.0.0.1", &v1.GRPCAction{Port: port, Service: &service},
			soon); (err == nil) != ok {
			t.Errorf("%q: %v", service, err)
		}
	}
}
