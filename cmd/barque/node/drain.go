package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// A server that is told to stop, and that another one can stand in for, first sees to it that
// nobody needs it:
//
//	told to stop ─▶ not ready ─▶ hands leadership over ─▶ out of the endpoints ─▶ its parts stop, the newest first
//
// It serves on meanwhile. Load balancers and the kubernetes Service's endpoints leave it by its
// /readyz; when its port closes, what is left are clients with a connection, which are told to go
// with the answer that they wait for, or in the middle of a watch.

const (
	// drainAtLeast is for those that ask for readiness now and then: every half second, and twice.
	drainAtLeast = 1200 * time.Millisecond
	// drainAtMost bounds the wait for the endpoints.
	drainAtMost = 4 * time.Second
	// drainLook is how often it looks whether it is still among them.
	drainLook = 50 * time.Millisecond
)

// drainCheck is the name of the readiness check that fails from the moment at which this server was
// told to stop.
const drainCheck = "draining"

var errDraining = errors.New("this server is about to stop")

// drain is whether the server is on its way out.
type drain struct{ begun atomic.Bool }

func (d *drain) check() healthz.HealthChecker {
	return healthz.NamedCheck(drainCheck, func(*http.Request) error {
		if d.begun.Load() {
			return errDraining
		}
		return nil
	})
}

// startDrain is the last step of a start, so that it is the first one of a stop.
func (s *server) startDrain(ctx context.Context) error {
	return s.stack.Start(ctx, lifecycle.Component{Name: "service", Run: func(ctx context.Context) error {
		<-ctx.Done()
		s.leaveService()
		return nil
	}, StopTimeout: 2 * drainAtMost})
}

// leaveService returns when this server can close its port.
func (s *server) leaveService() {
	if !s.hasStandIn() { // there is nowhere to go
		return
	}
	departure{ready: s.store.Ready, handOver: s.store.HandOver, listed: s.listed, logger: s.logger}.run(&s.drain)
}

// departure is what a server does before its parts stop, and what it needs for that.
type departure struct {
	ready    func(context.Context) error
	handOver func() error
	listed   func() bool // whether this server is among the endpoints
	logger   *slog.Logger
}

// run returns when nobody needs this server any more, or after drainAtMost.
func (d departure) run(out *drain) {
	ctx, cancel := context.WithTimeout(context.Background(), drainAtMost)
	defer cancel()
	began := time.Now()
	least := time.After(drainAtLeast)
	out.begun.Store(true)
	d.logger.Info("about to stop: not ready any more, so that clients go to the other servers")
	// One that cannot serve has nobody to send away. An election may be under way; it gets its
	// time, and not all of it.
	if err := d.readyWithin(ctx, drainAtLeast); err != nil {
		d.logger.Info("stopping at once: this server's store does not serve, so nobody waits for it", "err", err)
		return
	}
	if err := d.handOver(); err != nil {
		d.logger.Warn("cannot hand leadership over yet", "err", err)
	}
	ticker := time.NewTicker(drainLook)
	defer ticker.Stop()
	for waiting := true; waiting || d.listed(); {
		select {
		case <-least:
			waiting = false
		case <-ticker.C:
		case <-ctx.Done():
			d.logger.Warn("stopping although this server is still among the endpoints of the kubernetes Service", "after", time.Since(began).Round(time.Millisecond))
			return
		}
	}
}

func (d departure) readyWithin(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return d.ready(ctx)
}

// hasStandIn tells whether another server is alive.
func (s *server) hasStandIn() bool {
	return slices.ContainsFunc(s.pool.Members(), func(m gossip.Member) bool {
		return m.Role == pki.RoleServer && m.State == gossip.Alive && m.Name != s.options.Name
	})
}

// listed tells whether this server is among the endpoints of the kubernetes Service, as far as it
// knows.
func (s *server) listed() bool {
	lister := s.api.Informers().Discovery().V1().EndpointSlices().Lister()
	list, err := lister.EndpointSlices(metav1.NamespaceDefault).List(labels.Set{discoveryv1.LabelServiceName: kubernetesService}.AsSelector())
	if err != nil {
		return false
	}
	own := s.options.addr().String()
	return slices.ContainsFunc(list, func(slice *discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, own) })
	})
}

// kubernetesService is the Service by which pods find the API.
const kubernetesService = "kubernetes"
