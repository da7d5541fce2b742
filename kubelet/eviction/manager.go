// Package eviction ends pods before the node itself runs out of memory, disk or processes.
//
// Every ten seconds it measures what is left (a Signal), compares that with thresholds, and says which
// conditions the node has. When something is short it first frees what nobody misses: unused images
// and dead containers. It measures again, and only then ends one pod, the one that matters least by
// Kubernetes' order. Judge, Rank and OverLimit decide, and are pure.
//
// It also ends pods that exceed their own limits of local storage. Memory limits of containers are
// the kernel's matter.
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

// Measure reads what a decision depends on.
type Measure interface {
	// Node returns what is left, by signal. A signal that cannot be read is left out.
	Node(ctx context.Context) (map[Signal]Observation, error)
	// Pods returns what pods use. Disk is measured for those for which disk returns true.
	Pods(ctx context.Context, pods []*v1.Pod, disk func(*v1.Pod) bool) (map[types.UID]Use, error)
	// OneDisk tells whether nodefs and imagefs are the same file system.
	OneDisk(ctx context.Context) bool
}

// Config is what a Manager needs.
type Config struct {
	Measure    Measure
	Thresholds []Threshold
	// Transition is how long a condition stays after it was last due; 5 min when 0.
	Transition time.Duration
	// MaxPodGrace bounds how long a pod has to end that is evicted for a soft threshold.
	MaxPodGrace time.Duration
	Every       time.Duration // how often to look; 10 s when 0

	// Pods lists the pods that hold something on the node, with the resources that they were given.
	Pods func() []*v1.Pod
	// Evict ends a pod. It is false when the pod is being ended already.
	Evict func(uid types.UID, message string, grace time.Duration) bool
	// Free removes unused images and dead containers.
	Free func(ctx context.Context) error
	// NodeEvent records an event of the node.
	NodeEvent func(reason, message string)
	// Changed is called when the conditions are others.
	Changed func()
	Logger  *slog.Logger
	Now     func() time.Time // time.Now when nil
}

// Manager watches over a node. It is safe for concurrent use.
type Manager struct {
	Config
	memory Memory // Run's goroutine alone touches these
	diskAt time.Time

	mu         sync.Mutex
	conditions []v1.NodeConditionType
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
	return &Manager{Config: config}
}

// Conditions are those of MemoryPressure, DiskPressure and PIDPressure that the node has.
func (m *Manager) Conditions() []v1.NodeConditionType {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.conditions)
}

// quickly is how soon to look again after a pod was evicted.
const quickly = 2 * time.Second

// Run watches until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		evicted, err := m.look(ctx)
		if err != nil && ctx.Err() == nil {
			m.Logger.Warn("cannot tell how much of its resources this node has left; trying again", "error", err)
		}
		if evicted {
			timer.Reset(quickly)
		} else {
			timer.Reset(m.Every)
		}
	}
}

// look measures, decides and acts once. It tells whether a pod was evicted.
func (m *Manager) look(ctx context.Context) (bool, error) {
	seen, err := m.Measure.Node(ctx)
	if err != nil {
		return false, err
	}
	now := m.Now()
	verdict := Judge(&m.memory, m.Thresholds, seen, m.Transition, now)
	m.publish(verdict.Conditions)
	if over, err := m.overLimit(ctx, now); over || err != nil {
		return over, err
	}
	short := verdict.Short
	if short == nil {
		return false, nil
	}
	name := about[short.Signal].resource
	m.Logger.Warn("this node is short of a resource", "signal", short.Signal, "available", seen[short.Signal].Available)
	m.NodeEvent("EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", name))
	if m.frees(ctx, short.Signal) {
		if err := m.Free(ctx); err != nil {
			m.Logger.Warn("cannot free all that nobody uses", "error", err)
		}
		if seen, err = m.Measure.Node(ctx); err != nil {
			return false, err
		}
		if o, ok := seen[short.Signal]; !ok || o.Available >= short.Value.of(o.Capacity)+short.MinReclaim.of(o.Capacity) {
			return false, nil
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

// frees tells whether removing images and containers gives back some of a signal.
func (m *Manager) frees(ctx context.Context, s Signal) bool {
	switch s {
	case ImageFsAvailable, ImageFsInodesFree:
		return true
	case NodeFsAvailable, NodeFsInodesFree:
		return m.Measure.OneDisk(ctx)
	}
	return false
}

// evict ends the pod that matters least.
func (m *Manager) evict(ctx context.Context, t Threshold, o Observation) (bool, error) {
	pods := m.Pods()
	name := about[t.Signal].resource
	onDisk := name == v1.ResourceEphemeralStorage || name == resourceInodes
	uses, err := m.Measure.Pods(ctx, pods, func(*v1.Pod) bool { return onDisk })
	if err != nil {
		return false, err
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
		if m.Evict(c.Pod.UID, Message(t, o, c), grace) {
			m.Logger.Warn("evicted a pod", "pod", c.Pod.Namespace+"/"+c.Pod.Name, "signal", t.Signal)
			return true, nil
		}
	}
	m.Logger.Warn("no pod can be evicted, and this node is short of a resource", "signal", t.Signal)
	return false, nil
}

// diskEvery is how often the disk that pods use is measured while nothing is short: it takes a walk
// over all files.
const diskEvery = time.Minute

// overLimit ends pods that use more local storage than they may.
func (m *Manager) overLimit(ctx context.Context, now time.Time) (bool, error) {
	if now.Sub(m.diskAt) < diskEvery {
		return false, nil
	}
	m.diskAt = now
	var limited []*v1.Pod
	for _, pod := range m.Pods() {
		if MeasuresDisk(pod) {
			limited = append(limited, pod)
		}
	}
	if len(limited) == 0 {
		return false, nil
	}
	uses, err := m.Measure.Pods(ctx, limited, func(*v1.Pod) bool { return true })
	if err != nil {
		return false, err
	}
	evicted := false
	for _, pod := range limited {
		if message := OverLimit(Candidate{pod, uses[pod.UID]}); message != "" && m.Evict(pod.UID, message, 0) {
			m.Logger.Warn("evicted a pod", "pod", pod.Namespace+"/"+pod.Name, "because", message)
			evicted = true
		}
	}
	return evicted, nil
}
