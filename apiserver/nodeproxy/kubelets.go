package nodeproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// toKubelets has the transports to the kubelets. Each node has its own, because http.Transport
// shares the connections to an address: one that was verified for a node would serve another node
// with the same address. Nodes share addresses when a machine has the address of a dead one, and
// when one process serves for many nodes.
type toKubelets struct {
	tls  func() *tls.Config
	is   func(*corev1.Node, tls.ConnectionState) error
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	now  func() time.Time

	mu     sync.Mutex
	config *tls.Config // the result of tls that the transports were made of
	nodes  map[key]*toKubelet
}

// key identifies a transport.
type key struct {
	node     string
	insecure bool // the certificate may be of any CA
}

// toKubelet is the transport to the kubelet of one node.
type toKubelet struct {
	*http.Transport
	node *corev1.Node // as it was at the last request
	used time.Time
}

// verified returns the transport to the kubelet of a node.
func (k *toKubelets) verified(node *corev1.Node) *http.Transport { return k.to(node, false) }

// unverified returns the transport to the kubelet of a node whose certificate may be of any CA. One
// of the cluster's CA still has to be the node's: the client waives the check for that node, and
// does not accept another member's logs.
func (k *toKubelets) unverified(node *corev1.Node) *http.Transport { return k.to(node, true) }

func (k *toKubelets) to(node *corev1.Node, insecure bool) *http.Transport {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renew()
	id := key{node.Name, insecure}
	to := k.nodes[id]
	if to == nil {
		k.sweep()
		to = &toKubelet{}
		config := k.config.Clone()
		config.NextProtos = nil // connections get upgraded, which HTTP/2 does not do
		config.InsecureSkipVerify = insecure
		config.VerifyConnection = func(peer tls.ConnectionState) error {
			if insecure && !ofCluster(peer, config.RootCAs) {
				return nil
			}
			return k.is(k.latest(to), peer)
		}
		to.Transport = newTransport(config, k.dial)
		k.nodes[id] = to
	}
	to.node, to.used = node, k.now()
	return to.Transport
}

// ofCluster reports whether one of the roots has signed the peer's certificate, for any use.
func ofCluster(peer tls.ConnectionState, roots *x509.CertPool) bool {
	if len(peer.PeerCertificates) == 0 {
		return false
	}
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, cert := range peer.PeerCertificates[1:] {
		options.Intermediates.AddCert(cert)
	}
	_, err := peer.PeerCertificates[0].Verify(options)
	return err == nil
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
	k.config, k.nodes = config, map[key]*toKubelet{}
}

// sweep drops the transports without an idle connection. The caller holds mu.
func (k *toKubelets) sweep() {
	for id, to := range k.nodes {
		if k.now().Sub(to.used) > idle {
			to.CloseIdleConnections()
			delete(k.nodes, id)
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
}
