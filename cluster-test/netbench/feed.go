package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/barque/barque/cluster-test/lone"
	"github.com/barque/barque/cluster-test/netspace"
)

// token is the bearer token of all clients of the API server.
const token = "netbench"

// feed is the API server that serves the services to all programs. It listens at the loopback of
// each site's node, too.
type feed struct {
	kubernetes.Interface
	kubeconfig string // of the programs; in work
	work       string // for files
	listeners  *listeners
	server     *lone.Server
}

// withFeed starts an API server, for a measurement that earlier ones must not affect, and ends it.
func withFeed(ctx context.Context, measure func(*feed) error) (err error) {
	work, err := os.MkdirTemp("", "barque-netbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	progress("starting the API server")
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f := &feed{work: work, kubeconfig: filepath.Join(work, "kubeconfig"), listeners: newListeners(first)}
	defer f.listeners.Close()
	if f.server, err = lone.Start(ctx, work, token, f.listeners); err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	defer f.server.Stop()
	config := &rest.Config{Host: f.server.URL, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: f.server.CA}}
	config.ContentType = runtime.ContentTypeProtobuf
	if f.Interface, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: f.server.URL, CertificateAuthorityData: f.server.CA}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["c"], c.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "c"
	if err := clientcmd.WriteToFile(*c, f.kubeconfig); err != nil {
		return err
	}
	if err := f.lay(ctx); err != nil {
		return fmt.Errorf("create the node and the namespace: %w", err)
	}
	return measure(f)
}

// lay makes the node whose address the proxies look for, and the namespace.
func (f *feed) lay(ctx context.Context) error {
	_, err := f.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node, err := f.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}},
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress.String()}}
	_, err = f.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// writers is how many objects are created at the same time.
const writers = 8

// create creates services with their endpoints, and returns the services' addresses; of a headless
// one an invalid address.
func (f *feed) create(ctx context.Context, objects []object) ([]netip.Addr, error) {
	addrs := make([]netip.Addr, len(objects))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i, o := range objects {
		group.Go(func() error {
			service, err := f.CoreV1().Services(namespace).Create(ctx, o.service, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if service.Spec.ClusterIP != corev1.ClusterIPNone {
				if addrs[i], err = netip.ParseAddr(service.Spec.ClusterIP); err != nil {
					return err
				}
			}
			_, err = f.DiscoveryV1().EndpointSlices(namespace).Create(ctx, o.slice, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("create services: %w", err)
	}
	return addrs, nil
}

// open makes the API server listen at the loopback of a namespace, by the same address. close ends
// that.
func (f *feed) open(in netspace.Space) (close func() error, err error) {
	var ln net.Listener
	err = in.Do(func() (err error) {
		ln, err = net.Listen("tcp", strings.TrimPrefix(f.server.URL, "https://"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on the node: %w", err)
	}
	f.listeners.add(ln)
	return ln.Close, nil
}

// listeners are one listener that accepts in several network namespaces.
type listeners struct {
	first    net.Listener
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func newListeners(first net.Listener) *listeners {
	l := &listeners{first: first, accepted: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	l.add(first)
	return l
}

// add accepts at another one until that is closed. The caller closes it.
func (l *listeners) add(ln net.Listener) {
	go func() { // ends when ln is closed
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			select {
			case l.accepted <- conn:
			case <-l.closed:
				_ = conn.Close()
			}
		}
	}()
}

func (l *listeners) Accept() (net.Conn, error) {
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept, and the first listener.
func (l *listeners) Close() error {
	l.close()
	return l.first.Close()
}

// Addr is that of the first one.
func (l *listeners) Addr() net.Addr { return l.first.Addr() }
