package static

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// IsMirror reports whether an object of the API server mirrors a static pod.
func IsMirror(pod *v1.Pod) bool {
	_, ok := pod.Annotations[v1.MirrorPodAnnotationKey]
	return ok
}

// isStatic reports whether a pod comes from a file.
func isStatic(pod *v1.Pod) bool { return pod.Annotations[annotationSource] == "file" && !IsMirror(pod) }

// FromAPI returns a pod of the API server so that it counts as one, whatever its annotations say: a
// manifest of the node may have rights that not all clients have who can create pods.
func FromAPI(pod *v1.Pod) *v1.Pod {
	if pod == nil || IsMirror(pod) || pod.Annotations[annotationSource] == "" {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Annotations[annotationSource] = "api"
	return pod
}

// Status writes statuses to the API server. It is package status' Manager.
type Status interface {
	Set(pod *v1.Pod, status v1.PodStatus)
	Finish(pod *v1.Pod)
	Forget(uid types.UID)
}

// MirrorsConfig configures Mirrors.
type MirrorsConfig struct {
	Client kubernetes.Interface
	Node   func() *v1.Node // with its UID, once it is registered
	Status Status
	// Wake makes a pod report its status again.
	Wake   func(uid types.UID)
	Logger *slog.Logger
}

// Mirrors keeps one object at the API server for each static pod. It also carries the pods'
// statuses: that of a static pod goes to its mirror. It is safe for concurrent use.
type Mirrors struct {
	MirrorsConfig
	wake chan struct{}

	mu      sync.Mutex
	synced  bool
	wanted  map[string]*v1.Pod // static pods by namespace/name; nil until they were read
	mirrors map[string]*v1.Pod // of this node, as the API server has them
	spent   map[types.UID]bool // mirrors of pods that are over, to be replaced
}

// NewMirrors returns Mirrors without objects.
func NewMirrors(config MirrorsConfig) *Mirrors {
	return &Mirrors{MirrorsConfig: config, wake: make(chan struct{}, 1), mirrors: map[string]*v1.Pod{},
		spent: map[types.UID]bool{}}
}

func key(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (m *Mirrors) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// want sets the desired static pods.
func (m *Mirrors) want(pods map[string]*v1.Pod) {
	m.mu.Lock()
	m.wanted = map[string]*v1.Pod{}
	maps.Copy(m.wanted, pods)
	m.mu.Unlock()
	m.poke()
}

// None reports that the node has no static pods, so that mirrors of earlier ones go.
func (m *Mirrors) None() { m.want(nil) }

// adopt gives a static pod the status of its mirror, if that is of the same manifest: restart
// counts go on over restarts of the kubelet. A pod that was ended, or never admitted, starts anew
// with a new mirror, because clients take a finished pod for final. One whose containers all ended
// by themselves stays finished.
func (m *Mirrors) adopt(pod *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mirror := m.mirrors[key(pod)]
	if mirror == nil || !m.shows(mirror, pod) {
		return
	}
	if phase := mirror.Status.Phase; (phase == v1.PodFailed || phase == v1.PodSucceeded) &&
		!ranOut(pod, &mirror.Status) {
		m.spent[mirror.UID] = true
		return
	}
	pod.Status = *mirror.Status.DeepCopy()
	pod.CreationTimestamp = mirror.CreationTimestamp
}

// ranOut reports whether all containers of a pod have ended by themselves, and none
// must start again.
func ranOut(pod *v1.Pod, s *v1.PodStatus) bool {
	disrupted := slices.ContainsFunc(s.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue
	})
	return !disrupted && pod.Spec.RestartPolicy != v1.RestartPolicyAlways &&
		len(s.ContainerStatuses) == len(pod.Spec.Containers) &&
		!slices.ContainsFunc(s.ContainerStatuses, func(c v1.ContainerStatus) bool { return c.State.Terminated == nil })
}

// renew makes a pod that has ended get another mirror when it is started again.
func (m *Mirrors) renew(pod *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mirror := m.mirrors[key(pod)]; mirror != nil {
		m.spent[mirror.UID] = true
	}
}

// shows reports whether a mirror is that of a pod. m.mu is held.
func (m *Mirrors) shows(mirror, pod *v1.Pod) bool {
	return reflects(mirror, pod) && !m.spent[mirror.UID]
}

func reflects(mirror, pod *v1.Pod) bool {
	return mirror.Annotations[v1.MirrorPodAnnotationKey] == pod.Annotations[annotationHash]
}

// Synced reports that Observe was called with all mirrors of this node.
func (m *Mirrors) Synced() {
	m.mu.Lock()
	m.synced = true
	m.mu.Unlock()
	m.poke()
}

// Observe takes the API server's object; gone is set when it was deleted.
func (m *Mirrors) Observe(mirror *v1.Pod, gone bool) {
	m.mu.Lock()
	if have := m.mirrors[key(mirror)]; gone && (have == nil || have.UID == mirror.UID) {
		delete(m.mirrors, key(mirror))
	} else if !gone {
		m.mirrors[key(mirror)] = mirror
	}
	pod := m.wanted[key(mirror)]
	if gone {
		delete(m.spent, mirror.UID)
	}
	m.mu.Unlock()
	if gone {
		m.Status.Forget(mirror.UID)
	} else if pod != nil {
		m.Wake(pod.UID)
	}
	m.poke()
}

// Set passes a pod's status on.
func (m *Mirrors) Set(pod *v1.Pod, status v1.PodStatus) {
	if !isStatic(pod) {
		m.Status.Set(pod, status)
		return
	}
	if mirror := m.of(pod); mirror != nil {
		status.ObservedGeneration = mirror.Generation
		m.Status.Set(mirror, status)
	}
}

// Finish gives up the object of a pod. That of a static pod goes with its file.
func (m *Mirrors) Finish(pod *v1.Pod) {
	if !isStatic(pod) {
		m.Status.Finish(pod)
	}
}

// Forget drops a pod.
func (m *Mirrors) Forget(uid types.UID) { m.Status.Forget(uid) }

// of returns the mirror of a static pod, if there is one.
func (m *Mirrors) of(pod *v1.Pod) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mirror := m.mirrors[key(pod)]; mirror != nil && mirror.DeletionTimestamp == nil && m.shows(mirror, pod) {
		return mirror
	}
	return nil
}

