package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/network/dns"
	"github.com/barque/barque/network/nft"
	"github.com/barque/barque/network/proxy"
)

// errNotAsked is returned when the program is to measure.
var errNotAsked = errors.New("not asked to serve")

// The roles of a child of this program: its first argument. The second one names the kubeconfig.
const (
	serveDNS   = "serve-dns"
	serveProxy = "serve-proxy"
)

// serveIfAsked is Barque's DNS or proxy until the context ends.
func serveIfAsked(ctx context.Context, args []string) error {
	if len(args) != 2 || args[0] != serveDNS && args[0] != serveProxy {
		return errNotAsked
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[1])
	if err != nil {
		return err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	serve := proxyOver
	if args[0] == serveDNS {
		serve = dnsOver
	}
	run, err := serve(factory, filepath.Dir(args[1]))
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	return run(ctx)
}

var (
	serviceNetwork = netip.MustParsePrefix(kubeapiserver.ServiceCIDR)
	// dnsAddress is where DNS servers are asked: at the node, as by a pod on it.
	dnsAddress = netip.AddrPortFrom(prefixOf(clientNetwork, 1).Addr(), 53)
)

func dnsOver(factory informers.SharedInformerFactory, work string) (func(context.Context) error, error) {
	server, err := dns.New(dns.Config{
		Domain: clusterDomain, Listen: dnsAddress, Addresses: []netip.Addr{dnsAddress.Addr()},
		Networks:   []netip.Prefix{podNetwork, serviceNetwork},
		ResolvConf: filepath.Join(work, "no-resolvers"), // no name outside is asked for
		Services:   factory.Core().V1().Services(), EndpointSlices: factory.Discovery().V1().EndpointSlices(),
		Namespaces: factory.Core().V1().Namespaces(),
		Logger:     toStderr(),
	})
	if err != nil {
		return nil, err
	}
	return server.Run, nil
}

func proxyOver(factory informers.SharedInformerFactory, _ string) (func(context.Context) error, error) {
	writer := new(nft.Writer)
	p, err := proxy.New(proxy.Config{
		NodeName: nodeName, Services: factory.Core().V1().Services(),
		EndpointSlices: factory.Discovery().V1().EndpointSlices(), Nodes: factory.Core().V1().Nodes(),
		PodNetwork: podNetwork, ServiceNetwork: serviceNetwork, Writer: writer,
		HealthAddresses: []string{"127.0.0.1:10256"}, Logger: toStderr(),
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		var watch sync.WaitGroup
		defer watch.Wait()
		watch.Go(func() { // ends with ctx
			writer.Watch(ctx, toStderr(), []nft.Name{{Family: nft.IPv4, Table: proxy.TableName}},
				func(nft.Name) { p.Restore() })
		})
		if err := p.Run(ctx); err != nil {
			return fmt.Errorf("service proxy: %w", err)
		}
		return nil
	}, nil
}
