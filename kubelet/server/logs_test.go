package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	v1 "k8s.io/api/core/v1"
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
		list = append(list, &runtimeapi.Container{Id: string(rune('a' + i)), CreatedAt: at, State: runtimeapi.ContainerState_CONTAINER_EXITED})
	}
	if len(list) > 0 {
		list[len(list)-1].State = l.newest
	}
	return list, nil
}

func (l lives) ContainerStatus(_ context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	return &runtimeapi.ContainerStatus{Id: id}, nil
}

// TestWhichLog: the previous container is the one before what runs, or the newest while none runs.
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
		{"previous of one that runs again, of which the status does not tell yet", []int64{1, 2}, runs, waiting, true, "a"},
		{"previous of one that was just made", []int64{1, 2}, runtimeapi.ContainerState_CONTAINER_CREATED, waiting, true, "a"},
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
