package nodeproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
)

// TestAnAddressIsNoIdentity: a node that has died and the machine that has its address now share
// it. No request for the dead node reaches that machine, also not over the connections that wait
// there for further requests.
func TestAnAddressIsNoIdentity(t *testing.T) {
	c := newCluster()
	dead := c.nodes["node"].DeepCopy()
	dead.Name = "dead"
	c.nodes["dead"] = dead
	lost := c.pods["pod"].DeepCopy()
	lost.Name, lost.Spec.NodeName = "lost", "dead"
	c.pods["lost"] = lost
	var reached atomic.Int32
	proxy := newProxy(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	path := func(r *http.Request) runtime.Object { return &corev1.NodeProxyOptions{Path: r.URL.Path} }
	for name, ask := range map[string]func(node, pod string) error{
		"pods/log": func(_, pod string) error {
			_, err := readLog(t.Context(), proxy, pod, &corev1.PodLogOptions{})
			return err
		},
		"pods/log of a node of any CA": func(_, pod string) error {
			_, err := readLog(t.Context(), proxy, pod, &corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true})
			return err
		},
		"nodes/proxy": func(
			node, _ string,
		) error {
			return fetch(t, front(t, proxy.NodeProxy(), node, path).URL+"/pods")
		},
		"nodes/proxy with the kubelet's port": func(node, _ string) error {
			return fetch(t, front(t, proxy.NodeProxy(), fmt.Sprintf("%s:%d", node, kubeletPort), path).URL+"/pods")
		},
		"a sample of its metrics": func(node, _ string) error {
			response, err := proxy.Get(t.Context(), c.nodes[node], "/metrics/resource")
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			return err
		},
	} {
		if err := ask("node", "pod"); err != nil {
			t.Errorf("%s: the living node: %v", name, err)
		}
		before := reached.Load()
		if err := ask("dead", "lost"); !contains(err, "system:node:node answers for node dead") {
			t.Errorf("%s: the dead node: %v", name, err)
		}
		if reached.Load() != before {
			t.Errorf("%s: the request has reached the other machine", name)
		}
	}
}

// TestInsecureLogsTakeAStrangersCertificate: without verification a kubelet may have a certificate
// of a CA of its own, as upstream's kubelets do by default.
func TestInsecureLogsTakeAStrangersCertificate(t *testing.T) {
	c := newCluster()
	proxy := newProxy(t, c, echo("kubelet"))
	another := newAuthority(t)
	server := httptest.NewUnstartedServer(echo("stranger"))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{another.issue("node@1700000000", x509.ExtKeyUsageServerAuth, "192.0.2.9")}}
	server.StartTLS()
	t.Cleanup(server.Close)
	c.routes[fmt.Sprintf("%s:%d", nodeAddress, kubeletPort)] = server.Listener.Addr().String()
	if _, err := readLog(t.Context(), proxy, "pod", &corev1.PodLogOptions{}); !contains(err, "certificate") {
		t.Errorf("with verification: %v", err)
	}
	if got, err := readLog(t.Context(), proxy, "pod",
		&corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true}); err != nil ||
		!strings.HasPrefix(got, "stranger GET") {
		t.Errorf("without verification: %q, %v", got, err)
	}
}

// TestAStreamReachesItsOwnNode: streams make connections of their own, which are verified as well.
func TestAStreamReachesItsOwnNode(t *testing.T) {
	c := newCluster()
	lost := c.pods["pod"].DeepCopy()
	lost.Name, lost.Spec.NodeName = "lost", "dead"
	dead := c.nodes["node"].DeepCopy()
	dead.Name = "dead"
	c.pods["lost"], c.nodes["dead"] = lost, dead
	var reached atomic.Int32
	proxy := newProxy(t, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		runtimeOfNode{}.ServeHTTP(w, r)
	}))
	refused := func(way string, err error) {
		t.Helper()
		if !contains(err, "system:node:node answers for node dead") {
			t.Errorf("%s: %v", way, err)
		}
	}
	command := front(t, proxy.PodExec(), "lost", with(&corev1.PodExecOptions{Stdout: true, Command: []string{"id"}}))
	for way, executor := range executors(t, command) {
		refused("exec over "+way,
			executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard}))
	}
	forward := front(t, proxy.PodPortForward(), "lost", with(&corev1.PodPortForwardOptions{Ports: []int32{80}}))
	location, err := url.Parse(forward.URL)
	if err != nil {
		t.Fatal(err)
	}
	roundTripper, upgrader, err := spdy.RoundTripperFor(&restclient.Config{Host: forward.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = spdy.NewDialer(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, location).Dial(
		portforward.PortForwardProtocolV1Name)
	refused("port-forward", err)
	if reached.Load() != 0 {
		t.Error("a stream has reached the other machine")
	}
}

// A Node may become a member's, and its kubelet is held against the Node of now.
func TestTheNewestNodeDecides(t *testing.T) {
	c := newCluster()
	proxy := newProxy(t, c, echo("kubelet"))
	proxy.toKubelet.is = func(node *corev1.Node, _ tls.ConnectionState) error {
		if node.Labels["member"] != "" {
			return fmt.Errorf("refused")
		}
		return nil
	}
	get := func() error {
		response, err := proxy.Get(t.Context(), c.nodes["node"], "/")
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		proxy.Close() // the connection waits no more
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	c.nodes["node"] = c.nodes["node"].DeepCopy()
	c.nodes["node"].Labels = map[string]string{"member": "yes"}
	if err := get(); !contains(err, "refused") {
		t.Errorf("got %v", err)
	}
}

// Nodes come and go for ever; the memory for them does not grow with that.
func TestTransportsOfFormerNodesAreForgotten(t *testing.T) {
	now := time.Unix(0, 0)
	config := &tls.Config{}
	k := &toKubelets{tls: func() *tls.Config { return config }, is: named, now: func() time.Time { return now },
		dial: func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }}
	node := func(name string) *corev1.Node {
		n := &corev1.Node{}
		n.Name = name
		return n
	}
	stays := k.verified(node("stays"))
	for i := range 1000 {
		k.verified(node(fmt.Sprint("n", i)))
		now = now.Add(10 * time.Second)
		if k.verified(node("stays")) != stays {
			t.Fatal("the transport of a node in use was forgotten")
		}
	}
	if n := len(k.nodes); n > 12 {
		t.Errorf("%d transports are kept", n)
	}
	config = &tls.Config{}
	if k.verified(node("stays")) == stays {
		t.Error("the CAs have changed, and the transport has not")
	}
}

// fetch returns the error in an answer, or of the request.
func fetch(t *testing.T, url string) error {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
	}
	return err
}
