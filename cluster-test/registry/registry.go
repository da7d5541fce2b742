// Package registry serves container images to the nodes of a test cluster, as docker.io does to
// real ones.
//
// It is a real OCI registry in the test's process. It listens on the loopback of each node's
// network namespace, so nothing but the node reaches it, and nodes are pointed at it by the mirror
// configuration that users have: a directory in the layout of containerd's certs.d. It counts
// pulls, so that tests can prove that an image came over the network, and it can be switched off,
// so that they can prove that nothing needed it.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ocireg "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/barque/barque/cluster-test/netspace"
)

// Address is where a node finds the registry: its own loopback.
const Address = "127.0.0.1:5000"

// Registry is safe for use by several goroutines.
type Registry struct {
	handler http.Handler

	mu        sync.Mutex
	off       bool
	manifests map[string]int // by "repository:tag" or "repository@digest"
	blobs     int
	servers   map[string]*http.Server // by network namespace
	served    sync.WaitGroup
}

// New returns a registry with the images in it.
func New(ctx context.Context, images map[name.Tag]v1.Image) (*Registry, error) {
	r := &Registry{
		handler:   ocireg.New(ocireg.Logger(log.New(io.Discard, "", 0))),
		manifests: map[string]int{},
		servers:   map[string]*http.Server{},
	}
	for tag, img := range images {
		// The repository is the image's own, the host is us.
		target, err := name.NewTag(Address + "/" + tag.RepositoryStr() + ":" + tag.TagStr())
		if err != nil {
			return nil, err
		}
		if err := remote.Write(target, img, remote.WithContext(ctx),
			remote.WithTransport(direct{r.handler})); err != nil {
			return nil, fmt.Errorf("put %s into the test registry: %w", tag, err)
		}
	}
	return r, nil
}

// direct is a way to a handler without a network.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body == nil {
		request.Body = http.NoBody
	}
	recorder := httptest.NewRecorder()
	d.handler.ServeHTTP(recorder, request)
	response := recorder.Result()
	response.Request = request
	return response, nil
}

// hosts are the registries whose images the tests have.
var hosts = []string{"docker.io", "gcr.io", "ghcr.io", "quay.io", "registry.k8s.io"}

// WriteMirrors makes the directory that sends a node's pulls from these hosts to the registry, and
// to nowhere else.
func WriteMirrors(dir string) error {
	text := fmt.Sprintf(
		"server = \"http://%[1]s\"\n\n[host.\"http://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", Address)
	for _, host := range hosts {
		if err := os.MkdirAll(filepath.Join(dir, host), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, host, "hosts.toml"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Serve makes the registry reachable in the named network namespace, until Leave or Close.
func (r *Registry) Serve(namespace string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.servers[namespace] != nil {
		return nil
	}
	listener, err := netspace.Listen(namespace, "tcp", Address)
	if err != nil {
		return fmt.Errorf("serve images in network namespace %s: %w", namespace, err)
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	r.servers[namespace] = server
	// Ends when the server is closed, with an error that says that; Close waits for it.
	r.served.Go(func() { _ = server.Serve(listener) })
	return nil
}

// Leave ends the serving in the namespaces: one cannot go while a socket of ours is in it.
func (r *Registry) Leave(namespaces ...string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for _, namespace := range namespaces {
		if server := r.servers[namespace]; server != nil {
			err = errors.Join(err, server.Close())
			delete(r.servers, namespace)
		}
	}
	return err
}

// Close ends all serving and waits until it has ended.
func (r *Registry) Close() error {
	r.mu.Lock()
	namespaces := slices.Collect(maps.Keys(r.servers))
	r.mu.Unlock()
	err := r.Leave(namespaces...)
	r.served.Wait()
	return err
}

// Off makes the registry refuse everything, as one that is down behind a proxy; On ends that.
func (r *Registry) Off() { r.set(true) }

// On ends Off.
func (r *Registry) On() { r.set(false) }

func (r *Registry) set(off bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.off = off
}

// Pulls returns how often the manifest of the image was asked for by its tag, such as
// "library/nginx:1.21.6", and how many blobs of any image were fetched.
func (r *Registry) Pulls(image string) (manifests, blobs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manifests[image], r.blobs
}

// Requests returns how many manifests and blobs were asked for in all, refused ones too.
func (r *Registry) Requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.blobs
	for _, m := range r.manifests {
		n += m
	}
	return n
}

// ServeHTTP implements http.Handler. Only New may write.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodGet && request.Method != http.MethodHead {
		http.Error(w, "this registry is read-only", http.StatusMethodNotAllowed)
		return
	}
	if r.count(request.URL.Path) {
		http.Error(w, "the test has switched this registry off", http.StatusServiceUnavailable)
		return
	}
	r.handler.ServeHTTP(w, request)
}

// count notes the request and reports whether the registry is off.
func (r *Registry) count(path string) (off bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path = strings.TrimPrefix(path, "/v2/")
	if repository, reference, ok := strings.Cut(path, "/manifests/"); ok {
		separator := ":"
		if strings.Contains(reference, ":") {
			separator = "@"
		}
		r.manifests[repository+separator+reference]++
	} else if strings.Contains(path, "/blobs/") {
		r.blobs++
	}
	return r.off
}
