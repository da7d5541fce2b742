package node

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/natefinch/lumberjack.v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	clientv1 "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientrecord "k8s.io/client-go/tools/record"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/edge/gateway"
	"github.com/barque/barque/edge/redirect"
	"github.com/barque/barque/membership/enroll"
)

// gatewayParts are what the gateway of a node shares with others of the process.
type gatewayParts struct {
	// config is the client of the gateway's account: on a server as that user, on an agent without
	// a token.
	config *rest.Config
	// objects run already; nil on an agent.
	objects *gateway.Objects
}

// statusUser writes the statuses of routes.
var statusUser = serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-gateway-status")

// addressUser makes the Services with the addresses of Gateways.
var addressUser = serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-gateway-addresses")

// DefaultGateway are the ports of the gateway.
func DefaultGateway() gateway.Settings {
	return gateway.Settings{HTTPPort: 80, HTTPSPort: 443, Ports: []uint16{80, 443}}
}

func (o *Options) checkGateway() error {
	g := &o.Gateway
	if g.HTTPPort == 0 && g.HTTPSPort == 0 { // not of a command
		*g = DefaultGateway()
	}
	if g.HTTPPort == g.HTTPSPort {
		return enroll.WrongOption("--gateway-http-port and --gateway-https-port are both %d: want two ports",
			g.HTTPPort)
	}
	ports := append([]uint16{g.HTTPPort, g.HTTPSPort}, g.Ports...)
	for _, own := range []uint16{o.APIPort, o.PeerPort, o.KubeletPort, o.GossipPort} {
		if own != 0 && slices.Contains(ports, own) {
			return enroll.WrongOption(
				"port %d is the node's own: choose others with --gateway-http-port, --gateway-https-port and --gateway-ports", own)
		}
	}
	if o.GatewayAccessLog != "" && !filepath.IsAbs(o.GatewayAccessLog) {
		return enroll.WrongOption("--gateway-access-log %q: want an absolute path", o.GatewayAccessLog)
	}
	return nil
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
	s.gateway.config = config
	s.gateway.objects, err = gateway.NewObjects(config, gateway.Shared{
		Services: all.Core().V1().Services(), EndpointSlices: all.Discovery().V1().EndpointSlices(),
		Namespaces: all.Core().V1().Namespaces(),
	}, logger)
	if err != nil {
		return err
	}
	nodes := all.Core().V1().Nodes()
	s.statuses, err = gateway.NewStatuses(gateway.StatusConfig{
		Objects: s.gateway.objects, Settings: s.options.Gateway, Nodes: nodes.Lister(), NodesChanged: nodes.Informer(),
		Secrets: client, Pool: s.poolExists(), Logger: logger,
	})
	if err == nil {
		s.gatewayObjects.Store(s.gateway.objects)
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
		p := s.pools.Load()
		if p == nil {
			return false, false
		}
		return p.Exists(name)
	}
}

// gatewayNames is the authorizer's question. Until the objects are there, the gateway waits.
func (s *server) gatewayNames(resource, namespace, name string) bool {
	objects := s.gatewayObjects.Load()
	return objects != nil && objects.Names(resource, namespace, name)
}

// ingressProblems is admission's question.
func (s *server) ingressProblems(in *networkingv1.Ingress) []string {
	if objects := s.gatewayObjects.Load(); objects != nil {
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
			return gateway.Install(ctx, s.gateway.objects,
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
			return s.statuses.Lead(ctx, client, gateways, services, recorder)
		}},
	}
}

// routes returns the parts of the node's gateway, and its metrics; none where it is off.
func (w *worker) routes(
	client kubernetes.Interface, factory informers.SharedInformerFactory, aboutNode clientrecord.EventRecorder,
) (run []func(context.Context) error, metrics []prometheus.Collector, err error) {
	o := w.options
	if o.NoGateway || w.gateway.config == nil {
		return nil, nil, nil
	}
	logger, objects := w.logger.With("part", "gateway"), w.gateway.objects
	config := rest.CopyConfig(w.gateway.config)
	if objects == nil {
		gateway.WithToken(config, client, o.Name)
		objects, err = gateway.NewObjects(config, gateway.Shared{
			Services: factory.Core().V1().Services(), EndpointSlices: factory.Discovery().V1().EndpointSlices(),
			Namespaces: factory.Core().V1().Namespaces(),
		}, logger)
		if err != nil {
			return nil, nil, err
		}
		run = append(run, objects.Run)
	}
	secrets, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	var access io.Writer
	if o.GatewayAccessLog != "" {
		rotated := &lumberjack.Logger{Filename: o.GatewayAccessLog, MaxSize: 100, MaxBackups: 5, Compress: true}
		access = rotated
		run = append(run, func(ctx context.Context) error {
			<-ctx.Done()
			return rotated.Close()
		})
	}
	routes, err := gateway.NewNode(gateway.NodeConfig{
		Objects: objects, Client: secrets, Settings: o.Gateway, Exempt: o.Serving.limits().Exempt, AccessLog: access,
		Logger: logger,
		Refused: func(port uint16, err error) {
			logger.Warn("the gateway cannot open a port; trying again", "port", port, "err", err)
			aboutNode.Event(&corev1.ObjectReference{Kind: "Node", Name: o.Name, UID: types.UID(o.Name)},
				corev1.EventTypeWarning, "GatewayPortInUse",
				fmt.Sprintf(
					"The gateway of this node cannot open port %d: %v. End the program that has it, or choose other ports with --gateway-http-port and --gateway-https-port.", port, err))
		},
	})
	if err != nil {
		return nil, nil, err
	}
	run = append(run, routes.Run, func(ctx context.Context) error {
		return redirect.Run(ctx, redirect.Config{
			Table: redirect.TableOfGateways, Of: "addresses of Gateways", Wanted: routes.Addressed,
			To: o.addresses.Internal, Logger: logger, Failed: func(err error) {
				aboutNode.Event(&corev1.ObjectReference{Kind: "Node", Name: o.Name, UID: types.UID(o.Name)},
					corev1.EventTypeWarning, "GatewayAddressFailed",
					fmt.Sprintf("The gateway of this node cannot serve addresses of Gateways: %v.", err))
			},
		})
	})
	return run, routes.Collectors(), nil
}
