package kubelet_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/kubeletapi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const serverAddress = "127.0.0.1:10250"

// authority is a certificate authority for one test.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key: key, cert: cert, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name, group string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:   pkix.Name{CommonName: name, Organization: []string{group}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// serverTLS is the configuration of a node's server.
func (a *authority) serverTLS(t *testing.T) *tls.Config {
	t.Helper()
	cert, err := tls.X509KeyPair(a.issue(t, "system:node:n1", "system:nodes"))
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: a.pool()}
}

// client is the API server's configuration for a node.
func (a *authority) client(t *testing.T) *rest.Config {
	t.Helper()
	cert, key := a.issue(t, kubeletapi.ClientUser, kubeletapi.ClientGroup)
	return &rest.Config{Host: "https://" + serverAddress,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.pem, CertData: cert, KeyData: key}}
}

// TestNodeServer reads logs of a real container, runs commands in it and reaches its ports, as the
// API server does.
func TestNodeServer(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	f.ca = newAuthority(t)
	f.start()
	config := f.ca.client(t)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get(config.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}

	f.create(
		script("talks", v1.RestartPolicyAlways, nil,
			"echo one; echo two; trap 'exit 0' TERM; while true; do echo tick; sleep 0.2; done"))
	f.create(hello("web"))
	f.eventually("talks", "ready", ready)
	f.eventually("web", "ready", ready)
	// Pods do not wait for the server.
	f.eventually("web", "to be reached through the server", func(*v1.Pod) bool {
		conn, err := net.Dial("tcp", serverAddress)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})

	t.Run("who comes without a certificate is sent away", func(t *testing.T) {
		plain := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.ca.pool()}}}
		resp, err := plain.Get(config.Host + "/pods")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("status %d", resp.StatusCode)
		}
	})

	t.Run("logs", func(t *testing.T) {
		// A container is ready when it runs; its first words come a moment later.
		f.eventually("talks", "heard", func(*v1.Pod) bool {
			code, body := get("/containerLogs/default/talks/c0?limitBytes=8")
			if code != 200 || !strings.HasPrefix("one\ntwo\n", body) {
				t.Fatalf("%d %q", code, body)
			}
			return body == "one\ntwo\n"
		})
		if code, body := get("/containerLogs/default/talks/c0?tailLines=1&timestamps=true"); code != 200 ||
			strings.Count(body, "\n") != 1 || !strings.Contains(body, "Z t") {
			t.Errorf("%d %q", code, body)
		}
		if code, body := get("/containerLogs/default/talks/c0?previous=true"); code != 400 ||
			!strings.Contains(body, "previous terminated container") {
			t.Errorf("%d %q", code, body)
		}
		if code, _ := get("/containerLogs/default/talks/none"); code != 404 {
			t.Errorf("an unknown container answers %d", code)
		}
		resp, err := client.Get(config.Host + "/containerLogs/default/talks/c0?follow=true&tailLines=0")
		if err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 5)
		if _, err := io.ReadFull(resp.Body, line); err != nil || string(line) != "tick\n" {
			t.Errorf("followed %q %v", line, err)
		}
		resp.Body.Close()
	})

	t.Run("exec", func(t *testing.T) {
		u, err := url.Parse(
			config.Host +
				"/exec/default/talks/c0?command=/bin/sh&command=-c&command=cat%3B%20echo%20bad%20%3E%262%3B%20exit%207&input=1&output=1&error=1")
		if err != nil {
			t.Fatal(err)
		}
		exec, err := remotecommand.NewSPDYExecutor(config, "POST", u)
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		err = exec.StreamWithContext(context.Background(),
			remotecommand.StreamOptions{Stdin: strings.NewReader("said"), Stdout: &stdout, Stderr: &stderr})
		if err == nil || !strings.Contains(err.Error(), "exit code 7") || stdout.String() != "said" ||
			stderr.String() != "bad\n" {
			t.Errorf("%v %q %q", err, &stdout, &stderr)
		}
	})

	t.Run("port-forward", func(t *testing.T) {
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(config.Host + "/portForward/default/web")
		if err != nil {
			t.Fatal(err)
		}
		stop, up := make(chan struct{}), make(chan struct{})
		forwarder, err := portforward.NewOnAddresses(
			spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u),
			[]string{"127.0.0.1"}, []string{"18080:8080"}, stop, up, io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- forwarder.ForwardPorts() }()
		select {
		case <-up:
		case err := <-ended:
			t.Fatal(err)
		}
		resp, err := http.Get("http://127.0.0.1:18080/healthz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("status %d", resp.StatusCode)
		}
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	t.Run("what it knows", func(t *testing.T) {
		var list v1.PodList
		if code, body := get("/pods"); code != 200 || json.Unmarshal([]byte(body), &list) != nil ||
			len(list.Items) != 2 || list.Items[0].Status.Phase != v1.PodRunning {
			t.Errorf("%d %s", code, body)
		}
		// The runtime measures by intervals; the first figures take one interval.
		measured := func(p stats.PodStats) bool {
			return p.Memory != nil && len(p.Containers) == 1 && p.Containers[0].CPU != nil
		}
		deadline := time.Now().Add(time.Minute)
		for {
			var s stats.Summary
			code, body := get("/stats/summary")
			if code == 200 && json.Unmarshal([]byte(body), &s) == nil && len(s.Pods) == 2 && measured(s.Pods[0]) &&
				measured(s.Pods[1]) && s.Node.CPU != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d %s", code, body)
			}
		}
		code, body := get("/metrics/resource")
		for _, want := range []string{"node_cpu_usage_seconds_total",
			`pod_memory_working_set_bytes{namespace="default",pod="web"}`,
			`container_cpu_usage_seconds_total{container="hello",namespace="default",pod="web"}`,
			"resource_scrape_error 0"} {
			if code != 200 || !strings.Contains(body, want) {
				t.Errorf("%d: no %s in\n%s", code, want, body)
			}
		}
		if code, body := get("/metrics"); code != 200 ||
			!strings.Contains(body, `kubelet_running_containers{container_state="running"} 2`) {
			t.Errorf("%d %s", code, fmt.Sprint(len(body)))
		}
	})
}
