package lastevents

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Recorder makes an event recorder that writes with the client of a term of leadership, under the
// component name that kubectl describe shows. stop ends it, once it has written what waits: that is
// possible at a stop of this server, while it still leads. After a loss of leadership the client
// writes nothing. Events that cannot be written are lost: they are for humans.
func Recorder(
	ctx context.Context, client kubernetes.Interface, component string,
) (recorder record.EventRecorder, stop func()) {
	broadcaster := record.NewBroadcaster()
	lasting, cancel := lasting(ctx)
	write := Start(broadcaster, termSink{lasting, client.CoreV1()})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}), func() {
		write()
		cancel()
	}
}

// lasting returns a context that ends a little after the routine's: the last events are written
// meanwhile.
func lasting(ctx context.Context) (context.Context, context.CancelFunc) {
	last, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(Patience, func() { cancel(context.Cause(ctx)) }) })
	return last, func() {
		stop()
		cancel(nil)
	}
}

// termSink writes events with a context that ends, so that one which is refused for now is tried
// again, at most until the term ends. Client-go's own sink has a context that never ends.
type termSink struct {
	ctx    context.Context
	client typedcorev1.EventsGetter
}

func (s termSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.client.Events(e.Namespace).Create(s.ctx, e, metav1.CreateOptions{})
}

func (s termSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.client.Events(e.Namespace).Update(s.ctx, e, metav1.UpdateOptions{})
}

func (s termSink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.client.Events(e.Namespace).Patch(s.ctx, e.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
}
