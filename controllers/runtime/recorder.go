package runtime

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Recorder makes an event recorder that writes with the term's client, under the component name
// that kubectl describe shows. stop ends it; events that have not been written by then are lost,
// as are all events when they cannot be written: they are for humans.
func Recorder(ctx context.Context, client kubernetes.Interface, component string) (recorder record.EventRecorder, stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(sink{ctx, client.CoreV1()})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}), broadcaster.Shutdown
}

// sink writes events with the term's context, so that one which is refused for now is tried again,
// at most until the term ends. Client-go's own sink has a context that never ends.
type sink struct {
	ctx    context.Context
	client typedcorev1.EventsGetter
}

func (s sink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.client.Events(e.Namespace).Create(s.ctx, e, metav1.CreateOptions{})
}

func (s sink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.client.Events(e.Namespace).Update(s.ctx, e, metav1.UpdateOptions{})
}

func (s sink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.client.Events(e.Namespace).Patch(s.ctx, e.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
}
