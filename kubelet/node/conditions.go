package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// When a node is short of something: what Kubernetes' defaults are for memory and disk.
const (
	memoryLow     = 100 << 20 // bytes
	diskLow       = 10        // percent of space
	inodesLow     = 5         // percent
	tasksLow      = 5         // percent
	maxImagesTold = 50
)

// Ills are what a node finds wrong with itself.
type Ills struct {
	Runtime bool // it does not answer, or says that it is not ready
	Network bool // the runtime says that the pods' network is not ready
	Disk    bool // little space, or few inodes
	Memory  bool
	PIDs    bool
}

// conditions looks at the machine and the runtime.
func (r *Reporter) conditions(ctx context.Context, d disk) ([]v1.NodeCondition, Ills) {
	memory, space, pids := memoryPressure(), diskPressure(d), pidPressure()
	isTrue := func(c v1.NodeCondition) bool { return c.Status == v1.ConditionTrue }
	ills := Ills{Memory: isTrue(memory), Disk: isTrue(space), PIDs: isTrue(pids)}
	return []v1.NodeCondition{memory, space, pids, r.ready(ctx, &ills)}, ills
}

func pressure(kind v1.NodeConditionType, under bool, what, message string) v1.NodeCondition {
	if under {
		return v1.NodeCondition{Type: kind, Status: v1.ConditionTrue, Reason: "KubeletHas" + what + "Pressure", Message: message}
	}
	return v1.NodeCondition{Type: kind, Status: v1.ConditionFalse, Reason: "KubeletHasNo" + what + "Pressure",
		Message: "kubelet has no " + strings.ToLower(what) + " pressure"}
}

func memoryPressure() v1.NodeCondition {
	available, err := meminfo("MemAvailable")
	low := err == nil && available < memoryLow
	c := pressure(v1.NodeMemoryPressure, low, "Memory", "kubelet has insufficient memory available")
	if !low {
		c.Reason, c.Message = "KubeletHasSufficientMemory", "kubelet has sufficient memory available"
	} else {
		c.Reason = "KubeletHasInsufficientMemory"
	}
	return c
}

func diskPressure(d disk) v1.NodeCondition {
	low := d.total > 0 && d.free*100 < d.total*diskLow ||
		d.totalInodes > 0 && d.freeInodes*100 < d.totalInodes*inodesLow
	return pressure(v1.NodeDiskPressure, low, "Disk", "kubelet has disk pressure")
}

func pidPressure() v1.NodeCondition {
	running, most, err := tasks()
	low := err == nil && (most-running)*100 < most*tasksLow
	c := pressure(v1.NodePIDPressure, low, "PID", "kubelet has insufficient PID available")
	if !low {
		c.Reason, c.Message = "KubeletHasSufficientPID", "kubelet has sufficient PID available"
	} else {
		c.Reason = "KubeletHasInsufficientPID"
	}
	return c
}

// ready also says in ills what of the runtime is not.
func (r *Reporter) ready(ctx context.Context, ills *Ills) v1.NodeCondition {
	notReady := func(format string, args ...any) v1.NodeCondition {
		return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady", Message: fmt.Sprintf(format, args...)}
	}
	status, err := r.Runtime.Status(ctx)
	if err != nil {
		ills.Runtime = true
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
			ills.Runtime, ills.Network = kind == runtimeapi.RuntimeReady, kind == runtimeapi.NetworkReady
			return notReady("%s=false: %s", kind, message)
		}
	}
	return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
}

// stamp gives conditions their times: that of the last change stays while nothing changed.
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
