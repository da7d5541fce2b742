package metrics

import (
	"cmp"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// terminations counts each container that has ended once, by the statuses of pods. Containers that
// the API server knew as ended before this kubelet saw the pod do not count.
type terminations struct {
	total *prometheus.CounterVec

	mu   sync.Mutex
	ends map[types.UID]map[string]bool // IDs of the containers in the last status of each pod
}

func newTerminations(counter func(name, help string) prometheus.CounterOpts) terminations {
	return terminations{
		total: prometheus.NewCounterVec(
			counter("terminated_containers_total", "Containers that ended, by kind, exit code and reason."),
			[]string{"container_type", "exit_code", "reason"}),
		ends: map[types.UID]map[string]bool{},
	}
}

func (t *terminations) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ends, uid)
}

func (t *terminations) seen(pod *v1.Pod, status v1.PodStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, known := t.ends[pod.UID]
	if !known {
		before = map[string]bool{}
		eachEnd(pod.Status, func(_, id string, _ *v1.ContainerStateTerminated) { before[id] = true })
	}
	now := map[string]bool{}
	eachEnd(status, func(kind, id string, end *v1.ContainerStateTerminated) {
		if now[id] = true; !before[id] {
			t.total.WithLabelValues(kind, strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
		}
	})
	t.ends[pod.UID] = now
}

// eachEnd calls f for every container that has ended: the last two of each name at most.
func eachEnd(status v1.PodStatus, f func(kind, id string, end *v1.ContainerStateTerminated)) {
	for kind, containers := range map[string][]v1.ContainerStatus{
		"init_container": status.InitContainerStatuses, "container": status.ContainerStatuses,
		"ephemeral_container": status.EphemeralContainerStatuses,
	} {
		for _, c := range containers {
			for _, end := range []*v1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
				if end != nil {
					f(kind, cmp.Or(end.ContainerID, c.Name), end) // one that was lost has no ID
				}
			}
		}
	}
}
