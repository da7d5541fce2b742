package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/network/faults"
)

// networkFaults are those that the nodes told of by events: agents, which the doctor does not ask,
// are among them.
func networkFaults(ctx context.Context, config *rest.Config, each time.Duration) ([]faults.Fault, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, each, &noAnswerError{each})
	defer cancel()
	list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.kind", "Node").String(), Limit: maxEvents,
	})
	if err != nil {
		return nil, because(ctx, err)
	}
	return faults.Of(list.Items, time.Now()), nil
}
