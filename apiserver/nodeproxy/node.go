package nodeproxy

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const defaultKubeletPort = 10250

func (p *Proxy) kubeletAt(node *corev1.Node) (host string, port int, err error) {
	host, ok := p.address(node)
	if !ok {
		return "", 0,
			apierrors.NewServiceUnavailable(
				"node " + node.Name + " has no address yet: its kubelet has not registered one")
	}
	port = int(node.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = defaultKubeletPort
	}
	return host, port, nil
}

// Get sends a request to the kubelet of a node as the API server itself. The caller closes
// the body.
func (p *Proxy) Get(ctx context.Context, node *corev1.Node, path string) (*http.Response, error) {
	host, port, err := p.kubeletAt(node)
	if err != nil {
		return nil, err
	}
	location := url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: path}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept-Encoding", "identity") // compression would cost the node CPU time
	return p.toKubelet.verified(node).RoundTrip(r)
}

// address picks the address by which to reach a node.
func (p *Proxy) address(node *corev1.Node) (string, bool) {
	for _, want := range p.addressTypes {
		for _, address := range node.Status.Addresses {
			if address.Type == want && address.Address != "" {
				return address.Address, true
			}
		}
	}
	return "", false
}

// kubeletURL is a URL of the kubelet of a node.
func (p *Proxy) kubeletURL(
	ctx context.Context, name string, path []string, query url.Values,
) (*url.URL, *corev1.Node, error) {
	node, err := p.objects.Node(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	host, port, err := p.kubeletAt(node)
	if err != nil {
		return nil, nil, err
	}
	location := &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: "/"}
	location = location.JoinPath(path...)
	location.RawQuery = query.Encode()
	return location, node, nil
}
