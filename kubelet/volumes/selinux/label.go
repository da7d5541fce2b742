package selinux

import (
	"fmt"
	"slices"

	hostselinux "github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	v1 "k8s.io/api/core/v1"
)

// FileLabel returns the SELinux label that files must have for a container with these options.
type FileLabel func(*v1.SELinuxOptions) (string, error)

// OfHost is the FileLabel of this machine. It is nil where SELinux is off.
func OfHost() FileLabel {
	if !hostselinux.GetEnabled() {
		return nil
	}
	return func(o *v1.SELinuxOptions) (string, error) {
		var options []string
		for _, part := range []struct{ name, value string }{{"user", o.User}, {"role", o.Role}, {"type", o.Type},
			{"level", o.Level}} {
			if part.value != "" {
				options = append(options, part.name+":"+part.value)
			}
		}
		process, file, err := label.InitLabels(options)
		if err != nil {
			return "", fmt.Errorf("seLinuxOptions %q: %w", options, err)
		}
		hostselinux.ReleaseLabel(process) // the runtime reserves it
		return file, nil
	}
}

// MountLabel returns the label with which a volume can be mounted for all containers of a pod that
// use it (KEP-1710). It is empty where the runtime must label the files: without SELinux, without
// a level of the pod's own, and with the policy Recursive.
func MountLabel(of FileLabel, pod *v1.Pod, volume string) (string, error) {
	security := pod.Spec.SecurityContext
	if of == nil ||
		security != nil && security.SELinuxChangePolicy != nil &&
			*security.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive {
		return "", nil
	}
	found := ""
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			options := seLinuxOptions(security, &list[i])
			if options == nil || options.Level == "" || !mountsVolume(&list[i], volume) {
				continue
			}
			one, err := of(options)
			if err != nil {
				return "", err
			}
			if found != "" && one != found {
				return "",
					fmt.Errorf(
						"multiple SELinux labels found: %q and %q; give all containers of the pod that use the volume the same seLinuxOptions, "+
							"or set seLinuxChangePolicy: Recursive", found, one)
			}
			found = one
		}
	}
	return found, nil
}

// seLinuxOptions are a container's own, or else its pod's.
func seLinuxOptions(pod *v1.PodSecurityContext, c *v1.Container) *v1.SELinuxOptions {
	switch {
	case c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil:
		return c.SecurityContext.SELinuxOptions
	case pod != nil:
		return pod.SELinuxOptions
	}
	return nil
}

func mountsVolume(c *v1.Container, volume string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == volume })
}
