package queue

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// Pod is a pod in the queue, with its history there. In flight it belongs to the caller of Pop,
// otherwise to the queue.
type Pod struct {
	Info *framework.PodInfo
	// Added is when the pod came into the queue for the first time.
	Added time.Time
	// Attempts counts how often it was popped.
	Attempts int

	timestamp      time.Time // orders pods of equal priority
	rejections     int
	errors         int       // in a row
	backoffUntil   time.Time // zero when there is none
	rejectedAt     time.Time // since when it is unschedulable
	rejectedBy     sets.Set[string]
	gate           string // the plugin that keeps it from being tried
	where          place
	deleted        bool
	woken          bool               // Wake came in flight
	newer          *framework.PodInfo // the version of an update in flight
	index          int                // in the heap that it is in
	insertionOrder uint64
}

type place uint8

const (
	nowhere place = iota
	inFlight
	inActive
	inBackoff
	inUnschedulable
)

var _ fwk.QueuedEntityInfo = (*Pod)(nil)

// GetPod returns the pod as last seen.
func (p *Pod) GetPod() *v1.Pod { return p.Info.GetPod() }

// UID identifies the pod.
func (p *Pod) UID() types.UID { return p.Info.GetPod().UID }

// Type is always a single pod.
func (*Pod) Type() fwk.EntityKeyType { return fwk.PodKeyType }

// GetPriority returns the pod's priority.
func (p *Pod) GetPriority() int32 { return corev1helpers.PodPriority(p.GetPod()) }

// GetTimestamp returns since when the pod waits for its turn.
func (p *Pod) GetTimestamp() time.Time { return p.timestamp }

// GetAttempts returns how often the pod was tried.
func (p *Pod) GetAttempts() int { return p.Attempts }

// GetBackoffExpiration returns until when the pod backs off.
func (p *Pod) GetBackoffExpiration() time.Time { return p.backoffUntil }

// GetUnschedulableCount returns how often the pod was rejected.
func (p *Pod) GetUnschedulableCount() int { return p.rejections }

// GetConsecutiveErrorsCount returns how many errors in a row ended its attempts.
func (p *Pod) GetConsecutiveErrorsCount() int { return p.errors }

// GetInitialAttemptTimestamp returns when the pod came into the queue.
func (p *Pod) GetInitialAttemptTimestamp() *time.Time { return &p.Added }

// GetUnschedulablePlugins returns the plugins that rejected the pod last.
func (p *Pod) GetUnschedulablePlugins() sets.Set[string] { return p.rejectedBy }

// GetPendingPlugins is empty: no extension point of ours answers Pending.
func (*Pod) GetPendingPlugins() sets.Set[string] { return nil }

// GetGatingPlugin returns the plugin that keeps the pod from being tried, or "".
func (p *Pod) GetGatingPlugin() string { return p.gate }

// GetGatingPluginEvents is empty: hints are looked up by plugin.
func (*Pod) GetGatingPluginEvents() []fwk.ClusterEvent { return nil }
