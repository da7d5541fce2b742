// Package eviction ends pods before the node itself runs out of memory, disk or processes.
//
// Every ten seconds it measures the free resources (a Signal each), compares them with thresholds,
// and sets the node's conditions. When a resource is short it first removes unused images and dead
// containers. It measures again, and only then ends one pod, the first by Kubernetes' order. The
// next pod stays until nothing is left of that one: only then measurements show whether that was
// enough. Judge, Rank and OverLimit decide, and are pure.
//
// It also ends pods that exceed their own limits of local storage. Measuring these takes walks over
// files, which nothing else waits for. Memory limits of containers are the kernel's matter.
package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Measure reads the input of a decision.
type Measure interface {
	// Node returns the free resources by signal. A signal that cannot be read is left out.
	Node(ctx context.Context) (map[Signal]Observation, error)
	// Pods returns the usage of pods. It measures the disk of those for which disk returns true.
	// With an error it may return the measured part.
	Pods(ctx context.Context, pods []*v1.Pod, disk func(*v1.Pod) bool) (map[types.UID]Use, error)
	// OneDisk reports whether nodefs and imagefs are the same file system.
	OneDisk(ctx context.Context) bool
}

// Config configures a Manager.
type Config struct {
	Measure    Measure
	Thresholds []Threshold
	// Transition is how long a condition stays after it was last due; 5 min when 0.
	Transition time.Duration
	// MaxPodGrace bounds the grace period of a pod that is evicted for a soft threshold.
	MaxPodGrace time.Duration
	Every       time.Duration // how often to look; 10 s when 0

	// Pods lists the pods that hold resources of the node, with their allocations.
	Pods func() []*v1.Pod
	// Evict ends a pod. It is false when the pod is being ended already.
	Evict func(uid types.UID, message string, grace time.Duration) bool
	// Gone reports whether an evicted pod holds nothing on the node any more.
	Gone func(uid types.UID) bool
	// Free removes unused images and dead containers.
	Free func(ctx context.Context) error
	// Evicted is called for each pod that was evicted for lack of a resource, with the signal. It
	// may be nil.
	Evicted func(Signal)
	// NodeEvent records an event of the node.
	NodeEvent func(reason, message string)
	// Changed is called when the conditions have changed.
	Changed func()
	Logger  *slog.Logger
	Now     func() time.Time // time.Now when nil
}

// Manager watches over a node. It is safe for concurrent use.
type Manager struct {
	Config
	memory Memory // Run's goroutine alone touches it

	mu         sync.Mutex
	conditions []v1.NodeConditionType
	ending     map[types.UID]time.Time // pods that were evicted, and until when others wait for their end
}

// New returns a manager that has not looked yet.
func New(config Config) *Manager {
	if config.Transition == 0 {
		config.Transition = 5 * time.Minute
	}
	if config.Every == 0 {
		config.Every = 10 * time.Second
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Manager{Config: config, ending: map[types.UID]time.Time{}}
}

// Conditions returns the node's conditions of memory, disk and PID pressure.
func (m *Manager) Conditions() []v1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.conditions)
}

// quickly is the pause between looks while an evicted pod ends.
const quickly = 2 * time.Second

// endPatience bounds the wait for an evicted pod beyond its grace period.
const endPatience = 30 * time.Second

// Run watches until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var limits sync.WaitGroup
	limits.Go(func() { m.watchLimits(ctx) }) // ends with ctx
	defer limits.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		err := m.look(ctx)
		if err != nil && ctx.Err() == nil {
			m.Logger.Warn("cannot tell how much of its resources this node has left; trying again", "err", err)
		}
		if m.waits() {
			timer.Reset(quickly)
		} else {
			timer.Reset(m.Every)
		}
	}
}

// waits reports whether an evicted pod still holds resources.
func (m *Manager) waits() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Now()
	for uid, until := range m.ending {
		if m.Gone(uid) || !now.Before(until) {
			delete(m.ending, uid)
		}
	}
	return len(m.ending) > 0
}

// end evicts a pod. It is false when the pod is being ended already.
func (m *Manager) end(pod *v1.Pod, message string, grace time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.Evict(pod.UID, message, grace) {
		return false
	}
	m.ending[pod.UID] = m.Now().Add(grace + endPatience)
	return true
}

