// Package nested finds the directories that a volume needs so that others can be mounted
// inside of it. Containers see some volumes read-only, and the runtime can make no directory there.
package nested

import (
	"iter"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Mountpoints returns the paths inside a volume where containers of its pod mount other volumes,
// sorted. Of mounts inside each other it has the outermost: the inner ones belong to that volume.
// It leaves out mounts by a subPathExpr, which needs the container's variables, and names that
// begin with "..", which are the volume's own.
func Mountpoints(pod *v1.Pod, volume string) []string {
	var found []string
	for mounts := range mountsOf(pod) {
		for _, outer := range mounts {
			if outer.Name == volume && outer.SubPathExpr == "" {
				found = append(found, below(mounts, outer)...)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// below returns the paths, in outer's volume, of the mounts directly below outer.
func below(mounts []v1.VolumeMount, outer v1.VolumeMount) []string {
	root := directory(outer.MountPath)
	var paths []string
	for _, m := range mounts {
		if p := directory(m.MountPath); p != root && strings.HasPrefix(p, root) {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	var found []string
	last := ""
	for _, p := range paths {
		if last != "" && strings.HasPrefix(p, last) {
			continue
		}
		last = p
		if within := path.Join(outer.SubPath, strings.TrimPrefix(p, root)); !strings.HasPrefix(within, "..") {
			found = append(found, within)
		}
	}
	return found
}

// directory is a path that begins and ends with a slash, so that prefixes are whole names.
func directory(p string) string { return strings.TrimSuffix(path.Clean("/"+p), "/") + "/" }

// mountsOf iterates over the mounts of each container.
func mountsOf(pod *v1.Pod) iter.Seq[[]v1.VolumeMount] {
	return func(yield func([]v1.VolumeMount) bool) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(list[i].VolumeMounts) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(pod.Spec.EphemeralContainers[i].VolumeMounts) {
				return
			}
		}
	}
}
