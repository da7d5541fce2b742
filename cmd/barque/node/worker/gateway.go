package worker

import (
	"context"
	"fmt"
	"io"

	"github.com/prometheus/client_golang/prometheus"
	"gopkg.in/natefinch/lumberjack.v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientrecord "k8s.io/client-go/tools/record"

	"github.com/barque/barque/edge/gateway"
	"github.com/barque/barque/edge/redirect"
)

// Gateway has what the gateway of a node shares with others of the process.
type Gateway struct {
	// Config is the client of the gateway's account: on a server as that user, on an agent without
	// a token.
	Config *rest.Config
	// Objects run already; nil on an agent.
	Objects *gateway.Objects
}

// routes returns the parts of the node's gateway, and its metrics; none where it is off.
func (w *Worker) routes(
	client kubernetes.Interface, factory informers.SharedInformerFactory, aboutNode clientrecord.EventRecorder,
) (run []func(context.Context) error, metrics []prometheus.Collector, err error) {
	o := w.Options
	if o.NoGateway || w.Gateway.Config == nil {
		return nil, nil, nil
	}
	logger, objects := w.Logger.With("part", "gateway"), w.Gateway.Objects
	config := rest.CopyConfig(w.Gateway.Config)
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
		Objects: objects, Client: secrets, Settings: o.Gateway, Exempt: o.Serving.Limits().Exempt, AccessLog: access,
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
			To: o.Addresses.Internal, Logger: logger, Failed: func(err error) {
				aboutNode.Event(&corev1.ObjectReference{Kind: "Node", Name: o.Name, UID: types.UID(o.Name)},
					corev1.EventTypeWarning, "GatewayAddressFailed",
					fmt.Sprintf("The gateway of this node cannot serve addresses of Gateways: %v.", err))
			},
		})
	})
	return run, routes.Collectors(), nil
}