// look measures, decides and acts once.
func (m *Manager) look(ctx context.Context) error {
	seen, err := m.Measure.Node(ctx)
	if err != nil {
		return err
	}
	verdict := Judge(&m.memory, m.Thresholds, seen, m.Transition, m.Now())
	m.publish(verdict.Conditions)
	short := verdict.Short
	if short == nil || m.waits() {
		return nil
	}
	name := about[short.Signal].resource
	m.Logger.Warn("this node is short of a resource", "signal", short.Signal, "available", seen[short.Signal].Available)
	m.NodeEvent("EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", name))
	if m.frees(ctx, short.Signal) {
		if err := m.Free(ctx); err != nil {
			m.Logger.Warn("cannot free all that nobody uses", "err", err)
		}
		if seen, err = m.Measure.Node(ctx); err != nil {
			return err
		}
		if o, ok := seen[short.Signal]; !ok ||
			o.Available >= short.Value.of(o.Capacity)+short.MinReclaim.of(o.Capacity) {
			return nil
		}
	}
	return m.evict(ctx, *short, seen[short.Signal])
}

func (m *Manager) publish(conditions []v1.NodeConditionType) {
	m.mu.Lock()
	changed := !slices.Equal(m.conditions, conditions)
	m.conditions = conditions
	m.mu.Unlock()
	if changed {
		m.Changed()
	}
}

// frees reports whether removing images and containers helps against a signal.
func (m *Manager) frees(ctx context.Context, s Signal) bool {
	switch s {
	case ImageFsAvailable, ImageFsInodesFree:
		return true
	case NodeFsAvailable, NodeFsInodesFree:
		return m.Measure.OneDisk(ctx)
	}
	return false
}

// rankPatience bounds the walks over the files of pods while the disk is short: memory may become
// short meanwhile.
const rankPatience = 30 * time.Second

// evict ends the first pod of the ranking.
func (m *Manager) evict(ctx context.Context, t Threshold, o Observation) error {
	ctx, cancel := context.WithTimeoutCause(ctx, rankPatience,
		fmt.Errorf("measuring all pods took longer than %s", rankPatience))
	defer cancel()
	pods := m.Pods()
	name := about[t.Signal].resource
	onDisk := name == v1.ResourceEphemeralStorage || name == resourceInodes
	uses, err := m.Measure.Pods(ctx, pods, func(*v1.Pod) bool { return onDisk })
	if uses == nil {
		return err
	}
	if err != nil {
		m.Logger.Warn("cannot measure all that pods use; ranking them by what is known", "err", err)
	}
	candidates := make([]Candidate, 0, len(pods))
	for _, pod := range pods {
		candidates = append(candidates, Candidate{pod, uses[pod.UID]})
	}
	grace := time.Duration(0)
	if t.Grace > 0 {
		grace = m.MaxPodGrace
	}
	for _, c := range Rank(name, candidates) {
		if m.end(c.Pod, Message(t, o, c), grace) {
			if m.Evicted != nil {
				m.Evicted(t.Signal)
			}
			m.Logger.Warn("evicted a pod", "pod", c.Pod.Namespace+"/"+c.Pod.Name, "signal", t.Signal)
			return nil
		}
	}
	m.Logger.Warn("no pod can be evicted, and this node is short of a resource", "signal", t.Signal)
	return nil
}

// limitsEvery is the pause between two rounds of measuring the disk that pods with limits use.
// limitsPatience bounds a round: after it, pods are judged by the measured part.
const (
	limitsEvery    = time.Minute
	limitsPatience = 5 * time.Minute
)

// watchLimits ends pods that exceed their limits of local storage, until ctx ends.
func (m *Manager) watchLimits(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := m.endOverLimit(ctx); err != nil && ctx.Err() == nil {
			m.Logger.Warn("cannot measure the local storage of all pods that have a limit of it; trying again", "err",
				err)
		}
		timer.Reset(limitsEvery)
	}
}

// endOverLimit measures once.
func (m *Manager) endOverLimit(ctx context.Context) error {
	var limited []*v1.Pod
	for _, pod := range m.Pods() {
		if MeasuresDisk(pod) {
			limited = append(limited, pod)
		}
	}
	if len(limited) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limitsPatience, fmt.Errorf("it took longer than %s", limitsPatience))
	defer cancel()
	uses, err := m.Measure.Pods(ctx, limited, func(*v1.Pod) bool { return true })
	for _, pod := range limited {
		if message := OverLimit(Candidate{pod, uses[pod.UID]}); message != "" && m.end(pod, message, 0) {
			m.Logger.Warn("evicted a pod", "pod", pod.Namespace+"/"+pod.Name, "reason", message)
		}
	}
	return err
}
