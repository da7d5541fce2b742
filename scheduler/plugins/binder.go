package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/names"
)

// Binder writes the decision as pods/binding with the pod's UID. So it never binds a new pod of the
// same name.
type Binder struct{ client kubernetes.Interface }

func newBinder(h *framework.Handle) (fwk.Plugin, error) { return Binder{h.Client}, nil }

// Name of the plugin.
func (Binder) Name() string { return names.DefaultBinder }

// Bind writes the binding. The API server's error is handed on as it is.
func (b Binder) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	return fwk.AsStatus(b.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{}))
}
