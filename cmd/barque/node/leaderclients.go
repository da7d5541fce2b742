package node

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/controllers"
)

// clientsOf makes the clients of a controller, or of the scheduler, with the rights of its user at
// this server's own API and no others. Requests stay in the process; no token of such a user leaves
// it. All share one transport, so that a controller costs no connection.
func (s *server) clientsOf(user string) controllers.Clients {
	var groups []string
	if namespace, _, err := serviceaccount.SplitUsername(user); err == nil {
		groups = serviceaccount.MakeGroupNames(namespace)
	}
	config := s.api.LoopbackConfigAs(user, groups...)
	// Endpoints are deprecated, which every write of them is warned of; they are kept on purpose.
	config.WarningHandler = rest.NoWarnings{}
	return controllers.Clients{
		API: func(lead context.Context) (kubernetes.Interface, error) {
			return kubernetes.NewForConfig(s.fenced(lead, config))
		},
		Metadata: func(lead context.Context) (metadata.Interface, error) {
			return metadata.NewForConfig(s.fenced(lead, metadata.ConfigFor(config)))
		},
		Config: func(lead context.Context) *rest.Config { return s.fenced(lead, config) },
	}
}
