package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/apiservices"
	"github.com/barque/barque/apiserver/bootstrap"
)

// LeaderRoutine keeps the cluster's default objects (package bootstrap), and repairs the
// allocations of service addresses and node ports. It is to run on the leader only, with a client
// that carries the leader's term, and returns when ctx ends.
func (s *Server) LeaderRoutine(ctx context.Context, client kubernetes.Interface) error {
	s.leads.Store(true)
	defer s.leads.Store(false)
	s.objects.Run(ctx, client)
	return nil
}

// ensure goes through the default objects once.
func (s *Server) ensure(ctx context.Context, client kubernetes.Interface) error {
	return s.objects.Ensure(ctx, client)
}

// newRegistration makes the registration of the chain's groups.
func (s *Server) newRegistration(scheme *runtime.Scheme) (*apiservices.Registration, error) {
	manager := s.chain.aggregator.GenericAPIServer.AggregatedDiscoveryGroupManager
	manager.SetGroupVersionPriority(metav1.GroupVersion(metricsVersion), metricsPriority, metricsPriority)
	return apiservices.New(apiservices.Config{
		Paths:        s.chain.own.ListedPaths(),
		Scheme:       scheme,
		Unregistered: []schema.GroupVersion{metricsVersion},
		Definitions:  s.chain.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions(),
		APIServices:  s.chain.aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices(),
		Discovery:    manager,
	})
}

func (s *Server) newObjects() *bootstrap.Objects {
	return bootstrap.New(bootstrap.Config{
		ServiceCIDRs: s.cfg.serviceCIDRs(), Port: s.cfg.Advertise.Port(),
		ClientCA: s.cfg.ClientCA, ProxyCA: s.cfg.ProxyCA, ProxyClient: ProxyClientName,
		Definitions: s.cfg.Definitions, Serves: s.serves, Informers: s.informers, Registration: s.registration,
		Allocator: s.allocator, Renewed: s.cfg.Renewed, Now: s.cfg.Now, Logger: s.logger,
	})
}

// ToldExtensions returns nil once this server, as the leader, has published these CAs of
// ProxyClient, in PEM, and extension API servers have had time to read them.
func (s *Server) ToldExtensions(proxyCA []byte) error { return s.objects.ToldExtensions(proxyCA) }