// retryMirrors is the pause after a failed round.
const retryMirrors = 5 * time.Second

// Run keeps the mirrors until ctx ends.
func (m *Mirrors) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C:
		}
		timer.Stop()
		if err := m.sync(ctx); err != nil && ctx.Err() == nil {
			m.Logger.Warn("cannot mirror the static pods; trying again", "err", err)
			timer.Reset(retryMirrors)
		}
	}
}

// sync makes one round. Its changes come back by Observe.
func (m *Mirrors) sync(ctx context.Context) error {
	m.mu.Lock()
	if !m.synced || m.wanted == nil {
		m.mu.Unlock()
		return nil
	}
	missing, surplus := m.plan()
	m.mu.Unlock()
	var errs []error // a failure for one mirror does not affect the others
	for _, mirror := range surplus {
		now := int64(0)
		err := m.Client.CoreV1().Pods(mirror.Namespace).Delete(ctx, mirror.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &mirror.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete mirror pod %s: %w", key(mirror), err))
		}
	}
	if len(missing) == 0 {
		return errors.Join(errs...)
	}
	node := m.Node()
	if node == nil || node.UID == "" {
		return errors.Join(append(errs, errors.New("the node is not registered yet"))...)
	}
	for _, pod := range missing {
		_, err := m.Client.CoreV1().Pods(pod.Namespace).Create(ctx, mirrorOf(pod, node), metav1.CreateOptions{})
		// Observe brings the existing object if it is of this node.
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("create mirror pod %s: %w", key(pod), err))
		}
	}
	return errors.Join(errs...)
}

// plan returns the missing mirrors and those that must go. m.mu is held.
func (m *Mirrors) plan() (missing, surplus []*v1.Pod) {
	for name, mirror := range m.mirrors {
		if pod := m.wanted[name]; pod == nil || !m.shows(mirror, pod) || mirror.DeletionTimestamp != nil {
			surplus = append(surplus, mirror)
		}
	}
	for name, pod := range m.wanted {
		if m.mirrors[name] == nil {
			missing = append(missing, pod)
		}
	}
	return missing, surplus
}

// mirrorOf is the object that shows a static pod.
func mirrorOf(pod *v1.Pod, node *v1.Node) *v1.Pod {
	mirror := pod.DeepCopy()
	controller := true
	mirror.ObjectMeta = metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, Labels: mirror.Labels,
		Annotations: mirror.Annotations,
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &controller}}}
	mirror.Annotations[v1.MirrorPodAnnotationKey] = pod.Annotations[annotationHash]
	mirror.Status = v1.PodStatus{}
	return mirror
}
