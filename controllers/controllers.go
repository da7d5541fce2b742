// Package controllers is the list of Barque's controllers, by group. Each is a package that knows
// no other controller; package runtime runs them while this server leads. Users enable, disable and
// tune them by Settings, in the terms of kube-controller-manager.
package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/controllers/apiendpoints"
	"github.com/barque/barque/controllers/certificates"
	"github.com/barque/barque/controllers/helmcharts"
	"github.com/barque/barque/controllers/manifests"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/controllers/rootca"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/controllers/servicelb"
)

// Config has the controllers' dependencies.
type Config struct {
	// Informers live as long as the process. New asks for the ones that are needed; start them
	// after it.
	Informers informers.SharedInformerFactory
	// ClientsOf returns the clients of a user: each controller has its own, with the rights that it
	// needs (see Users).
	ClientsOf func(user string) Clients
	Logger    *slog.Logger
	// Serves reports which resources the API has; nil means all. No informer is made of another
	// one: it would never be warm.
	Serves func(schema.GroupVersionResource) bool
	// Settings are the users' choices: DefaultSettings if there are none.
	Settings Settings

	// CA is the CA by which pods verify the API, and Signer has its key.
	CA     rootca.CA
	Signer certificates.Signer
	// OwnUser reports whether a user is a part of the control plane, for which nothing is signed.
	OwnUser func(name string) bool
	// ClusterCIDRs are cut into the nodes' blocks of pod addresses.
	ClusterCIDRs []netip.Prefix
	Liveness     nodelifecycle.Liveness
	NodeSettings nodelifecycle.Settings
	// MemberLabel is on the Leases of nodes that are made from gossip: see nodelifecycle.Config.
	MemberLabel string
	Servers     apiendpoints.Servers
	// ServerReady asks an API server whether it is ready: see apiendpoints.Config.
	ServerReady func(ctx context.Context, server netip.AddrPort) error
	Roles       noderole.Servers
	// QuotaEvaluators and QuotaIgnored define the usage of requests: see resourcequota.Config.
	QuotaEvaluators func(quotav1.ListerForResourceFunc) []quotav1.Evaluator
	QuotaIgnored    map[schema.GroupResource]struct{}
	// LoadBalancers chooses the addresses of Services of type LoadBalancer; nil leaves them to a
	// cloud's own controllers.
	LoadBalancers servicelb.Provider
	// Addons are for the controllers of manifests and charts; nil leaves them out.
	Addons *Addons
	// DefaultStorageClass is the name of the class that is laid down once; "" is none.
	DefaultStorageClass string

	clients Clients // of the controller that is being made
}

// Addons has what the controllers of manifests and charts need beside the others.
type Addons struct {
	// Custom makes informers of custom resources, which run as long as the process.
	Custom dynamicinformer.DynamicSharedInformerFactory
	// Servers are those of the cluster, Self is the name of this one, and Charts its directory of
	// archives.
	Servers manifests.Servers
	Self    string
	Charts  string
	Metrics *helmcharts.Metrics
}

// Clients makes the clients of a controller for a term of leadership. Every request of them carries
// runtime.TermFrom(lead), and ends with lead.
type Clients struct {
	API      func(lead context.Context) (kubernetes.Interface, error)
	Metadata func(lead context.Context) (metadata.Interface, error)
	// Config is for further clients.
	Config func(lead context.Context) *rest.Config
}

// Run runs a controller, or the scheduler, in a term with the client of its user.
func (c Clients) Run(of controller) func(lead context.Context, _ kubernetes.Interface) error {
	return func(lead context.Context, _ kubernetes.Interface) error {
		client, err := c.API(lead)
		if err != nil {
			return fmt.Errorf("making a client: %w", err)
		}
		return of.Run(lead, client)
	}
}

// controller is the interface of every controller.
type controller interface {
	Run(ctx context.Context, client kubernetes.Interface) error
}

// entry is a controller of the list.
type entry struct {
	// name is the name of its routine, in logs and metrics.
	name string
	// account is its service account in kube-system, by which the API knows its requests. It is
	// upstream's, where upstream has the controller. Empty is upstream's user
	// system:kube-controller-manager.
	account string
	// upstream are its names in kube-controller-manager: today's, and the older one if that is not
	// name. Barque's own controllers have none.
	upstream []string
	// kind is the controlled resource; a cluster without it skips the controller. Empty for
	// several.
	kind schema.GroupVersionResource
	// off reports that the cluster leaves the controller's work to another program; nil is never.
	off func(c Config) bool
	// syncs is the flag for the number of concurrently reconciled objects, and workers is its
	// default. Empty and 0 without such a flag.
	syncs   string
	workers int
	make    func(c Config, workers int) (controller, error)
}

// group is the controllers that are for one purpose.
type group struct {
	name    string
	entries []entry
}

// groups are all controllers, in the order in which a new leader starts them. Requirements of every
// pod's start come first.
var groups = []group{basis, workloads, network, nodes, cluster, storage, devices, credentials, addons}

// New makes the controllers that the settings choose, for runtime.Config.Routines.
func New(cfg Config) ([]runtime.Routine, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Settings.Controllers == nil {
		cfg.Settings = DefaultSettings()
	}
	if err := cfg.Settings.Check(cfg.ClusterCIDRs); err != nil {
		return nil, err
	}
	var routines []runtime.Routine
	for _, g := range groups {
		for _, e := range g.entries {
			log := cfg.Logger.With("group", g.name, "controller", e.name)
			switch {
			case !cfg.Settings.enabled(e):
				log.Info("a controller is switched off by --controllers")
				continue
			case e.off != nil && e.off(cfg):
				log.Info("a controller is left out: another program does its work")
				continue
			case !e.kind.Empty() && cfg.Serves != nil && !cfg.Serves(e.kind):
				log.Info("a controller is left out: its kind is not served")
				continue
			}
			cfg.clients = cfg.ClientsOf(e.user())
			c, err := e.make(cfg, cfg.Settings.workers(e))
			if err != nil {
				return nil, fmt.Errorf("controller %s: %w", e.name, err)
			}
			routines = append(routines, runtime.Routine{Name: e.name, Run: cfg.clients.Run(c)})
		}
	}
	return routines, nil
}
