package nodeproxy

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	streamproxy "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/barque/barque/internal/execstream"
	"github.com/barque/barque/internal/linger"
)

// PodExec is the storage of pods/exec.
func (p *Proxy) PodExec() rest.Storage {
	return &podStream{Proxy: p, subresource: "exec", options: func() runtime.Object { return &corev1.PodExecOptions{} }}
}

// PodAttach is the storage of pods/attach.
func (p *Proxy) PodAttach() rest.Storage {
	return &podStream{Proxy: p, subresource: "attach",
		options: func() runtime.Object { return &corev1.PodAttachOptions{} }}
}

// PodPortForward is the storage of pods/portforward.
func (p *Proxy) PodPortForward() rest.Storage {
	return &podStream{Proxy: p, subresource: "portforward",
		options: func() runtime.Object { return &corev1.PodPortForwardOptions{} }}
}

// podStream is a subresource of pods that is an upgraded connection to the pod's kubelet.
type podStream struct {
	*Proxy
	subresource string
	options     func() runtime.Object
}

var _ rest.Connecter = (*podStream)(nil)

// New implements rest.Storage.
func (s *podStream) New() runtime.Object { return s.options() }

// Destroy implements rest.Storage.
func (*podStream) Destroy() {}

// NewConnectOptions implements rest.Connecter.
func (s *podStream) NewConnectOptions() (runtime.Object, bool, string) {
	return s.options(), false, ""
}

// ConnectMethods implements rest.Connecter: WebSocket clients come with GET, others with POST.
func (*podStream) ConnectMethods() []string { return []string{http.MethodGet, http.MethodPost} }

// Connect implements rest.Connecter.
func (s *podStream) Connect(
	ctx context.Context, name string, options runtime.Object, responder rest.Responder,
) (http.Handler, error) {
	if err := s.mayCreate(ctx, "pods", s.subresource, name); err != nil {
		return nil, err
	}
	pod, err := s.objects.Pod(ctx, genericapirequest.NamespaceValue(ctx), name)
	if err != nil {
		return nil, err
	}
	request, err := streamOf(pod, options)
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	location, node, err := s.kubeletURL(ctx, pod.Spec.NodeName, request.path, request.query)
	if err != nil {
		return nil, err
	}
	kubelet := s.toKubelet.verified(node)
	if request.remoteCommand != nil {
		return quietCloses(&execstream.Handler{
			Location: location, Transport: kubelet, Streams: *request.remoteCommand,
			Fail: utilproxy.NewErrorResponder(responder).Error,
		}), nil
	}
	through := utilproxy.NewUpgradeAwareHandler(location, kubelet, false, true, utilproxy.NewErrorResponder(responder))
	return quietCloses(lingering(streamproxy.NewTranslatingHandler(
		through, streamproxy.NewTunnelingHandler(through), wsstream.IsWebSocketRequestWithTunnelingProtocol))), nil
}

// lingering gives the handler of an upgraded connection one whose close loses nothing.
func lingering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpstream.IsUpgradeRequest(r) {
			w = linger.NewWriter(w)
		}
		next.ServeHTTP(w, r)
	})
}

// mayCreate demands the permission to create a stream from clients that were authorized for another
// verb: a WebSocket begins with GET, and "get" is given to many users for reading only.
func (p *Proxy) mayCreate(ctx context.Context, resource, subresource, name string) error {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if p.authorizer == nil || !ok || info.Verb == "create" {
		return nil
	}
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("%s/%s was called without a user", resource, subresource))
	}
	decision, reason, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: "create", Namespace: genericapirequest.NamespaceValue(ctx), APIVersion: "v1",
		Resource: resource, Subresource: subresource, Name: name, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return apierrors.NewForbidden(corev1.Resource(resource+"/"+subresource), name,
		fmt.Errorf("opening a stream needs the verb \"create\" as well: %s", reason))
}

// streamRequest is the kubelet's request for a stream.
type streamRequest struct {
	path  []string
	query url.Values
	// remoteCommand is nil for port-forward.
	remoteCommand *execstream.Streams
}

// streamOf makes a kubelet's request of a client's.
func streamOf(pod *corev1.Pod, options runtime.Object) (*streamRequest, error) {
	switch opts := options.(type) {
	case *corev1.PodExecOptions:
		request, err := commandOf(pod, "exec", opts.Container,
			execstream.Streams{Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, TTY: opts.TTY})
		if err != nil {
			return nil, err
		}
		if len(opts.Command) == 0 {
			return nil, apierrors.NewBadRequest("you must specify at least one command for the container")
		}
		request.query["command"] = opts.Command
		return request, nil
	case *corev1.PodAttachOptions:
		return commandOf(pod, "attach", opts.Container,
			execstream.Streams{Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, TTY: opts.TTY})
	case *corev1.PodPortForwardOptions:
		request := &streamRequest{path: []string{"portForward", pod.Namespace, pod.Name}, query: make(url.Values)}
		for _, port := range opts.Ports {
			request.query.Add("port", strconv.Itoa(int(port)))
		}
		return request, nil
	}
	return nil, fmt.Errorf("a stream of a pod was asked for with options of type %T", options)
}

func commandOf(pod *corev1.Pod, verb, container string, streams execstream.Streams) (*streamRequest, error) {
	container, err := containerOf(pod, container)
	if err != nil {
		return nil, err
	}
	request := &streamRequest{
		path:          []string{verb, pod.Namespace, pod.Name, container},
		query:         make(url.Values),
		remoteCommand: &streams,
	}
	for name, set := range map[string]bool{"input": streams.Stdin, "output": streams.Stdout, "error": streams.Stderr,
		"tty": streams.TTY} {
		if set {
			request.query.Set(name, "1")
		}
	}
	return request, nil
}
