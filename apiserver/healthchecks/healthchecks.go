// Package healthchecks has the checks of /healthz, /livez and /readyz under the names that probes,
// load balancers and scripts know from kube-apiserver, and the meaning of each here. It knows no
// store and no objects: its callers provide the checks.
package healthchecks

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

// Store and ETCD are the names of one check of /readyz: the store has a name of its own, and the
// one that kube-apiserver's users request or exclude.
const (
	Store = "store"
	ETCD  = "etcd"
)

// within bounds the check of the store. Load balancers check every second or so, and give up soon.
const within = 800 * time.Millisecond

var errStoreSlow = errors.New("the store did not answer within " + within.String())

// OfStore returns the checks of /readyz that fail with the reason why the store of this server
// cannot serve. ready returns it. The API shows the reason in the response of the single check, at
// /readyz/store; /readyz?verbose only names the checks that fail, and needs no credentials.
//
// They are no checks of /livez: a server without a quorum must not be killed for it, since a
// restart brings none.
func OfStore(ready func(context.Context) error) []healthz.HealthChecker {
	s := &store{ready: ready}
	return []healthz.HealthChecker{healthz.NamedCheck(Store, s.check), healthz.NamedCheck(ETCD, s.check)}
}

// store checks the store once for the two checks of one request.
type store struct {
	ready func(context.Context) error

	mu   sync.Mutex
	last *http.Request
	err  error
}

func (s *store) check(r *http.Request) error {
	s.mu.Lock()
	last, err := s.last, s.err
	s.mu.Unlock()
	if last == r {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), within, errStoreSlow)
	defer cancel()
	err = s.ready(ctx)
	s.mu.Lock()
	s.last, s.err = r, err
	s.mu.Unlock()
	return err
}

// OfReplica returns the check "etcd" of /livez and /healthz: this server's own replica of the store
// answers. look reads it, and needs neither a leader nor a quorum.
func OfReplica(look func()) healthz.HealthChecker {
	turn := make(chan struct{}, 1) // one question at a time, also of a replica that hangs
	return healthz.NamedCheck(ETCD, func(r *http.Request) error {
		ctx, cancel := context.WithTimeoutCause(r.Context(), within, errReplicaHangs)
		defer cancel()
		select {
		case turn <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		done := make(chan struct{})
		go func() { // ends with the answer
			look()
			<-turn
			close(done)
		}()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

var errReplicaHangs = errors.New("this server's replica of the store did not answer within " + within.String())

// startup are hooks of kube-apiserver that here end together: this server knows the namespace
// "default". The leader creates it after the system namespaces, the priority classes, the objects
// by which extensions authenticate, and the registrations of all groups. Admission is initialized
// before the first request.
var startup = []string{
	"poststarthook/apiservice-openapi-controller",
	"poststarthook/bootstrap-controller",
	"poststarthook/kube-apiserver-autoregistration",
	"poststarthook/scheduling/bootstrap-system-priority-classes",
	"poststarthook/start-apiserver-admission-initializer",
	"poststarthook/start-cluster-authentication-info-controller",
	"poststarthook/start-service-ip-repair-controllers",
	"poststarthook/start-system-namespaces-controller",
	"autoregister-completion",
}

// Startup returns the checks that pass once the cluster has its default objects, as known reports.
// A cluster gets them once: a check that has passed does not fail again. Requests exclude all of
// them by the name of their group.
func Startup(group string, known func() bool) []healthz.HealthChecker {
	var passed sync.Once
	done := make(chan struct{})
	check := func(*http.Request) error {
		select {
		case <-done:
			return nil
		default:
		}
		if !known() {
			return errors.New("not finished")
		}
		passed.Do(func() { close(done) })
		return nil
	}
	var out []healthz.HealthChecker
	for _, name := range startup {
		out = append(out, grouped{healthz.NamedCheck(name, check), group})
	}
	return out
}

// grouped is a check of a group.
type grouped struct {
	healthz.HealthChecker
	group string
}

// GroupName implements healthz.GroupedHealthChecker.
func (g grouped) GroupName() string { return g.group }

// StartupNames are the names of the checks of Startup.
func StartupNames() []string { return startup }

// Add adds the checks of the start to /healthz, /livez and /readyz of a server that is not made
// yet. In /livez and /healthz they always pass: a server that starts without a quorum must not be
// killed for it.
func Add(c *genericapiserver.Config, checks ...healthz.HealthChecker) {
	c.ReadyzChecks = append(c.ReadyzChecks, checks...)
	for _, check := range checks {
		named := healthz.NamedCheck(check.Name(), func(*http.Request) error { return nil })
		c.HealthzChecks = append(c.HealthzChecks, named)
		c.LivezChecks = append(c.LivezChecks, named)
	}
}
