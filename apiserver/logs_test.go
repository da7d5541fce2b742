package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// newKubelet runs a kubelet that echoes its requests. It returns its port and a function that makes
// a server trust it.
func newKubelet(t *testing.T) (port int32, trust func(*Config)) {
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s", r.URL.Path, r.URL.Query().Encode())
	}))
	t.Cleanup(kubelet.Close)
	pool := x509.NewCertPool()
	pool.AddCert(kubelet.Certificate())
	config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return int32(kubelet.Listener.Addr().(*net.TCPAddr).Port), func(c *Config) {
		c.KubeletClient, c.IsKubelet = func() *tls.Config { return config },
			func(*corev1.Node, tls.ConnectionState) error { return nil }
	}
}

func testLogs(t *testing.T, c *cluster) {
	ctx := t.Context()
	must(
		c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "logs"}},
			metav1.CreateOptions{}))(t)
	must(
		c.admin.CoreV1().ServiceAccounts("logs").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	node := must(
		c.admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "logging"}},
			metav1.CreateOptions{}))(t)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = c.kubelet
	must(c.admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))(t)
	spec := podSpec()
	spec.NodeName = "logging"
	must(
		c.admin.CoreV1().Pods("logs").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec},
			metav1.CreateOptions{}))(t)

	body, err := c.admin.CoreV1().Pods("logs").GetLogs("p",
		&corev1.PodLogOptions{TailLines: ptr.To[int64](3), Timestamps: true}).DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(body), "/containerLogs/logs/p/c tailLines=3&timestamps=true"; got != want {
		t.Errorf("the kubelet was asked for %q, want %q", got, want)
	}
}
