// Package fairness shares a server among its clients: API priority and fairness, by the library of
// k8s.io/apiserver.
//
// FlowSchemas group requests and assign each group a priority level. A PriorityLevelConfiguration
// sets the share of the server for its requests, and whether excess requests wait or are refused.
// The library reads both from informers, limits requests by them, and writes into the status of a
// FlowSchema whether its level exists. It does so on every server; a correct condition is not
// written again.
//
// This package has the part that the library leaves to its users: the default objects of every
// cluster. It does not serve the API of these kinds, which package groups/flowcontrol declares.
package fairness

import (
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// New returns a limiter of requests: at most concurrency at once, beside exempt ones. It requests
// its informers from the factory, so it is called before they are started.
func New(
	informers informers.SharedInformerFactory, client kubernetes.Interface, concurrency int,
) utilflowcontrol.Interface {
	return utilflowcontrol.New(informers, client.FlowcontrolV1(), concurrency)
}
