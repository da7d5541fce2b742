package rbac

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestReconcileEndsWithItsContext has an API that does not answer one kind of call, as one has whose store has just lost its
// leader. Reconcile must return when its context ends, and not when that call does.
func TestReconcileEndsWithItsContext(t *testing.T) {
	const there, missing = true, false
	for _, c := range []struct {
		method, resource string
		there            bool // what is asked for, and has nothing in it
	}{
		{"GET", "clusterroles", missing}, {"POST", "clusterroles", missing}, {"PUT", "clusterroles", there},
		{"GET", "clusterrolebindings", missing}, {"POST", "clusterrolebindings", missing}, {"DELETE", "clusterrolebindings", there},
		{"GET", "roles", missing}, {"POST", "roles", missing}, {"PUT", "roles", there},
		{"GET", "rolebindings", missing}, {"POST", "rolebindings", missing}, {"DELETE", "rolebindings", there},
		{"GET", "namespaces", missing}, {"POST", "namespaces", missing},
	} {
		t.Run(c.method+" "+c.resource, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked := make(chan struct{}, 1)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body) // without it the end of the connection is not seen
				if err != nil {
					return
				}
				parts := strings.Split(r.URL.Path, "/")
				if r.Method == c.method && (parts[len(parts)-1] == c.resource || parts[len(parts)-2] == c.resource) {
					select {
					case asked <- struct{}{}:
					default:
					}
					<-r.Context().Done()
					return
				}
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.Method == "DELETE":
					io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
				case r.Method != "GET":
					w.Write(body)
				case c.there:
					json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"name": path.Base(r.URL.Path)}})
				default:
					w.WriteHeader(http.StatusNotFound)
					io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
				}
			}))
			defer api.Close()
			defer api.CloseClientConnections() // or a call that goes on would keep it open
			client, err := kubernetes.NewForConfig(&rest.Config{Host: api.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- Reconcile(ctx, client) }()
			select {
			case <-asked:
			case err := <-done:
				t.Fatalf("it ended without such a call: %v", err)
			}
			cancel()
			select {
			case err := <-done:
				if err == nil {
					t.Error("no error, and not all was done")
				}
			case <-time.After(30 * time.Second):
				t.Error("it goes on after the end of its context")
			}
		})
	}
}
