package nodeproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Objects reads the objects of requests. Errors are API errors.
type Objects interface {
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	// EndpointSlices of a Service. The slice belongs to the caller, the objects in it do not.
	EndpointSlices(ctx context.Context, namespace, service string) ([]*discoveryv1.EndpointSlice, error)
}

// Config of a Proxy.
type Config struct {
	Objects Objects
	// TLS for connections to kubelets: the client certificate and the authorities of theirs. It is
	// called for each request, and returns another configuration when the authorities have changed.
	TLS func() *tls.Config
	// IsKubelet returns why the peer of a connection is not the kubelet of the node. An address of
	// a Node proves nothing: the node chooses it, and may have lost it to another machine.
	IsKubelet func(node *corev1.Node, peer tls.ConnectionState) error
	// Authorizer decides whether a client that opens a stream with GET may create it. nil allows
	// all.
	Authorizer authorizer.Authorizer
	// AddressTypes are the types of a node's address to use, best first; nil means
	// DefaultAddressTypes.
	AddressTypes []corev1.NodeAddressType
	// Dial opens connections; nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Resolve finds the addresses of a host name; nil uses the system.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// DefaultAddressTypes are the kinds of node addresses, in the order in which they are tried: no
// name service is needed to reach a node.
func DefaultAddressTypes() []corev1.NodeAddressType {
	return []corev1.NodeAddressType{
		corev1.NodeInternalIP, corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalIP,
		corev1.NodeExternalDNS,
	}
}

// Proxy makes the storages of the subresources that lead to nodes.
type Proxy struct {
	objects      Objects
	authorizer   authorizer.Authorizer
	addressTypes []corev1.NodeAddressType
	dial         func(ctx context.Context, network, address string) (net.Conn, error)
	resolve      func(ctx context.Context, host string) ([]netip.Addr, error)

	target    *http.Transport // pods, and ports of nodes that are not the kubelet's
	toKubelet toKubelets
}

// New makes a Proxy.
func New(cfg Config) (*Proxy, error) {
	if cfg.Objects == nil || cfg.TLS == nil || cfg.IsKubelet == nil {
		return nil, errors.New("nodeproxy: Objects, TLS and IsKubelet are required")
	}
	p := &Proxy{
		objects:      cfg.Objects,
		authorizer:   cfg.Authorizer,
		addressTypes: cfg.AddressTypes,
		dial:         cfg.Dial,
		resolve:      cfg.Resolve,
	}
	if p.addressTypes == nil {
		p.addressTypes = DefaultAddressTypes()
	}
	if p.dial == nil {
		p.dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	if p.resolve == nil {
		p.resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}

	p.toKubelet = toKubelets{tls: cfg.TLS, is: cfg.IsKubelet, dial: p.dial, now: time.Now}
	// A server in a pod may have a certificate of any CA, or none.
	p.target = newTransport(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, p.dialTarget)
	return p, nil
}

// idle is how long a connection waits for a further request.
const idle = 90 * time.Second

func newTransport(
	config *tls.Config, dial func(ctx context.Context, network, address string) (net.Conn, error),
) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     config,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     idle,
	}
}

// Close drops the connections that wait for further requests. Those in use stay.
func (p *Proxy) Close() {
	p.toKubelet.close()
	p.target.CloseIdleConnections()
}

// dialTarget connects to the target of a proxy request, unless proxying to it is forbidden. Names
// are resolved here, so that the checked address is the dialled one.
func (p *Proxy) dialTarget(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addresses := []netip.Addr{}
	if ip, err := netip.ParseAddr(host); err == nil {
		addresses = append(addresses, ip)
	} else if addresses, err = p.resolve(ctx, host); err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	for _, ip := range addresses {
		if err := proxyable(ip); err != nil {
			return nil, err
		}
	}
	var failed error
	for _, ip := range addresses {
		conn, err := p.dial(ctx, network, net.JoinHostPort(ip.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		failed = errors.Join(failed, err)
	}
	if failed == nil {
		failed = fmt.Errorf("%s has no address", host)
	}
	return nil, failed
}

// proxyable refuses addresses by which a request would reach this machine or its links, with the
// network identity of the API server.
func proxyable(ip netip.Addr) error {
	ip = ip.Unmap()
	if ip.IsUnspecified() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() ||
		ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("address %v is not allowed for proxying", ip)
	}
	return nil
}
