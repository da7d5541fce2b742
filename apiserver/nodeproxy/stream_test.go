package nodeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	kubeletforward "k8s.io/cri-streaming/pkg/streaming/portforward"
	kubeletcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// runtimeOfNode is the container runtime of the test's kubelet: it reports the request, echoes,
// and exits.
type runtimeOfNode struct{ exit int }

func (r runtimeOfNode) ExecInContainer(
	_ context.Context, pod, _, container string, cmd []string, in io.Reader, out, stderr io.WriteCloser, tty bool,
	resize <-chan kubeletcommand.TerminalSize, _ time.Duration,
) error {
	if tty {
		size := <-resize
		fmt.Fprintf(out, "%dx%d ", size.Width, size.Height)
	}
	fmt.Fprintf(out, "%s/%s: %s\n", pod, container, strings.Join(cmd, " "))
	if in != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	if stderr != nil {
		fmt.Fprint(stderr, "warning")
	}
	if r.exit != 0 {
		return exec.CodeExitError{Err: fmt.Errorf("exit %d", r.exit), Code: r.exit}
	}
	return nil
}

func (r runtimeOfNode) AttachContainer(
	ctx context.Context, pod, uid, container string, in io.Reader, out, stderr io.WriteCloser, tty bool,
	resize <-chan kubeletcommand.TerminalSize,
) error {
	return r.ExecInContainer(ctx, pod, uid, container, []string{"attached"}, in, out, stderr, tty, resize, 0)
}

func (r runtimeOfNode) PortForward(_ context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	greeting := make([]byte, 5)
	if _, err := io.ReadFull(stream, greeting); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%s from %s:%d", greeting, pod, port)
	return err
}

func (r runtimeOfNode) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	const timeout = time.Minute
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	if parts[0] == "portForward" {
		options, err := kubeletforward.NewV4Options(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		kubeletforward.ServePortForward(w, req, r, parts[2], "", options, timeout, timeout,
			kubeletforward.SupportedProtocols)
		return
	}
	options, err := kubeletcommand.NewOptions(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if parts[0] == "attach" {
		kubeletcommand.ServeAttach(w, req, r, parts[2], "", parts[3], options, timeout, timeout,
			kubeletcommand.SupportedStreamingProtocols)
		return
	}
	kubeletcommand.ServeExec(w, req, r, parts[2], "", parts[3], req.URL.Query()["command"], options, timeout, timeout,
		kubeletcommand.SupportedStreamingProtocols)
}

// executors are the ways in which clients open a remote command.
func executors(t *testing.T, server *httptest.Server) map[string]remotecommand.Executor {
	t.Helper()
	config := &restclient.Config{Host: server.URL}
	location, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	overSPDY, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, location)
	if err != nil {
		t.Fatal(err)
	}
	overWebSocket, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"SPDY": overSPDY, "WebSocket": overWebSocket}
}

type oneSize struct{ sent bool }

func (q *oneSize) Next() *remotecommand.TerminalSize {
	if q.sent {
		return nil
	}
	q.sent = true
	return &remotecommand.TerminalSize{Width: 80, Height: 24}
}

func TestRemoteCommands(t *testing.T) {
	tests := []struct {
		name           string
		storage        func(*Proxy) rest.Storage
		options        runtime.Object
		exit           int
		stdin          string
		tty            bool
		stdout, stderr string
	}{
		{
			"exec", (*Proxy).PodExec,
			&corev1.PodExecOptions{Command: []string{"cat", "a b"}, Stdin: true, Stdout: true, Stderr: true},
			0, "hello", false, "pod/main: cat a b\nhello", "warning",
		},
		{
			"exec that fails", (*Proxy).PodExec,
			&corev1.PodExecOptions{Command: []string{"false"}, Stdout: true, Stderr: true},
			7, "", false, "pod/main: false\n", "warning",
		},
		{
			"exec on a terminal", (*Proxy).PodExec,
			&corev1.PodExecOptions{Command: []string{"sh"}, Stdin: true, Stdout: true, TTY: true},
			0, "hello", true, "80x24 pod/main: sh\nhello", "",
		},
		{
			"attach", (*Proxy).PodAttach,
			&corev1.PodAttachOptions{Container: "main", Stdout: true, Stderr: true},
			0, "", false, "pod/main: attached\n", "warning",
		},
	}
	for _, tt := range tests {
		proxy := newProxy(t, newCluster(), runtimeOfNode{tt.exit})
		server := front(t, tt.storage(proxy), "pod", with(tt.options))
		for way, executor := range executors(t, server) {
			t.Run(tt.name+" over "+way, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var stdout, stderr bytes.Buffer
				streams := remotecommand.StreamOptions{Stdout: &stdout, Tty: tt.tty}
				if tt.stderr != "" {
					streams.Stderr = &stderr
				}
				if tt.stdin != "" {
					streams.Stdin = strings.NewReader(tt.stdin)
				}
				if tt.tty {
					streams.TerminalSizeQueue = &oneSize{}
				}
				err := executor.StreamWithContext(ctx, streams)
				var code exec.CodeExitError
				if tt.exit == 0 && err != nil || tt.exit != 0 && (!errors.As(err, &code) || code.Code != tt.exit) {
					t.Errorf("ended with %v, want exit code %d", err, tt.exit)
				}
				if stdout.String() != tt.stdout || stderr.String() != tt.stderr {
					t.Errorf("wrote %q and %q, want %q and %q", stdout.String(), stderr.String(), tt.stdout, tt.stderr)
				}
			})
		}
	}
}

