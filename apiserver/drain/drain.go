// Package drain takes a server out of service before it stops, if another server can replace it:
//
//	stop requested ─▶ not ready ─▶ hands leadership over ─▶ out of the endpoints ─▶ parts stop, newest first
//
// It serves meanwhile. Load balancers and the kubernetes Service's endpoints drop it by its
// /readyz. When its port closes, only clients with a connection are left. The next response to each
// has it close the connection, and running watches are ended.
package drain

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/healthz"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// AtMost bounds the wait for the endpoints.
const AtMost = 4 * time.Second

const (
	// atLeast is for clients that check readiness now and then: every half second, and twice.
	atLeast = 1200 * time.Millisecond
	// look is the interval of checks that it is still among them.
	look = 50 * time.Millisecond
)

// checkName is the name of the readiness check that fails from the stop request on.
const checkName = "draining"

var errDraining = errors.New("this server is about to stop")

// Drain is whether the server is on its way out.
type Drain struct{ begun atomic.Bool }

// Check is the readiness check that fails when it is.
func (d *Drain) Check() healthz.HealthChecker {
	return healthz.NamedCheck(checkName, func(*http.Request) error {
		if d.begun.Load() {
			return errDraining
		}
		return nil
	})
}

// Departure has the steps of a server before its parts stop, and their dependencies.
type Departure struct {
	// Least is the least time of further service; it is no shorter than atLeast.
	Least    time.Duration
	Ready    func(context.Context) error
	HandOver func() error
	Listed   func() bool // whether this server is among the endpoints
	Logger   *slog.Logger
}

// Run returns when no client needs this server any more, or after AtMost, extended by the time by
// which Least exceeds its default.
func (d Departure) Run(out *Drain) {
	serves := max(d.Least, atLeast)
	ctx, cancel := context.WithTimeout(context.Background(), serves-atLeast+AtMost)
	defer cancel()
	began := time.Now()
	least := time.After(serves)
	out.begun.Store(true)
	d.Logger.Info("about to stop: not ready any more, so that clients go to the other servers")
	// A server that is not ready has no clients to send away. An election may be under way; it gets
	// a part of the time.
	if err := d.readyWithin(ctx, atLeast); err != nil {
		d.Logger.Info("stopping at once: this server's store does not serve, so nobody waits for it", "err", err)
		return
	}
	if err := d.HandOver(); err != nil {
		d.Logger.Warn("cannot hand leadership over yet", "err", err)
	}
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for waiting := true; waiting || d.Listed(); {
		select {
		case <-least:
			waiting = false
		case <-ticker.C:
		case <-ctx.Done():
			d.Logger.Warn("stopping although this server is still among the endpoints of the kubernetes Service",
				"after", time.Since(began).Round(time.Millisecond))
			return
		}
	}
}

func (d Departure) readyWithin(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return d.Ready(ctx)
}

// kubernetesService is the Service by which pods find the API.
const kubernetesService = "kubernetes"

// Listed reports whether the address is among the endpoints of the kubernetes Service, as far as
// the lister knows.
func Listed(lister discoverylisters.EndpointSliceLister, addr netip.Addr) bool {
	list, err := lister.EndpointSlices(metav1.NamespaceDefault).List(
		labels.Set{discoveryv1.LabelServiceName: kubernetesService}.AsSelector())
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(slice *discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(slice.Endpoints,
			func(e discoveryv1.Endpoint) bool { return slices.Contains(e.Addresses, addr.String()) })
	})
}
