// Package server is the node's own HTTPS server, on port 10250: logs, exec, attach and port-forward
// of its pods, and data about them and the node.
//
// Callers authenticate by a client certificate of the cluster's CA, or by a token that the API
// server accepts. The API server must authorize them; servers, which have a group of their own, and
// members of system:masters always are. The paths and parameters are those of every Kubernetes
// node. The streams of commands are carried to the runtime's own streaming server. Forwarded ports
// are reached in the pod's network namespace.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/cutoff"
	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/internal/kubeletapi"
	"github.com/barque/barque/internal/loglimit"
	kubeletconfig "github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/images"
	"github.com/barque/barque/kubelet/nodelogs"
)

// Pods lists the pods of this node.
type Pods interface {
	Pods() []*v1.Pod
}

// Runtime is the Server's interface to the container runtime.
type Runtime interface {
	cri.Streams
	ListContainers(ctx context.Context, selector map[string]string) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error)
	ContainerPID(ctx context.Context, id string) (int, error)
	ListPodSandboxes(ctx context.Context, selector map[string]string) ([]*runtimeapi.PodSandbox, error)
	SandboxNetwork(ctx context.Context, id string) (path string, err error)
}

// Config configures a Server.
type Config struct {
	NodeName string
	Address  string // listening address, host:port
	// TLS has the server's certificate and, as ClientCAs, the cluster's CA. Its callbacks are kept,
	// so that certificates may be renewed while it serves.
	TLS *tls.Config
	// Limits bound the connections of clients without credentials.
	Limits connlimit.Limits
	// Revoked returns the reason why a genuine client certificate is not accepted, or nil. It is
	// called at each request; nil revokes none.
	Revoked func(leaf *x509.Certificate) error
	// RevokedChanged return channels that are closed when more certificates may be revoked, or the
	// CAs have changed. Streams of certificates that are no longer accepted end then.
	RevokedChanged []func() <-chan struct{}

	Client  kubernetes.Interface // for TokenReview and SubjectAccessReview
	Pods    Pods
	Runtime Runtime
	Usage   Usage
	RootDir string
	Volumes Volumes // it may be nil
	// ImportImages imports the images of a tar into the runtime and returns their names. It is nil
	// where the runtime is not the node's own.
	ImportImages func(ctx context.Context, tar io.Reader) ([]string, error)
	// ForServers are further handlers, by path, for servers of the cluster alone: administrators
	// are refused, too.
	ForServers map[string]http.Handler
	// Healthy returns the reason why the kubelet does not do its work, or nil; see /healthz. A nil
	// function means always healthy.
	Healthy func() error
	// Settings are shown at /configz.
	Settings *kubeletconfig.Configuration
	// Probes is shown at /metrics/probes. It may be nil.
	Probes prometheus.Collector
	// Collectors are shown at /metrics beside the server's own.
	Collectors []prometheus.Collector
	Logger     *slog.Logger
	Now        func() time.Time // time.Now when nil
}

// Server serves one node.
type Server struct {
	Config
	guard    *guard
	streams  *cutoff.Requests
	metrics  http.Handler
	health   health
	started  time.Time
	refusals loglimit.Limiter // of forwarded connections that no pod takes
}