func TestPortForward(t *testing.T) {
	proxy := newProxy(t, newCluster(), runtimeOfNode{})
	server := front(t, proxy.PodPortForward(), "pod", with(&corev1.PodPortForwardOptions{}))
	config := &restclient.Config{Host: server.URL}
	location, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := portforward.NewSPDYOverWebsocketDialerForStreaming(location, config)
	if err != nil {
		t.Fatal(err)
	}
	for way, dialer := range map[string]httpstream.Dialer{
		"SPDY": spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost,
			location),
		"WebSocket": tunnel,
	} {
		t.Run(way, func(t *testing.T) {
			conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			headers := http.Header{}
			headers.Set(corev1.PortHeader, "8080")
			headers.Set(corev1.PortForwardRequestIDHeader, "1")
			headers.Set(corev1.StreamType, corev1.StreamTypeError)
			if _, err := conn.CreateStream(headers); err != nil {
				t.Fatal(err)
			}
			headers.Set(corev1.StreamType, corev1.StreamTypeData)
			data, err := conn.CreateStream(headers)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(data, "hello"); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(data); err != nil || string(got) != "hello from pod:8080" {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

func TestPortForwardNamesPorts(t *testing.T) {
	request, err := streamOf(newCluster().pods["pod"], &corev1.PodPortForwardOptions{Ports: []int32{80, 443}})
	if err != nil {
		t.Fatal(err)
	}
	if got := request.query.Encode(); got != "port=80&port=443" {
		t.Errorf("the query is %q", got)
	}
}

func TestStreamErrors(t *testing.T) {
	c := newCluster()
	unbound := c.pods["pod"].DeepCopy()
	unbound.Spec.NodeName = ""
	c.pods["unbound"] = unbound
	proxy := newProxy(t, c, http.NotFoundHandler())
	tests := []struct {
		name, pod string
		options   runtime.Object
		is        func(error) bool
	}{
		{"no such pod", "none", &corev1.PodExecOptions{Command: []string{"sh"}}, apierrors.IsNotFound},
		{"not on a node", "unbound", &corev1.PodExecOptions{Command: []string{"sh"}}, apierrors.IsBadRequest},
		{"no such container", "pod", &corev1.PodExecOptions{Command: []string{"sh"}, Container: "none"},
			apierrors.IsBadRequest},
		{"no command", "pod", &corev1.PodExecOptions{}, apierrors.IsBadRequest},
	}
	for _, tt := range tests {
		_, err := proxy.PodExec().(rest.Connecter).Connect(inNamespace(t.Context()), tt.pod, tt.options, nil)
		if !tt.is(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	server := front(t, proxy.PodExec(), "pod", with(&corev1.PodExecOptions{Command: []string{"sh"}, Stdout: true}))
	response, err := http.Post(server.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("a request without upgrade was answered %d", response.StatusCode)
	}
}

// TestGetNeedsCreate: to open a stream with GET is as much as to open it with POST.
func TestGetNeedsCreate(t *testing.T) {
	proxy := newProxy(t, newCluster(), http.NotFoundHandler())
	var asked []authorizer.Attributes
	proxy.authorizer = authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = append(asked, a)
			if a.GetUser().GetName() == "operator" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
	connect := func(who, verb string) error {
		ctx := genericapirequest.WithUser(inNamespace(t.Context()), &user.DefaultInfo{Name: who})
		ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Verb: verb})
		_, err := proxy.PodExec().(rest.Connecter).Connect(ctx, "pod", &corev1.PodExecOptions{Command: []string{"sh"}},
			nil)
		return err
	}
	if err := connect("viewer", "get"); !apierrors.IsForbidden(err) {
		t.Errorf("viewer with GET: %v", err)
	}
	if err := connect("operator", "get"); err != nil {
		t.Errorf("operator with GET: %v", err)
	}
	if err := connect("viewer", "create"); err != nil {
		t.Errorf("POST was authorized before: %v", err)
	}
	want := func(a authorizer.Attributes) bool {
		return a.GetVerb() == "create" && a.GetResource() == "pods" && a.GetSubresource() == "exec" &&
			a.GetNamespace() == "ns" && a.GetName() == "pod"
	}
	if len(asked) != 2 || !slices.ContainsFunc(asked, want) {
		t.Errorf("the authorizer was asked %+v", asked)
	}
}

// TestReadingNodesRunsNoCommands: the kubelet lets the API server do everything. So a stream
// through nodes/proxy needs the verb create, with any method, protocol and spelling of its path.
func TestReadingNodesRunsNoCommands(t *testing.T) {
	var reached atomic.Int32
	proxy := newProxy(t, newCluster(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	proxy.authorizer = authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetUser().GetName() == "operator" && a.GetVerb() == "create" && a.GetResource() == "nodes" &&
				a.GetSubresource() == "proxy" && a.GetName() == "node" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", nil
		})
	call := func(who, verb, method, path, protocol string) (int, string) {
		t.Helper()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := genericapirequest.WithUser(r.Context(), &user.DefaultInfo{Name: who})
			ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{Verb: verb})
			connecting(proxy.NodeProxy(), "node", with(&corev1.NodeProxyOptions{Path: path})).ServeHTTP(w,
				r.WithContext(ctx))
		}))
		defer server.Close()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if protocol != "" {
			request.Header.Set("Connection", "Upgrade")
			request.Header.Set("Upgrade", protocol)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	for _, c := range []struct{ verb, method, path, protocol string }{
		{"get", http.MethodGet, "/portForward/ns/pod", "SPDY/3.1"},
		{"get", http.MethodGet, "/exec/ns/pod/main", "websocket"},
		{"get", http.MethodGet, "/attach/ns/pod/main", "websocket"}, {"get", http.MethodGet, "/pods", "SPDY/3.1"},
		{"get", http.MethodGet, "//exec/ns/pod/main", ""}, {"get", http.MethodGet, "/run/ns/pod/main", ""},
		{"update", http.MethodPut, "/exec/ns/pod/main", "websocket"},
		{"delete", http.MethodDelete, "/portForward/ns/pod", "SPDY/3.1"},
	} {
		if code, text := call("viewer", c.verb, c.method, c.path, c.protocol); code != http.StatusForbidden ||
			!strings.Contains(text, `needs the verb "create"`) {
			t.Errorf("viewer: %+v: %d %s", c, code, text)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("%d requests have reached the kubelet", n)
	}
	if code, text := call("viewer", "get", http.MethodGet, "/pods", ""); code != http.StatusOK {
		t.Errorf("reading: %d %s", code, text)
	}
	if code, text := call("operator", "get", http.MethodGet, "/exec/ns/pod/main", ""); code != http.StatusOK {
		t.Errorf("a stream with the verb create: %d %s", code, text)
	}
	if code, text := call("viewer", "create", http.MethodPost, "/run/ns/pod/main", ""); code != http.StatusOK {
		t.Errorf("POST was authorized before: %d %s", code, text)
	}
	if n := reached.Load(); n != 3 {
		t.Errorf("%d requests have reached the kubelet, want 3", n)
	}
	before := reached.Load()
	for _, path := range []string{"barque/v1/upgrade/node", "/x/../barque/v1/upgrade/node"} {
		if code, body := call("operator", "create", http.MethodPost, path, ""); code != http.StatusForbidden ||
			reached.Load() != before {
			t.Errorf("an order to a node by %s: %d %s", path, code, body)
		}
	}
}
