package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/shutdown"
)

const maxImagesTold = 50

// Faults are the faults that a node finds with itself.
type Faults struct {
	Runtime bool // it does not answer, or reports that it is not ready
	Network bool // the runtime reports that the pods' network is not ready
	Disk    bool // little space, or few inodes
	Memory  bool
	PIDs    bool
}

// conditions returns the node's conditions, from the eviction manager's findings and
// the runtime's status.
func (r *Reporter) conditions(ctx context.Context) ([]v1.NodeCondition, Faults) {
	var short []v1.NodeConditionType
	if r.Short != nil {
		short = r.Short()
	}
	faults := Faults{Memory: slices.Contains(short, v1.NodeMemoryPressure),
		Disk: slices.Contains(short, v1.NodeDiskPressure),
		PIDs: slices.Contains(short, v1.NodePIDPressure)}
	return append(pressures(short), r.ready(ctx, &faults)), faults
}

func pressure(kind v1.NodeConditionType, under bool, what, message string) v1.NodeCondition {
	if under {
		return v1.NodeCondition{Type: kind, Status: v1.ConditionTrue, Reason: "KubeletHas" + what + "Pressure",
			Message: message}
	}
	return v1.NodeCondition{Type: kind, Status: v1.ConditionFalse, Reason: "KubeletHasNo" + what + "Pressure",
		Message: "kubelet has no " + strings.ToLower(what) + " pressure"}
}

// pressures returns the conditions about short resources.
func pressures(short []v1.NodeConditionType) []v1.NodeCondition {
	is := func(kind v1.NodeConditionType) bool { return slices.Contains(short, kind) }
	memory := pressure(v1.NodeMemoryPressure, is(v1.NodeMemoryPressure), "Memory",
		"kubelet has insufficient memory available")
	memory.Reason = "KubeletHasInsufficientMemory"
	if !is(v1.NodeMemoryPressure) {
		memory.Reason, memory.Message = "KubeletHasSufficientMemory", "kubelet has sufficient memory available"
	}
	disk := pressure(v1.NodeDiskPressure, is(v1.NodeDiskPressure), "Disk", "kubelet has disk pressure")
	pids := pressure(v1.NodePIDPressure, is(v1.NodePIDPressure), "PID", "kubelet has insufficient PID available")
	pids.Reason = "KubeletHasInsufficientPID"
	if !is(v1.NodePIDPressure) {
		pids.Reason, pids.Message = "KubeletHasSufficientPID", "kubelet has sufficient PID available"
	}
	return []v1.NodeCondition{memory, disk, pids}
}

// ready returns the condition Ready. It is false while the runtime has a fault or the
// machine goes down.
func (r *Reporter) ready(ctx context.Context, faults *Faults) v1.NodeCondition {
	c := r.runtimeReady(ctx, faults)
	switch {
	case r.Down == nil || !r.Down():
	case c.Status == v1.ConditionTrue:
		c.Status, c.Reason, c.Message = v1.ConditionFalse, "KubeletNotReady", shutdown.NodeMessage
	default:
		c.Message = "[" + c.Message + ", " + shutdown.NodeMessage + "]"
	}
	return c
}

// runtimeReady also sets the faults of the runtime in faults.
func (r *Reporter) runtimeReady(ctx context.Context, faults *Faults) v1.NodeCondition {
	notReady := func(format string, args ...any) v1.NodeCondition {
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady",
			Message: fmt.Sprintf(format, args...)}
	}
	status, err := r.Runtime.Status(ctx)
	if err != nil {
		faults.Runtime = true
		if cri.IsUnavailable(err) {
			return notReady("container runtime is not reachable")
		}
		return notReady("container runtime status check failed: %s", cri.Message(err))
	}
	for _, kind := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		ok := false
		message := "the runtime does not tell"
		for _, c := range status.GetStatus().GetConditions() {
			if c.Type == kind {
				ok, message = c.Status, c.Reason+": "+c.Message
			}
		}
		if !ok {
			faults.Runtime, faults.Network = kind == runtimeapi.RuntimeReady, kind == runtimeapi.NetworkReady
			return notReady("%s=false: %s", kind, message)
		}
	}
	return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status"}
}

// stamp gives conditions their times: the time of the last change stays while nothing changes.
func stamp(conditions, before []v1.NodeCondition, now time.Time) {
	for i := range conditions {
		c := &conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
		for j := range before {
			if before[j].Type == c.Type && before[j].Status == c.Status {
				c.LastTransitionTime = before[j].LastTransitionTime
			}
		}
	}
}
