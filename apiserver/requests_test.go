package apiserver

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/barque/barque/apiserver/audit"
)

// BenchmarkRequests is the way of requests about one ConfigMap of 1 KiB through the whole chain,
// without a network and over a store in memory, by a client with a certificate.
func BenchmarkRequests(b *testing.B) {
	c := startCluster(b)
	must(0, c.ensure(b.Context(), c.client))(b)
	cert := must(
		x509.ParseCertificate(
			c.ca.issue(b, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}).Certificate[0]))(b)
	state := &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{cert}}
	handler := c.chain.aggregator.GenericAPIServer.Handler
	const path = "/api/v1/namespaces/default/configmaps"
	send := func(b *testing.B, method, name string, n int) {
		var body bytes.Buffer
		if method != http.MethodGet {
			m := configMap("object-"+name,
				map[string]string{"key": strings.Repeat("x", 1000) + fmt.Sprintf("%024d", n)})
			m.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
			if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(m, &body); err != nil {
				b.Fatal(err)
			}
		}
		url := path
		if method != http.MethodPost {
			url += "/object-" + name
		}
		r := httptest.NewRequest(method, url, &body)
		r.TLS = state
		r.Header.Set("Accept", runtime.ContentTypeProtobuf)
		r.Header.Set("Content-Type", runtime.ContentTypeProtobuf)
		r.Header.Set("User-Agent", "apibench")
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code >= 300 {
			b.Fatalf("%s %s: %d: %s", method, url, w.Code, w.Body)
		}
	}
	n := 0
	for range 100 {
		send(b, http.MethodPost, fmt.Sprint(n), n)
		n++
	}
	for name, method := range map[string]string{"create": http.MethodPost, "update": http.MethodPut,
		"get": http.MethodGet} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			began, cpu := n, cpuTime()
			for b.Loop() {
				object := n
				if method != http.MethodPost {
					object = n % 100
				}
				send(b, method, fmt.Sprint(object), n)
				n++
			}
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(n-began), "CPU-µs/op")
		})
	}
}

// BenchmarkNodeStatus is the way of the request that nodes make the most through the whole chain,
// with the default policy of audit, which has an event in case of a refusal, and with the same
// policy in a file, which has none.
func BenchmarkNodeStatus(b *testing.B) {
	file := filepath.Join(b.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(audit.DefaultPolicy), 0o600); err != nil {
		b.Fatal(err)
	}
	for name, policy := range map[string]string{"default": "", "file": file} {
		b.Run(name, func(b *testing.B) {
			options := audit.NewOptions()
			options.PolicyFile = policy
			c := startCluster(b,
				func(cfg *Config) { cfg.Audit = runAudit(b, options, filepath.Join(b.TempDir(), "audit.log")) })
			must(0, c.ensure(b.Context(), c.client))(b)
			must(
				c.admin.CoreV1().Nodes().Create(b.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
					metav1.CreateOptions{}))(b)
			cert := must(
				x509.ParseCertificate(
					c.ca.issue(b,
						pkix.Name{CommonName: "system:node:n1",
							Organization: []string{"system:nodes"}}).Certificate[0]))(b)
			state := &tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{cert}}
			handler := c.chain.aggregator.GenericAPIServer.Handler
			b.ReportAllocs()
			n, cpu := 0, cpuTime()
			for b.Loop() {
				n++
				body := fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":"%d"}}}`, n)
				r := httptest.NewRequest(http.MethodPatch, "/api/v1/nodes/n1/status", strings.NewReader(body))
				r.TLS = state
				r.Header.Set("Content-Type", "application/strategic-merge-patch+json")
				w := httptest.NewRecorder()
				if handler.ServeHTTP(w, r); w.Code != http.StatusOK {
					b.Fatalf("%d: %s", w.Code, w.Body)
				}
			}
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(n), "CPU-µs/op")
		})
	}
}
