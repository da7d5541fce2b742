// Package podparts lets the pods that informers keep share what they have in common.
//
// Pods are most of what an informer keeps, and most pods are made from a template: those of one
// Deployment differ in their names, their node, the volume of their token and their status. Decoded,
// each has its own copy of the rest, hundreds of small objects that take memory and that the garbage
// collector visits each time. A [Sharer] gives it the copy of a pod that came before.
//
// What is shared is only read, as is everything that an informer has.
package podparts

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// partCost is what a part takes beside its encoding, rounded up.
	partCost = 128
	// decodedFactor is how many times larger than its encoding a part is in memory, about; and the
	// encoding is kept, too.
	decodedFactor = 5
)

// Sharer knows the parts of the pods that came last. Any goroutine may use it.
//
// It is bounded by bytes. What was not found for longest is forgotten first, more or less: there are
// two generations, and the old one goes when the young one has half of the room. Pods keep their
// parts all the same.
type Sharer struct {
	room int // of a generation, in bytes

	mu         sync.Mutex
	young, old map[string]any // pointers to parts, by their encoding; see find
	size       int            // of young, in bytes
	common     scratch
	buffer     []byte
}

// scratch has room for the part that is looked for.
type scratch struct {
	meta      metav1.ObjectMeta
	spec      corev1.PodSpec
	container corev1.Container
	volume    corev1.Volume
}

// New makes a Sharer that takes about so many bytes at the most.
func New(bytes int) *Sharer { return &Sharer{room: bytes / 2, young: make(map[string]any)} }

// Share replaces parts of a pod by equal ones of pods that came before. Nobody else may have the pod
// yet.
func (s *Sharer) Share(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shareMeta(&pod.ObjectMeta)
	s.shareSpec(&pod.Spec)
	s.common = scratch{}
}

// shareMeta shares what a controller gives all its pods.
func (s *Sharer) shareMeta(own *metav1.ObjectMeta) {
	s.common.meta = metav1.ObjectMeta{
		Namespace: own.Namespace, GenerateName: own.GenerateName,
		Labels: own.Labels, Annotations: own.Annotations, OwnerReferences: own.OwnerReferences, Finalizers: own.Finalizers,
	}
	shared := find(s, metaPart, &s.common.meta)
	own.Namespace, own.GenerateName = shared.Namespace, shared.GenerateName
	own.Labels, own.Annotations, own.OwnerReferences, own.Finalizers = shared.Labels, shared.Annotations, shared.OwnerReferences, shared.Finalizers
}

// shareSpec shares containers and volumes one by one, and the rest of the spec without what is a
// pod's own.
func (s *Sharer) shareSpec(own *corev1.PodSpec) {
	for i := range own.InitContainers {
		s.shareContainer(&own.InitContainers[i])
	}
	for i := range own.Containers {
		s.shareContainer(&own.Containers[i])
	}
	for i := range own.Volumes {
		s.common.volume.VolumeSource = own.Volumes[i].VolumeSource // the name may be the pod's own
		own.Volumes[i].VolumeSource = find(s, volumePart, &s.common.volume).VolumeSource
	}
	common := &s.common.spec
	*common = *own
	common.InitContainers, common.Containers, common.EphemeralContainers, common.Volumes = nil, nil, nil, nil
	common.NodeName, common.Hostname = "", ""
	shared := *find(s, specPart, common)
	shared.InitContainers, shared.Containers, shared.EphemeralContainers, shared.Volumes = own.InitContainers, own.Containers, own.EphemeralContainers, own.Volumes
	shared.NodeName, shared.Hostname = own.NodeName, own.Hostname
	*own = shared
}

// shareContainer shares a container without its mounts, of which one has the name of the volume of
// the pod's token.
func (s *Sharer) shareContainer(own *corev1.Container) {
	s.common.container = *own
	s.common.container.VolumeMounts = nil
	shared := *find(s, containerPart, &s.common.container)
	shared.VolumeMounts = own.VolumeMounts
	*own = shared
}

// kind tells parts of different types apart whose encodings are the same.
type kind byte

const (
	metaPart kind = iota
	specPart
	containerPart
	volumePart
)

// message is what Protocol Buffers encode, equal ones in the same way.
type message interface {
	Size() int
	MarshalToSizedBuffer(data []byte) (int, error)
}

// find returns a part of another pod that is equal to common, or else common itself, of which it
// keeps a copy for others. The caller holds the lock.
func find[T any, M interface {
	*T
	message
}](s *Sharer, k kind, common M) M {
	size := common.Size()
	s.buffer = slices.Grow(s.buffer[:0], 1+size)[:1+size]
	s.buffer[0] = byte(k)
	if _, err := common.MarshalToSizedBuffer(s.buffer[1:]); err != nil {
		return common // it shares nothing, which is no harm
	}
	found, ok := s.young[string(s.buffer)]
	if ok {
		return found.(M)
	}
	if found, ok = s.old[string(s.buffer)]; !ok {
		kept := M(new(T))
		*kept = *common
		found = kept
	}
	s.put(string(s.buffer), found)
	return found.(M)
}

// put adds a part to the young generation. One that is larger than a generation is not kept. The
// caller holds the lock.
func (s *Sharer) put(encoding string, part any) {
	cost := partCost + (1+decodedFactor)*len(encoding)
	if cost > s.room {
		return
	}
	if s.size+cost > s.room {
		s.old, s.young, s.size = s.young, make(map[string]any), 0
	}
	s.young[encoding] = part
	s.size += cost
}
