package podparts

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scratch has room for the part that is looked for.
type scratch struct {
	meta            metav1.ObjectMeta
	spec            corev1.PodSpec
	container       corev1.Container
	mount           corev1.VolumeMount
	volume          corev1.Volume
	status          corev1.PodStatus
	containerStatus corev1.ContainerStatus
	condition       corev1.PodCondition
}

// Share replaces parts of a pod by equal ones of earlier pods. The caller must be the only owner of
// the pod.
func (s *Sharer) Share(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shareMeta(&pod.ObjectMeta)
	s.shareSpec(&pod.Spec)
	s.shareStatus(&pod.Status)
	s.common = scratch{}
}

// shareMeta shares the metadata that a controller gives all its pods.
func (s *Sharer) shareMeta(own *metav1.ObjectMeta) {
	s.common.meta = metav1.ObjectMeta{
		Namespace: own.Namespace, GenerateName: own.GenerateName,
		Labels: own.Labels, Annotations: own.Annotations, OwnerReferences: own.OwnerReferences,
		Finalizers: own.Finalizers,
	}
	shared := find(s, metaPart, &s.common.meta)
	own.Namespace, own.GenerateName = shared.Namespace, shared.GenerateName
	own.Labels, own.Annotations, own.OwnerReferences, own.Finalizers = shared.Labels, shared.Annotations,
		shared.OwnerReferences, shared.Finalizers
}

// shareSpec shares containers and volumes one by one, the affinity, which has the node of a pod of
// a DaemonSet, and the rest of the spec without the pod's own fields.
//
// A spec with resources of its own and an overhead stays as it is: component-helpers adds the
// overhead to the resources in place, where they are so large that they have no int64.
func (s *Sharer) shareSpec(own *corev1.PodSpec) {
	for i := range own.InitContainers {
		s.shareContainer(&own.InitContainers[i])
	}
	for i := range own.Containers {
		s.shareContainer(&own.Containers[i])
	}
	for i := range own.Volumes {
		volume := &own.Volumes[i]
		s.common.volume.VolumeSource = volume.VolumeSource
		volume.VolumeSource = find(s, volumePart, &s.common.volume).VolumeSource
		volume.Name = s.text(volume.Name)
	}
	if own.Affinity != nil {
		own.Affinity = find(s, affinityPart, own.Affinity)
	}
	own.NodeName = s.text(own.NodeName)
	if own.Resources != nil && own.Overhead != nil {
		return
	}
	common := &s.common.spec
	*common = *own
	common.InitContainers, common.Containers, common.EphemeralContainers, common.Volumes = nil, nil, nil, nil
	common.NodeName, common.Hostname, common.Affinity = "", "", nil
	shared := *find(s, specPart, common)
	shared.InitContainers, shared.Containers, shared.EphemeralContainers, shared.Volumes = own.InitContainers,
		own.Containers, own.EphemeralContainers, own.Volumes
	shared.NodeName, shared.Hostname, shared.Affinity = own.NodeName, own.Hostname, own.Affinity
	*own = shared
}

// shareContainer shares a container, and its mounts one by one: one of them has the name of the
// volume of the pod's token.
func (s *Sharer) shareContainer(own *corev1.Container) {
	for i := range own.VolumeMounts {
		mount := &own.VolumeMounts[i]
		name := s.text(mount.Name)
		s.common.mount = *mount
		s.common.mount.Name = ""
		*mount = *find(s, mountPart, &s.common.mount)
		mount.Name = name
	}
	s.common.container = *own
	s.common.container.VolumeMounts = nil
	shared := *find(s, containerPart, &s.common.container)
	shared.VolumeMounts = own.VolumeMounts
	*own = shared
}

// shareStatus shares the common status of a template's running pods, and of a node's pods.
func (s *Sharer) shareStatus(own *corev1.PodStatus) {
	for _, all := range [][]corev1.ContainerStatus{own.InitContainerStatuses, own.ContainerStatuses} {
		for i := range all {
			s.shareContainerStatus(&all[i])
		}
	}
	for i := range own.Conditions {
		condition := &own.Conditions[i]
		s.common.condition = corev1.PodCondition{Type: condition.Type, Status: condition.Status,
			Reason: condition.Reason, Message: condition.Message}
		shared := find(s, conditionPart, &s.common.condition)
		condition.Type, condition.Status, condition.Reason, condition.Message = shared.Type, shared.Status,
			shared.Reason, shared.Message
	}
	s.common.status = corev1.PodStatus{Phase: own.Phase, QOSClass: own.QOSClass, HostIP: own.HostIP,
		HostIPs: own.HostIPs}
	shared := find(s, statusPart, &s.common.status)
	own.Phase, own.QOSClass, own.HostIP, own.HostIPs = shared.Phase, shared.QOSClass, shared.HostIP, shared.HostIPs
}

func (s *Sharer) shareContainerStatus(own *corev1.ContainerStatus) {
	for i := range own.VolumeMounts {
		mount := &own.VolumeMounts[i]
		mount.Name, mount.MountPath = s.text(mount.Name), s.text(mount.MountPath)
	}
	s.common.containerStatus = corev1.ContainerStatus{
		Name: own.Name, Image: own.Image, ImageID: own.ImageID, Started: own.Started,
		AllocatedResources: own.AllocatedResources, Resources: own.Resources, User: own.User,
		StopSignal: own.StopSignal,
	}
	shared := find(s, containerStatusPart, &s.common.containerStatus)
	own.Name, own.Image, own.ImageID, own.Started = shared.Name, shared.Image, shared.ImageID, shared.Started
	own.AllocatedResources, own.Resources, own.User, own.StopSignal = shared.AllocatedResources, shared.Resources,
		shared.User, shared.StopSignal
}
