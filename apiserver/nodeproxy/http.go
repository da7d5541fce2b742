package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"

	"github.com/barque/barque/internal/kubeletapi"
)

// PodProxy is the storage of pods/proxy.
func (p *Proxy) PodProxy() rest.Storage {
	return &httpProxy{options: func() runtime.Object { return &corev1.PodProxyOptions{} }, locate: p.locatePod}
}

// ServiceProxy is the storage of services/proxy.
func (p *Proxy) ServiceProxy() rest.Storage {
	return &httpProxy{options: func() runtime.Object { return &corev1.ServiceProxyOptions{} }, locate: p.locateService}
}

// NodeProxy is the storage of nodes/proxy.
func (p *Proxy) NodeProxy() rest.Storage {
	return &httpProxy{options: func() runtime.Object { return &corev1.NodeProxyOptions{} }, locate: p.locateNode,
		permit: p.nodeStream}
}

// httpProxy is a subresource that hands HTTP requests on.
type httpProxy struct {
	options func() runtime.Object
	// locate finds where the requests for an id, [scheme:]name[:port], go, and how.
	locate func(ctx context.Context, id string) (*url.URL, http.RoundTripper, error)
	// permit returns the reason why a request for a path may not be handed on; nil permits all.
	permit func(ctx context.Context, id, path string, header http.Header) error
}

var _ rest.Connecter = (*httpProxy)(nil)

// New implements rest.Storage.
func (h *httpProxy) New() runtime.Object { return h.options() }

// Destroy implements rest.Storage.
func (*httpProxy) Destroy() {}

// NewConnectOptions implements rest.Connecter: the rest of the path is an option.
func (h *httpProxy) NewConnectOptions() (runtime.Object, bool, string) {
	return h.options(), true, "path"
}

// ConnectMethods implements rest.Connecter.
func (*httpProxy) ConnectMethods() []string {
	return []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead,
		http.MethodOptions,
	}
}

// Connect implements rest.Connecter.
func (h *httpProxy) Connect(
	ctx context.Context, id string, options runtime.Object, responder rest.Responder,
) (http.Handler, error) {
	location, transport, err := h.locate(ctx, id)
	if err != nil {
		return nil, err
	}
	path, err := pathOf(options)
	if err != nil {
		return nil, err
	}
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path)
	// Links in HTML and redirects are rewritten to lead through the proxy again.
	handler := lingering(
		utilproxy.NewUpgradeAwareHandler(location, transport, true, false, utilproxy.NewErrorResponder(responder)))
	if h.permit == nil {
		return handler, nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.permit(ctx, id, path, r.Header); err != nil {
			responder.Error(err)
			return
		}
		handler.ServeHTTP(w, r)
	}), nil
}

// nodeStream refuses the paths of servers, and demands the permission to create nodes/proxy for a
// stream: the kubelet lets the API server do everything, so the right to read there would be that
// to run commands in every pod.
func (p *Proxy) nodeStream(ctx context.Context, id, path string, header http.Header) error {
	if kubeletapi.ForServers(path) {
		return apierrors.NewForbidden(corev1.Resource("nodes/proxy"), id,
			errors.New("servers alone give orders to a node: no request is handed on to this path"))
	}
	if !kubeletapi.OpensStream(path, header) {
		return nil
	}
	return p.mayCreate(ctx, "nodes", "proxy", id)
}

func pathOf(options runtime.Object) (string, error) {
	switch opts := options.(type) {
	case *corev1.PodProxyOptions:
		return opts.Path, nil
	case *corev1.ServiceProxyOptions:
		return opts.Path, nil
	case *corev1.NodeProxyOptions:
		return opts.Path, nil
	}
	return "", fmt.Errorf("a proxy was called with options of type %T", options)
}

