package node

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/controllers"
	"github.com/barque/barque/pki"
)

// groupsOfParts are the groups of the users that the controllers and the scheduler have credentials
// of: all identities but the API server itself and the node. Each server has them, whoever leads.
func groupsOfParts(identities []user.Info) (all []string) {
	for _, u := range identities {
		if u.GetName() != user.APIServerUser && !strings.HasPrefix(u.GetName(), pki.NodeUser) {
			all = append(all, u.GetGroups()...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// clientsOf makes the clients of a controller, or of the scheduler, with the rights of its user at
// this server's own API and no others. Requests stay in the process; no token of such a user leaves
// it. All share one transport, so that a controller costs no connection.
func (s *server) clientsOf(name string) controllers.Clients {
	config := s.api.LoopbackConfigAs(name, rbac.GroupsOf(name)...)
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
