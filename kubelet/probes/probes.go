// Package probes checks whether containers have started, are alive and are ready.
//
// One goroutine per container and kind of probe runs from the container's start until Forget or the
// container's end, and keeps a result; Health combines them. Config.Changed is called with a
// changed result. The caller decides about the consequences.
package probes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// errEnded is the cause with which a container's probes end.
var errEnded = errors.New("the container is not probed any more")

// Target is a running container.
type Target struct {
	ID        string
	Container *v1.Container
	StartedAt time.Time
	PodIP     string
	// WasStarted and WasReady are this container's results from before a restart of the kubelet, so
	// that it does not seem to falter when the kubelet comes back.
	WasStarted, WasReady bool
}

// Health is the sum of a container's probes.
type Health struct {
	Started bool   // the startup probe has succeeded, or there is none
	Ready   bool   // the readiness probe succeeds, or there is none
	Failed  string // "liveness" or "startup" when that probe has given the container up
}

// Config configures a Manager.
type Config struct {
	Exec Execer
	// Changed is called when a result of one of the pod's containers has changed. It must not
	// block.
	Changed func(uid types.UID)
	// Unhealthy is called with each probe that fails, to be recorded as an event.
	Unhealthy func(pod *v1.Pod, container *v1.Container, message string)
	Logger    *slog.Logger
}

// Manager runs the probes of a node's containers. It is safe for concurrent use.
type Manager struct {
	config  Config
	ctx     context.Context
	stop    context.CancelCauseFunc
	probes  sync.WaitGroup
	metrics metrics

	mu         sync.Mutex
	containers map[string]*container // by container ID
}

type container struct {
	uid     types.UID
	name    string // with its pod's name and namespace, for metrics
	pod     string
	space   string
	stop    context.CancelCauseFunc
	started chan struct{} // closed once the startup probe has succeeded

	mu     sync.Mutex
	health Health
}

// New returns a manager. Close ends all probes.
func New(config Config) *Manager {
	ctx, stop := context.WithCancelCause(context.Background())
	return &Manager{config: config, ctx: ctx, stop: stop, metrics: newMetrics(), containers: map[string]*container{}}
}

// Close ends all probes and waits for them.
func (m *Manager) Close() {
	m.stop(errEnded)
	m.probes.Wait()
}

// Sync makes exactly targets the probed containers of a pod.
func (m *Manager) Sync(pod *v1.Pod, targets []Target) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted := map[string]bool{}
	for _, t := range targets {
		wanted[t.ID] = true
		if m.containers[t.ID] == nil {
			m.addLocked(pod, t)
		}
	}
	for id, c := range m.containers {
		if c.uid == pod.UID && !wanted[id] {
			c.stop(errEnded)
			delete(m.containers, id)
		}
	}
}

// Forget ends the probes of a pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.containers {
		if c.uid == uid {
			c.stop(errEnded)
			delete(m.containers, id)
			m.metrics.forget(uid, c.pod, c.space, c.name)
		}
	}
}

