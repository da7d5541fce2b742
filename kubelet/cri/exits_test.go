package cri

import (
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/exits"
)

func TestCorrectExit(t *testing.T) {
	const exited = runtimeapi.ContainerState_CONTAINER_EXITED
	at := time.Unix(1700000000, 0)
	type end struct {
		state    runtimeapi.ContainerState
		code     int32
		reason   string
		finished int64
	}
	for _, c := range []struct {
		name      string
		has, want end
		record    exits.Record
	}{
		{"lost, done", end{exited, 255, "Unknown", 9}, end{exited, 0, "Completed", at.UnixNano()},
			exits.Record{FinishedAt: at}},
		{"lost, failed", end{exited, 255, "Unknown", 9}, end{exited, 7, "Error", at.UnixNano()},
			exits.Record{ExitCode: 7, FinishedAt: at}},
		{"lost, 255 indeed", end{exited, 255, "Unknown", 9}, end{exited, 255, "Error", at.UnixNano()},
			exits.Record{ExitCode: 255, FinishedAt: at}},
		{"lost, out of memory", end{exited, 255, "Unknown", 9}, end{exited, 137, "OOMKilled", at.UnixNano()},
			exits.Record{ExitCode: 137, FinishedAt: at, OOMKilled: true}},
		{"known but for the memory", end{exited, 137, "Error", 9}, end{exited, 137, "OOMKilled", 9},
			exits.Record{ExitCode: 137, FinishedAt: at, OOMKilled: true}},
		{"known", end{exited, 3, "Error", 9}, end{exited, 3, "Error", 9}, exits.Record{ExitCode: 3, FinishedAt: at}},
		{"known, 255 by itself", end{exited, 255, "Error", 9}, end{exited, 255, "Error", 9},
			exits.Record{ExitCode: 255, FinishedAt: at}},
		{"done in spite of a child's death", end{exited, 0, "Completed", 9}, end{exited, 0, "Completed", 9},
			exits.Record{FinishedAt: at, OOMKilled: true}},
		{"runs", end{runtimeapi.ContainerState_CONTAINER_RUNNING, 0, "", 0},
			end{runtimeapi.ContainerState_CONTAINER_RUNNING, 0, "", 0}, exits.Record{ExitCode: 7, FinishedAt: at}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &runtimeapi.ContainerStatus{State: c.has.state, ExitCode: c.has.code, Reason: c.has.reason,
				FinishedAt: c.has.finished}
			changed := CorrectExit(s, c.record)
			if got := (end{s.State, s.ExitCode, s.Reason, s.FinishedAt}); got != c.want ||
				changed != (c.has != c.want) {
				t.Errorf("%+v, changed %v; want %+v", got, changed, c.want)
			}
			if CorrectExit(s, c.record) {
				t.Error("corrected twice")
			}
		})
	}
	if CorrectExit(nil, exits.Record{}) {
		t.Error("no status was corrected")
	}
}