// New returns a server that does not listen yet.
func New(config Config) (*Server, error) {
	if config.TLS == nil || config.TLS.ClientCAs == nil && config.TLS.GetConfigForClient == nil {
		return nil, errors.New("node server: no certificate and client CA are given")
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Settings == nil {
		config.Settings = kubeletconfig.Default()
	}
	config.TLS = config.TLS.Clone()
	config.TLS.MinVersion = max(config.TLS.MinVersion, tls.VersionTLS12)
	config.TLS.ClientAuth = tls.VerifyClientCertIfGiven // a caller without a certificate brings a token
	s := &Server{Config: config,
		guard:   newGuard(config.Client, config.NodeName, config.Settings, config.Now, config.Revoked),
		started: config.Now()}
	s.guard.believed = s.believed
	s.streams = cutoff.New(cutoff.ByCluster, s.guard.counts,
		func(*x509.Certificate) (x509.VerifyOptions, bool) { return s.believed() }, func(r *http.Request) bool {
			return kubeletapi.OpensStream(r.URL.Path, r.Header) || r.URL.Query().Has("follow")
		})
	s.metrics = s.newMetrics()
	return s, nil
}

// Handler returns the handler of all paths, behind its checks.
func (s *Server) Handler() http.Handler {
	return cutoff.WithProof(s.guard.protect(s.streams.Handler(s.routes())))
}

// routes returns the handler of all paths.
func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /healthz/{check}", s.healthz)
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /runningpods/", s.pods)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	for _, path := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		mux.HandleFunc("/exec"+path, s.exec)
		mux.HandleFunc("/attach"+path, s.attach)
	}
	mux.HandleFunc("/portForward/{namespace}/{pod}", s.portForward)
	mux.HandleFunc("/portForward/{namespace}/{pod}/{uid}", s.portForward)
	mux.Handle("GET /metrics", s.metrics)
	mux.HandleFunc("GET /metrics/resource", s.resourceMetrics)
	mux.HandleFunc("GET /metrics/cadvisor", s.cadvisorMetrics)
	probes := prometheus.NewRegistry()
	if s.Probes != nil {
		probes.MustRegister(s.Probes)
	}
	mux.Handle("GET /metrics/probes", promhttp.HandlerFor(probes, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /stats/summary", s.summary)
	if set := s.Settings; set != nil && ptr.Deref(set.EnableSystemLogHandler, true) {
		mux.Handle("GET /logs/",
			http.StripPrefix("/logs", nodelogs.Handler(nodelogs.Dir, ptr.Deref(set.EnableSystemLogQuery, false))))
	}
	mux.HandleFunc("POST /"+images.ImportPath, s.importImages)
	for path, handler := range s.ForServers {
		mux.Handle(path, serversOnly(handler))
	}
	mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]*kubeletconfig.Configuration{"kubeletconfig": s.Settings})
	})
	return mux
}

// serversOnly refuses callers without the certificate of a server.
func serversOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 ||
			!slices.Contains(r.TLS.VerifiedChains[0][0].Subject.Organization, kubeletapi.ClientGroup) {
			http.Error(w, "this is for servers of the cluster only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// believed returns the present CAs of clients.
func (s *Server) believed() (x509.VerifyOptions, bool) {
	config := s.TLS
	if config.GetConfigForClient != nil {
		if now, err := config.GetConfigForClient(&tls.ClientHelloInfo{}); err != nil {
			return x509.VerifyOptions{}, false
		} else if now != nil {
			config = now
		}
	}
	return x509.VerifyOptions{Roots: config.ClientCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		config.ClientCAs != nil
}

// shutdownPatience bounds requests under way when the server ends. Streams end at once.
const shutdownPatience = 2 * time.Second

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	plain, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("node server: listen on %s: %w", s.Address, err)
	}
	return s.Serve(ctx, plain)
}

// Serve serves on a listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, plain net.Listener) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := httpserver.New(
		httpserver.Config{Listener: plain, Handler: s.Handler(), TLS: s.TLS, Limits: s.Limits, Base: base,
			Logger: s.Logger})
	var ending sync.WaitGroup
	ending.Go(func() { // ends with ctx, after which Serve returns
		<-ctx.Done()
		stop() // followers of logs and the like end now
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPatience)
		defer cancel()
		if err := server.Shutdown(patience); err != nil {
			server.Close()
		}
	})
	ending.Go(func() { s.streams.Run(base, s.RevokedChanged...) }) // ends with base
	err := server.Serve()
	if ctx.Err() == nil {
		return fmt.Errorf("node server: %w", err)
	}
	ending.Wait()
	return nil
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{}}
	for _, pod := range s.Pods.Pods() {
		list.Items = append(list.Items, *pod)
	}
	writeJSON(w, &list)
}

func writeJSON(w http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // a client that left is no error of ours
}

// podNamed finds the pod of a request.
func (s *Server) podNamed(r *http.Request) (*v1.Pod, error) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("uid")
	for _, pod := range s.Pods.Pods() {
		if pod.Namespace == namespace && pod.Name == name && (uid == "" || string(pod.UID) == uid) {
			return pod, nil
		}
	}
	return nil, &httpError{http.StatusNotFound, fmt.Sprintf("pod %q/%q does not exist on this node", namespace, name)}
}

// httpError is an error with the status to answer with.
type httpError struct {
	code    int
	message string
}

func (e *httpError) Error() string { return e.message }

func fail(w http.ResponseWriter, err error) {
	var h *httpError
	switch {
	case errors.As(err, &h):
		http.Error(w, h.message, h.code)
	case cri.IsNotFound(err):
		http.Error(w, cri.Message(err), http.StatusNotFound)
	default:
		http.Error(w, cri.Message(err), http.StatusInternalServerError)
	}
}