// Health returns the health of a container; false when it is not probed.
func (m *Manager) Health(id string) (Health, bool) {
	m.mu.Lock()
	c := m.containers[id]
	m.mu.Unlock()
	if c == nil {
		return Health{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health, true
}

func (m *Manager) addLocked(pod *v1.Pod, t Target) {
	ctx, stop := context.WithCancelCause(m.ctx)
	spec := t.Container
	c := &container{uid: pod.UID, name: spec.Name, pod: pod.Name, space: pod.Namespace, stop: stop,
		started: make(chan struct{})}
	c.health = Health{
		Started: spec.StartupProbe == nil || t.WasStarted,
		Ready:   spec.ReadinessProbe == nil || t.WasReady,
	}
	m.containers[t.ID] = c
	if c.health.Started {
		close(c.started)
	} else {
		m.run(ctx, pod, t, c, "Startup", spec.StartupProbe)
	}
	if spec.LivenessProbe != nil {
		m.run(ctx, pod, t, c, "Liveness", spec.LivenessProbe)
	}
	if spec.ReadinessProbe != nil {
		m.run(ctx, pod, t, c, "Readiness", spec.ReadinessProbe)
	}
}

// run starts the goroutine of one probe. It ends with ctx, or when the result is final: a startup
// probe has succeeded, or a probe has given the container up.
func (m *Manager) run(ctx context.Context, pod *v1.Pod, t Target, c *container, kind string, probe *v1.Probe) {
	m.probes.Go(func() {
		if kind != "Startup" {
			select {
			case <-c.started:
			case <-ctx.Done():
				return
			}
		}
		first := time.Until(t.StartedAt.Add(seconds(probe.InitialDelaySeconds, 0)))
		timer := time.NewTimer(max(first, 0))
		defer timer.Stop()
		period := seconds(probe.PeriodSeconds, 10)
		opening := open(kind, probe, time.Now().Add(max(first, 0)+period))
		if t.WasReady {
			opening = nil // the kubelet has just started, and not the container
		}
		var successes, failures int32
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			began := time.Now()
			err := m.once(ctx, pod, t, probe)
			if ctx.Err() != nil {
				return
			}
			m.metrics.note(pod, t.Container.Name, kind, err != nil, time.Since(began))
			if err != nil {
				if wait, ok := opening.again(time.Now()); ok {
					timer.Reset(wait)
					continue
				}
			}
			opening = nil
			if err == nil {
				successes, failures = successes+1, 0
			} else {
				successes, failures = 0, failures+1
				m.config.Unhealthy(pod, t.Container, fmt.Sprintf("%s probe failed: %v", kind, err))
			}
			if m.settle(c, kind, probe, successes, failures) {
				return
			}
			timer.Reset(max(period-time.Since(began), 0))
		}
	})
}

// opening is the first period of a probe whose success is waited for. A container that has just
// started does not listen for some moments. That is no failure to count or to report, and no reason
// to leave it unready for a whole period. It is probed again soon, and the first result that counts
// is a success or the one at the end of the period.
type opening struct {
	until time.Time
	wait  time.Duration
}

const firstRetry = 100 * time.Millisecond

// open returns nil for probes without an opening: liveness probes, which only look for failures,
// and commands, which cost the container more than a connection does.
func open(kind string, probe *v1.Probe, until time.Time) *opening {
	if kind == "Liveness" || probe.Exec != nil {
		return nil
	}
	return &opening{until: until, wait: firstRetry}
}

// again returns the wait before the next attempt after a failure at now; false when
// the failure counts.
func (o *opening) again(now time.Time) (time.Duration, bool) {
	if o == nil || !now.Before(o.until) {
		return 0, false
	}
	wait := min(o.wait, o.until.Sub(now))
	o.wait *= 2
	return wait, true
}

// settle turns counts into a result and reports whether the probe is done for good.
func (m *Manager) settle(c *container, kind string, probe *v1.Probe, successes, failures int32) bool {
	succeeded := successes >= max(probe.SuccessThreshold, 1)
	failed := failures >= threshold(probe.FailureThreshold)
	c.mu.Lock()
	before := c.health
	done := false
	switch kind {
	case "Startup":
		if succeeded {
			c.health.Started, done = true, true
			close(c.started)
		} else if failed {
			c.health.Failed, done = "startup", true
		}
	case "Liveness":
		if failed {
			c.health.Failed, done = "liveness", true
		}
	case "Readiness":
		if succeeded {
			c.health.Ready = true
		} else if failed {
			c.health.Ready = false
		}
	}
	changed := c.health != before
	c.mu.Unlock()
	if changed {
		m.config.Changed(c.uid)
	}
	return done
}

func threshold(n int32) int32 {
	if n <= 0 {
		return 3
	}
	return n
}

func seconds(n, byDefault int32) time.Duration {
	if n <= 0 {
		n = byDefault
	}
	return time.Duration(n) * time.Second
}
