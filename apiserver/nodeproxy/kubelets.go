package nodeproxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// toKubelets has the transports to the kubelets. Each node has its own, because http.Transport
// shares the connections to an address: one that was verified for a node would serve another node
// with the same address. Nodes share addresses when a machine has that of a dead one, and when one
// process serves for many nodes.
type toKubelets struct {
	tls  func() *tls.Config
	is   func(*corev1.Node, tls.ConnectionState) error
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	now  func() time.Time

	mu       sync.Mutex
	config   *tls.Config           // the result of tls that the transports were made of
	nodes    map[string]*toKubelet // by the name of the node
	insecure *http.Transport       // does not verify the kubelet's certificate
}

// toKubelet is the transport to the kubelet of one node.
type toKubelet struct {
	*http.Transport
	node *corev1.Node // as it was last asked for
	used time.Time
}

// verified returns the transport to the kubelet of a node.
func (k *toKubelets) verified(node *corev1.Node) *http.Transport {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renew()
	to := k.nodes[node.Name]
	if to == nil {
		k.sweep()
		to = &toKubelet{}
		config := k.base()
		config.VerifyConnection = func(peer tls.ConnectionState) error { return k.is(k.latest(to), peer) }
		to.Transport = newTransport(config, k.dial)
		k.nodes[node.Name] = to
	}
	to.node, to.used = node, k.now()
	return to.Transport
}

// unverified returns the transport to kubelets whose certificate is not verified.
func (k *toKubelets) unverified() *http.Transport {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renew()
	return k.insecure
}

func (k *toKubelets) latest(to *toKubelet) *corev1.Node {
	k.mu.Lock()
	defer k.mu.Unlock()
	return to.node
}

// renew makes the transports anew when the CAs have changed. The caller holds mu.
func (k *toKubelets) renew() {
	config := k.tls()
	if config == k.config {
		return
	}
	k.closeIdle()
	k.config, k.nodes = config, map[string]*toKubelet{}
	unverified := k.base()
	unverified.InsecureSkipVerify = true
	k.insecure = newTransport(unverified, k.dial)
}

// base returns the configuration of a transport. The caller holds mu.
func (k *toKubelets) base() *tls.Config {
	config := k.config.Clone()
	config.NextProtos = nil // connections get upgraded, which HTTP/2 does not do
	return config
}

// sweep forgets the transports without a connection that waits for a request. The caller holds mu.
func (k *toKubelets) sweep() {
	for name, to := range k.nodes {
		if k.now().Sub(to.used) > idle {
			to.CloseIdleConnections()
			delete(k.nodes, name)
		}
	}
}

// close drops the connections that wait for further requests.
func (k *toKubelets) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closeIdle()
}

func (k *toKubelets) closeIdle() {
	for _, to := range k.nodes {
		to.CloseIdleConnections()
	}
	if k.insecure != nil {
		k.insecure.CloseIdleConnections()
	}
}
