package runtimeconfig

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ofImage reports whether a volume has the files of an image.
func ofImage(pod *v1.Pod, volume string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == volume && v.Image != nil })
}

// readOnly reports whether containers may only read a volume, whatever their mounts say. The
// kubelet writes the files of API data itself, as root. A container that could put symlinks among
// them would have it write elsewhere on the node (CVE-2017-1002102 was of this kind).
func readOnly(pod *v1.Pod, volume string) bool {
	return claimedReadOnly(pod, volume) || slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		return v.Name == volume && (v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil)
	})
}

// claimedReadOnly reports whether a pod mounts its claim read-only.
func claimedReadOnly(pod *v1.Pod, volume string) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Name == volume {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
		}
	}
	return false
}

// devices are the block volumes of a container.
func devices(pod *v1.Pod, c *v1.Container, paths map[string]string) ([]*runtimeapi.Device, error) {
	var list []*runtimeapi.Device
	for i := range c.VolumeDevices {
		d := &c.VolumeDevices[i]
		host, ok := paths[d.Name]
		if !ok {
			return nil, &ConfigError{fmt.Errorf("volumeDevice %q: the pod has no such volume", d.Name)}
		}
		permissions := "mrw"
		if claimedReadOnly(pod, d.Name) {
			permissions = "r"
		}
		list = append(list, &runtimeapi.Device{HostPath: host, ContainerPath: d.DevicePath, Permissions: permissions})
	}
	return list, nil
}
