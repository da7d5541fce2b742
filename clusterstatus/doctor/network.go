package doctor

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/network/faults"
)

// networkFaults returns the faults in the nodes' events. They include agents, which the doctor does
// not ask.
func networkFaults(ctx context.Context, config *rest.Config, each time.Duration) ([]faults.Fault, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, each, &remote.NoAnswerError{Within: each})
	defer cancel()
	var events []corev1.Event
	options := metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Node", "source": faults.Component}.AsSelector().String(),
		Limit:         maxEvents}
	for {
		list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, options)
		if err != nil {
			return nil, remote.Because(ctx, err)
		}
		if events, options.Continue = append(events, list.Items...), list.Continue; options.Continue == "" {
			return faults.Of(events, time.Now()), nil
		}
	}
}
