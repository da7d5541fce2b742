package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lives is a runtime that knows the lives of one container, by when they began. The newest is in a
// state, the others have ended.
type lives struct {
	Runtime
	began  []int64
	newest runtimeapi.ContainerState
}

func (l lives) ListContainers(context.Context, map[string]string) ([]*runtimeapi.Container, error) {
	var list []*runtimeapi.Container
	for i, at := range l.began {
		list = append(list,
			&runtimeapi.Container{Id: string(rune('a' + i)), CreatedAt: at,
				State: runtimeapi.ContainerState_CONTAINER_EXITED})
	}
	if len(list) > 0 {
		list[len(list)-1].State = l.newest
	}
	return list, nil
}

func (l lives) ContainerStatus(_ context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	return &runtimeapi.ContainerStatus{Id: id}, nil
}

// TestWhichLog: the previous container is the one before the running one, or the newest
// while none runs.
func TestWhichLog(t *testing.T) {
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waiting := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	const runs, ended = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	for _, c := range []struct {
		name     string
		began    []int64
		newest   runtimeapi.ContainerState
		state    v1.ContainerState
		previous bool
		want     string // "" for an error
	}{
		{"the one that runs", []int64{1, 2}, runs, running, false, "b"},
		{"the one before it", []int64{1, 2}, runs, running, true, "a"},
		{"none before the first", []int64{1}, runs, running, true, ""},
		{"the last words of one in back-off", []int64{1, 2}, ended, waiting, false, "b"},
		{"previous of one in back-off", []int64{1, 2}, ended, waiting, true, "b"},
		{"previous of one that never ran", nil, ended, waiting, true, ""},
		{"previous of one that runs again, of which the status does not tell yet", []int64{1, 2}, runs, waiting, true,
			"a"},
		{"previous of one that was just made", []int64{1, 2}, runtimeapi.ContainerState_CONTAINER_CREATED, waiting,
			true, "a"},
		{"previous of one that has just ended", []int64{1, 2}, ended, running, true, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}},
				Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "c", State: c.state}}}}
			s := &Server{Config: Config{Runtime: lives{began: c.began, newest: c.newest}}}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.SetPathValue("container", "c")
			status, err := s.logged(r, pod, c.previous)
			if (err != nil) != (c.want == "") || err == nil && status.Id != c.want {
				t.Errorf("%v, %v; want %q", status, err, c.want)
			}
		})
	}
}

// logging is a runtime whose container writes a log, until it is removed or unknown.
type logging struct {
	lives
	path string
	fate *atomic.Pointer[error]
}

func (l logging) ContainerStatus(_ context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	if why := l.fate.Load(); why != nil {
		return nil, *why
	}
	return &runtimeapi.ContainerStatus{Id: id, LogPath: l.path, State: runtimeapi.ContainerState_CONTAINER_RUNNING}, nil
}

// TestALogEndsWellOnlyAtItsEnd: the reader of a log that grows sees a cut response where the node
// stops or the log cannot be read on, and a whole one where the container has ended.
func TestALogEndsWellOnlyAtItsEnd(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	for name, c := range map[string]struct {
		stops bool
		fate  error
		whole bool
	}{
		"the node stops":                 {stops: true},
		"the runtime fails":              {fate: errors.New("no such shim")},
		"the container is there no more": {fate: status.Error(codes.NotFound, "no such container"), whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			if err := os.WriteFile(path, []byte("2026-11-30T00:00:00.000000000Z stdout F a line\n"),
				0o600); err != nil {
				t.Fatal(err)
			}
			var fate atomic.Pointer[error]
			s := &Server{Config: Config{Pods: podList{pod}, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
				Runtime: logging{lives{began: []int64{1}}, path, &fate}}}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			mux := http.NewServeMux()
			mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", s.logs)
			server := httptest.NewUnstartedServer(mux)
			server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
			server.Start()
			defer server.Close()
			answer, err := http.Get(server.URL + "/containerLogs/ns/p/c?follow=true")
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			body := bufio.NewReader(answer.Body)
			if line, err := body.ReadString('\n'); err != nil || line != "a line\n" {
				t.Fatalf("read %q, %v", line, err)
			}
			if c.fate != nil {
				fate.Store(&c.fate)
			}
			if c.stops {
				stop()
			}
			rest, err := io.ReadAll(body)
			if len(rest) > 0 || (err == nil) != c.whole {
				t.Errorf("the client has read %q more, %v", rest, err)
			}
		})
	}
}