// locatePod finds a pod's address; without a port in the id it is the first one that a container
// declares.
func (p *Proxy) locatePod(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, err := splitID("pod", id)
	if err != nil {
		return nil, nil, err
	}
	pod, err := p.objects.Pod(ctx, genericapirequest.NamespaceValue(ctx), name)
	if err != nil {
		return nil, nil, err
	}
	for i := 0; port == "" && i < len(pod.Spec.Containers); i++ {
		if ports := pod.Spec.Containers[i].Ports; len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	ips := podIPs(pod)
	if len(ips) == 0 {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("pod %s has no address yet", name))
	}
	return p.targetURL(scheme, ips[0], port)
}

func podIPs(pod *corev1.Pod) []string {
	var ips []string
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	if len(ips) == 0 && pod.Status.PodIP != "" {
		ips = append(ips, pod.Status.PodIP)
	}
	return ips
}

// locateService finds the address of a ready pod of a service.
func (p *Proxy) locateService(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, wanted, err := splitID("service", id)
	if err != nil {
		return nil, nil, err
	}
	namespace := genericapirequest.NamespaceValue(ctx)
	service, err := p.objects.Service(ctx, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	portName, ok := servicePort(service, wanted)
	if !ok {
		return nil, nil,
			apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", wanted, name))
	}
	slices, err := p.objects.EndpointSlices(ctx, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	family := corev1.IPFamilyUnknown
	if len(service.Spec.IPFamilies) > 0 {
		family = service.Spec.IPFamilies[0]
	}
	endpoint, err := streamproxy.RandomEndpoint(name, slices, portName, family, func(e *discoveryv1.Endpoint) bool {
		return p.isPod(ctx, namespace, e)
	})
	if err != nil {
		return nil, nil, err
	}
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return nil, nil, err
	}
	return p.targetURL(scheme, host, port)
}

// servicePort returns the name of the port that an id means: by name, by number, or the only one.
func servicePort(service *corev1.Service, wanted string) (string, bool) {
	if wanted == "" && len(service.Spec.Ports) == 1 {
		return service.Spec.Ports[0].Name, true
	}
	for _, port := range service.Spec.Ports {
		if wanted == port.Name || wanted == strconv.Itoa(int(port.Port)) {
			return port.Name, true
		}
	}
	return "", false
}

// isPod reports whether an endpoint is a pod of the namespace at its own address. Otherwise a user
// that may write endpoints could reach, through the API server, servers that the network keeps
// from them.
func (p *Proxy) isPod(ctx context.Context, namespace string, e *discoveryv1.Endpoint) bool {
	ref := e.TargetRef
	if ref == nil || ref.Kind != "Pod" || ref.Namespace != namespace || len(e.Addresses) == 0 {
		return false
	}
	pod, err := p.objects.Pod(ctx, namespace, ref.Name)
	if err != nil {
		return false
	}
	for _, ip := range podIPs(pod) {
		if ip == e.Addresses[0] {
			return true
		}
	}
	return false
}

// locateNode finds a node's kubelet, or another port of the node when the id names one.
func (p *Proxy) locateNode(ctx context.Context, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, err := splitID("node", id)
	if err != nil {
		return nil, nil, err
	}
	node, err := p.objects.Node(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	host, kubeletPort, err := p.kubeletAt(node)
	if err != nil {
		return nil, nil, err
	}
	if kubelet := strconv.Itoa(kubeletPort); port == "" || port == kubelet {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, kubelet)}, p.toKubelet.verified(node), nil
	}
	return p.targetURL(scheme, host, port)
}

// targetURL is the URL of requests to a target that is not a kubelet.
func (p *Proxy) targetURL(scheme, host, port string) (*url.URL, http.RoundTripper, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		// Dialling checks as well; here the client gets the reason.
		if err := proxyable(ip); err != nil {
			return nil, nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if scheme == "" {
		scheme = "http"
	}
	location := &url.URL{Scheme: scheme, Host: host}
	if port != "" {
		location.Host = net.JoinHostPort(host, port)
	} else if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		location.Host = "[" + host + "]"
	}
	return location, p.target, nil
}

func splitID(kind, id string) (scheme, name, port string, err error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(id)
	if !ok {
		return "", "", "",
			apierrors.NewBadRequest(
				fmt.Sprintf("invalid %s request %q: want name, name:port or scheme:name:port", kind, id))
	}
	return scheme, name, port, nil
}
