package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// TestInProcessIsAsOverTLS: a client in the process gets the same responses as a client with
// a connection.
func TestInProcessIsAsOverTLS(t *testing.T) {
	c := startCluster(t)
	must(0, c.ensure(t.Context(), c.client))(t)
	must(
		c.admin.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("a", map[string]string{"k": "v"}),
			metav1.CreateOptions{}))(t)
	direct := must(restclient.HTTPClientFor(c.loopback.config("mary", "system:masters")))(t)
	connected := must(restclient.HTTPClientFor(c.loopback.overTLS("mary", "system:masters")))(t)
	t.Cleanup(connected.CloseIdleConnections)
	get := func(client *http.Client, method, path, accept string) (status int, body string, header http.Header) {
		r := must(http.NewRequestWithContext(t.Context(), method, c.loopback.host+path, nil))(t)
		r.Header.Set("Accept", accept)
		answer := must(client.Do(r))(t)
		defer func() { _ = answer.Body.Close() }()
		return answer.StatusCode, string(must(io.ReadAll(answer.Body))(t)), answer.Header
	}
	exempt := must(c.admin.FlowcontrolV1().FlowSchemas().Get(t.Context(), "exempt", metav1.GetOptions{}))(t)
	await(t, "requests are told apart by the schemas that are stored", func(context.Context) (error, bool) {
		_, _, header := get(direct, http.MethodGet, "/version", "")
		uid := header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
		return fmt.Errorf("by schema %q, want %q", uid, exempt.UID), uid == string(exempt.UID)
	})
	for _, r := range []struct{ method, path, accept string }{
		{http.MethodGet, "/api/v1/namespaces/default/configmaps/a", "application/json"},
		{http.MethodGet, "/api/v1/namespaces/default/configmaps/a", "application/vnd.kubernetes.protobuf"},
		{http.MethodGet, "/api/v1/namespaces/default/configmaps", "application/yaml"},
		{http.MethodGet, "/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=1&resourceVersion=0",
			"application/json"},
		{http.MethodGet, "/api/v1/namespaces/default/configmaps/none", "application/json"},
		{http.MethodDelete, "/api/v1/namespaces/default/configmaps/none", "application/json"},
		{http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json"},
		{http.MethodGet, "/api/v1/namespaces/default/configmaps/a", "text/none"},
		{http.MethodGet, "/none", "application/json"},
		{http.MethodGet, "/version", ""},
		{http.MethodGet, "/readyz", ""},
		{http.MethodGet, "/openapi/v3", "application/json"},
	} {
		var status, wantStatus int
		var body, wantBody string
		var header, wantHeader http.Header
		c.atRest(t, func() {
			status, body, header = get(direct, r.method, r.path, r.accept)
			wantStatus, wantBody, wantHeader = get(connected, r.method, r.path, r.accept)
		})
		if status != wantStatus || body != wantBody {
			t.Errorf("%v: %d %.1000q, over TLS %d %.1000q", r, status, body, wantStatus, wantBody)
		}
		for _, name := range []string{"Content-Type", "Cache-Control", "Vary", "Warning", "Retry-After", "Etag",
			"X-Kubernetes-Pf-Flowschema-Uid"} {
			if header.Get(name) != wantHeader.Get(name) {
				t.Errorf("%v: %s is %q, over TLS %q", r, name, header.Get(name), wantHeader.Get(name))
			}
		}
	}
}

// A server that stops ends the watches in its process, and is no longer called.
func TestStopEndsWatchesInTheProcess(t *testing.T) {
	var w watch.Interface
	var config *restclient.Config
	t.Run("serve", func(t *testing.T) {
		c := startCluster(t)
		config = c.LoopbackConfig()
		w = must(
			kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("").Watch(context.Background(),
				metav1.ListOptions{}))(t)
	})
	await(t, "the watch ends", func(context.Context) (error, bool) {
		select {
		case _, open := <-w.ResultChan():
			return nil, !open
		default:
			return nil, false
		}
	})
	_, err := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a request after the end: %v", err)
	}
}
