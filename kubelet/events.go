package kubelet

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/kubelet/config"
)

// podEvents records events of pods and of their containers.
type podEvents struct {
	recorder record.EventRecorder
}

// Event implements pods.Events and images.Events.
func (e podEvents) Event(pod *v1.Pod, container *v1.Container, kind, reason, message string) {
	ref := &v1.ObjectReference{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion,
	}
	if container != nil {
		ref.FieldPath = fmt.Sprintf("spec.%s{%s}", listOf(pod, container.Name), container.Name)
	}
	e.recorder.Event(ref, kind, reason, message)
}

// limitedEvents bounds the rate at which events are sent (eventRecordQPS, eventBurst). Events wait
// in the broadcaster's queue, which drops the newest when it is full. A rate of 0 is no limit.
func limitedEvents(sink record.EventSink, set *config.Configuration) record.EventSink {
	qps := ptr.Deref(set.EventRecordQPS, 0)
	if qps <= 0 {
		return sink
	}
	return &eventLimit{sink, flowcontrol.NewTokenBucketRateLimiter(float32(qps), max(1, int(set.EventBurst)))}
}

type eventLimit struct {
	record.EventSink
	rate flowcontrol.RateLimiter
}

// Create implements record.EventSink.
func (l *eventLimit) Create(event *v1.Event) (*v1.Event, error) {
	l.rate.Accept()
	return l.EventSink.Create(event)
}

// Update implements record.EventSink.
func (l *eventLimit) Update(event *v1.Event) (*v1.Event, error) {
	l.rate.Accept()
	return l.EventSink.Update(event)
}

// Patch implements record.EventSink.
func (l *eventLimit) Patch(old *v1.Event, data []byte) (*v1.Event, error) {
	l.rate.Accept()
	return l.EventSink.Patch(old, data)
}

// listOf names the list of the pod's spec that a container is in.
func listOf(pod *v1.Pod, name string) string {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return "initContainers"
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			return "ephemeralContainers"
		}
	}
	return "containers"
}
