// Package fairness shares a server among its clients: API priority and fairness, by the library of
// k8s.io/apiserver.
//
// FlowSchemas group requests and assign each group a priority level. A PriorityLevelConfiguration
// sets the share of the server for its requests, and whether excess requests wait or are refused.
// The library reads both from informers, limits requests by them, and writes into the status of a
// FlowSchema whether its level exists. It does so on every server; a correct condition is not
// written again.
//
// This package has the parts that the library leaves to its users: the default objects of every
// cluster, and the identities of the controllers. It does not serve the API of these kinds, which
// package groups/flowcontrol declares.
package fairness

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// New makes what limits requests: at most as many as concurrency at once, but for those that are
// exempt. It asks the factory for the informers it needs, so it is called before they are started.
func New(informers informers.SharedInformerFactory, client kubernetes.Interface, concurrency int) utilflowcontrol.Interface {
	return classified{utilflowcontrol.New(informers, client.FlowcontrolV1(), concurrency)}
}

// classified puts the controllers of this process where kube-controller-manager is. They have their
// rights as members of system:masters, which are exempt from all limits: as those, controllers with
// much to do would take the server from everybody else.
type classified struct{ utilflowcontrol.Interface }

var controllers = &user.DefaultInfo{Name: user.KubeControllerManager, Groups: []string{user.AllAuthenticated}}

// Handle implements utilflowcontrol.Interface.
func (c classified) Handle(ctx context.Context, request utilflowcontrol.RequestDigest,
	note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	estimate func() flowcontrolrequest.WorkEstimate, queued fairqueuing.QueueNoteFn, execute func()) {
	if request.User.GetName() == user.KubeControllerManager {
		request.User = controllers
	}
	c.Interface.Handle(ctx, request, note, estimate, queued, execute)
}
