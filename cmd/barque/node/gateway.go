package node

import (
	"context"
	"sync/atomic"

	networkingv1 "k8s.io/api/networking/v1"
	clientv1 "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/cmd/barque/node/worker"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/edge/gateway"
)

// statusUser writes the statuses of routes.
var statusUser = serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-gateway-status")

// addressUser makes the Services with the addresses of Gateways.
var addressUser = serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-gateway-addresses")

// gatewayParts are those of a server that the gateway needs.
type gatewayParts struct {
	shared   worker.Gateway                  // with the node
	objects  atomic.Pointer[gateway.Objects] // of shared, for the API server, which is older
	statuses *gateway.Statuses
	pools    addressPools // of Services' addresses; nil where a cloud has its own
}

// makeGateway makes the informers of a server. They run whether the server has a node or not: the
// authorizer decides by them, and the leader writes statuses.
func (s *server) makeGateway() (err error) {
	config := s.api.LoopbackConfigAs(gatewayauth.User, serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	all, logger := s.api.Informers(), s.logger.With("part", "gateway")
	s.gateway.shared.Config = config
	s.gateway.shared.Objects, err = gateway.NewObjects(config, gateway.Shared{
		Services: all.Core().V1().Services(), EndpointSlices: all.Discovery().V1().EndpointSlices(),
		Namespaces: all.Core().V1().Namespaces(),
	}, logger)
	if err != nil {
		return err
	}
	nodes := all.Core().V1().Nodes()
	s.gateway.statuses, err = gateway.NewStatuses(gateway.StatusConfig{
		Objects: s.gateway.shared.Objects, Settings: s.options.Gateway, Nodes: nodes.Lister(),
		NodesChanged: nodes.Informer(), Secrets: client, Pool: s.poolExists(), Logger: logger,
	})
	if err == nil {
		s.gateway.objects.Store(s.gateway.shared.Objects)
	}
	return err
}

// poolExists returns the leader's question whether there is an AddressPool; nil where a cloud gives
// addresses.
func (s *server) poolExists() func(string) (bool, bool) {
	if s.options.CloudProvider != "" {
		return nil
	}
	return func(name string) (exists, known bool) {
		p := s.gateway.pools.Load()
		if p == nil {
			return false, false
		}
		return p.Exists(name)
	}
}

// gatewayNames is the authorizer's question. Until the objects are there, the gateway waits.
func (s *server) gatewayNames(resource, namespace, name string) bool {
	objects := s.gateway.objects.Load()
	return objects != nil && objects.Names(resource, namespace, name)
}

// ingressProblems is admission's question.
func (s *server) ingressProblems(in *networkingv1.Ingress) []string {
	if objects := s.gateway.objects.Load(); objects != nil {
		return objects.AnnotationProblems(in)
	}
	return nil
}

// gatewayRoutines are the leader's part in the gateway. The classes and definitions are default
// objects of a cluster, so the API server itself creates them.
func (s *server) gatewayRoutines() []runtime.Routine {
	logger := s.logger.With("part", "gateway")
	return []runtime.Routine{
		{Name: "gateway objects", Run: func(ctx context.Context, client kubernetes.Interface) error {
			config := s.fenced(ctx, s.api.LoopbackConfig())
			definitions, err := clientv1.NewForConfig(config)
			if err != nil {
				return err
			}
			gateways, err := gatewayclient.NewForConfig(gateway.JSON(config))
			if err != nil {
				return err
			}
			return gateway.Install(ctx, s.gateway.shared.Objects,
				gateway.Clients{API: client, Definitions: definitions.CustomResourceDefinitions(), Gateways: gateways},
				logger)
		}},
		{Name: "gateway statuses", Run: func(ctx context.Context, _ kubernetes.Interface) error {
			clients := s.clientsOf(statusUser)
			client, err := clients.API(ctx)
			if err != nil {
				return err
			}
			gateways, err := gatewayclient.NewForConfig(gateway.JSON(clients.Config(ctx)))
			if err != nil {
				return err
			}
			services, err := s.clientsOf(addressUser).API(ctx)
			if err != nil {
				return err
			}
			recorder, stop := runtime.Recorder(ctx, client, "gateway")
			defer stop()
			return s.gateway.statuses.Lead(ctx, client, gateways, services, recorder)
		}},
	}
}
