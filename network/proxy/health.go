package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/httpserver"
)

// HealthCheck is a service whose load balancer asks each node whether it has endpoints
// (externalTrafficPolicy Local).
type HealthCheck struct {
	Namespace, Name string
	Local           int // ready endpoints on this node
}

// healthChecks finds the ports at which load balancers ask. It is pure.
func healthChecks(s Snapshot) map[uint16]HealthCheck {
	checks := map[uint16]HealthCheck{}
	for _, service := range s.Services {
		port := service.Spec.HealthCheckNodePort
		if port == 0 || leftOut(service.Labels) || service.Spec.Type != corev1.ServiceTypeLoadBalancer ||
			service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
			continue
		}
		local := map[netip.Addr]struct{}{}
		for _, slice := range s.Slices {
			if slice.Namespace != service.Namespace || slice.Labels[discoveryv1.LabelServiceName] != service.Name {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				of := endpoints{family: s.Family}
				if of.add(endpoint, 0); len(of.ready) > 0 && ptr.Deref(endpoint.NodeName, "") == s.NodeName {
					local[of.ready[0].Addr] = struct{}{}
				}
			}
		}
		checks[uint16(port)] = HealthCheck{Namespace: service.Namespace, Name: service.Name, Local: len(local)}
	}
	return checks
}

// staleAfter is the largest age of the last success while there is work.
const staleAfter = time.Minute

// health answers load balancers: for single services at their health check node ports, and for the
// node as a whole at its own address (/healthz and /livez, as kube-proxy).
type health struct {
	logger *slog.Logger

	mu       sync.Mutex
	checks   map[uint16]HealthCheck
	servers  map[uint16]*httpserver.Server
	refused  map[uint16]bool // ports at which it could not listen, as logged
	updated  time.Time       // the last success
	waiting  time.Time       // since when a sync fails; zero when the last one succeeded
	eligible bool            // the node is to get traffic
	serving  sync.WaitGroup
}

func newHealth(logger *slog.Logger) *health {
	return &health{logger: logger, servers: map[uint16]*httpserver.Server{}, refused: map[uint16]bool{}, eligible: true}
}

// succeeded notes that the kernel has the rules, and listens at the ports that they want.
func (h *health) succeeded(checks map[uint16]HealthCheck, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.updated, h.waiting, h.checks = now, time.Time{}, checks
	for port, server := range h.servers {
		if _, wanted := checks[port]; !wanted {
			_ = server.Close()
			delete(h.servers, port)
		}
	}
	for port := range h.refused {
		if _, wanted := checks[port]; !wanted {
			delete(h.refused, port)
		}
	}
	for port := range checks {
		if h.servers[port] != nil {
			continue
		}
		server, err := h.serve(fmt.Sprintf(":%d", port),
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h.answer(w, port) }))
		if err != nil {
			if !h.refused[port] { // each sync tries again
				h.logger.Warn("service proxy: cannot listen for a load balancer's health checks", "port", port,
					"service", checks[port].Namespace+"/"+checks[port].Name, "err", err)
			}
			h.refused[port] = true
			continue
		}
		delete(h.refused, port)
		h.servers[port] = server
	}
}

// failed notes that the kernel lacks rules.
func (h *health) failed(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting.IsZero() {
		h.waiting = now
	}
}

// setEligible notes whether the node is to get traffic.
func (h *health) setEligible(eligible bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible
}

// healthy reports whether the rules match the cluster, or did a moment ago.
func (h *health) healthy(now time.Time) bool {
	return !h.updated.IsZero() && (h.waiting.IsZero() || now.Sub(h.waiting) < staleAfter)
}

// serve listens and serves until the server is closed.
func (h *health) serve(address string, handler http.Handler) (*httpserver.Server, error) {
	listener, err := net.Listen(networkOf(address), address)
	if err != nil {
		return nil, err
	}
	return h.serveOn(listener, handler), nil
}

// headerTimeout and idleTimeout bound the time for a request's header, and between two requests:
// anybody may ask.
const headerTimeout, idleTimeout = 5 * time.Second, time.Minute

func (h *health) serveOn(listener net.Listener, handler http.Handler) *httpserver.Server {
	server := httpserver.New(httpserver.Config{
		Listener: listener, Handler: handler, HeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, Logger: h.logger,
	})
	h.serving.Go(func() { // ends with the server
		if err := server.Serve(); !errors.Is(err, http.ErrServerClosed) {
			h.logger.Warn("service proxy: a server of health checks has ended", "address", listener.Addr(), "err",
				err)
		}
	})
	return server
}

// answer is the answer for one service.
func (h *health) answer(w http.ResponseWriter, port uint16) {
	h.mu.Lock()
	check, healthy := h.checks[port], h.healthy(time.Now())
	h.mu.Unlock()
	type name struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Local))
	write(w, check.Local > 0 && healthy, struct {
		Service             name `json:"service"`
		LocalEndpoints      int  `json:"localEndpoints"`
		ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
	}{name{check.Namespace, check.Name}, check.Local, healthy})
}

// ofNode is the answer for the node. A load balancer asks /healthz, and a probe /livez, which a
// node that gets no more traffic passes.
func (h *health) ofNode(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	h.mu.Lock()
	updated, healthy, eligible := h.updated, h.healthy(now), h.eligible
	h.mu.Unlock()
	if healthy {
		updated = now // nothing is due
	}
	write(w, healthy && (eligible || r.URL.Path == "/livez"), struct {
		LastUpdated  string `json:"lastUpdated"`
		CurrentTime  string `json:"currentTime"`
		NodeEligible bool   `json:"nodeEligible"`
	}{updated.String(), now.String(), eligible})
}

func write(w http.ResponseWriter, good bool, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !good {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

// mode is the answer of every kube-proxy whose rules are nftables'.
const mode = "nftables"

// run serves the node's health and the proxy's mode until ctx ends, and ends all servers then.
func (h *health) run(ctx context.Context, addresses []string, modeAddress string) {
	ofNode, ofProxy := http.NewServeMux(), http.NewServeMux()
	ofNode.HandleFunc("/healthz", h.ofNode)
	ofNode.HandleFunc("/livez", h.ofNode)
	ofProxy.HandleFunc("/healthz", h.ofNode)
	ofProxy.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, mode) })
	var servers []*httpserver.Server
	listen := func(address string, handler http.Handler) {
		server, err := h.serve(address, handler)
		if err != nil {
			h.logger.Warn("service proxy: cannot listen for health checks of the node", "address", address, "err",
				err)
			return
		}
		servers = append(servers, server)
	}
	for _, address := range addresses {
		listen(address, ofNode)
	}
	if modeAddress != "" {
		listen(modeAddress, ofProxy)
	}
	<-ctx.Done()
	h.mu.Lock()
	for port, server := range h.servers {
		_ = server.Close()
		delete(h.servers, port)
	}
	h.mu.Unlock()
	for _, server := range servers {
		_ = server.Close()
	}
	h.serving.Wait()
}

// taintScaleDown is on nodes that the cluster autoscaler is about to remove.
const taintScaleDown = "ToBeDeletedByClusterAutoscaler"

// isEligible tells whether a node is to get traffic from load balancers.
func isEligible(node *corev1.Node) bool {
	return node.DeletionTimestamp == nil &&
		!slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintScaleDown })
}

// networkOf keeps 0.0.0.0 from including IPv6, as it does with "tcp". A port alone is that of both
// families.
func networkOf(address string) string {
	at, err := netip.ParseAddrPort(address)
	switch {
	case err != nil:
		return "tcp"
	case at.Addr().Is6():
		return "tcp6"
	}
	return "tcp4"
}
