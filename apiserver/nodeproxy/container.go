package nodeproxy

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// containerOf returns the name of the container that a request means: the one it names, or the
// only one of the pod.
func containerOf(pod *corev1.Pod, name string) (string, error) {
	containers, inits, ephemeral := containerNames(pod)
	if name != "" {
		if slices.Contains(slices.Concat(containers, inits, ephemeral), name) {
			return name, nil
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	}
	switch len(containers) {
	case 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", pod.Name))
	case 1:
		return containers[0], nil
	}
	message := fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", pod.Name,
		strings.Join(containers, " "))
	if len(inits) > 0 {
		message += fmt.Sprintf(" or one of the init containers: [%s]", strings.Join(inits, " "))
	}
	if len(ephemeral) > 0 {
		message += fmt.Sprintf(" or one of the ephemeral containers: [%s]", strings.Join(ephemeral, " "))
	}
	return "", apierrors.NewBadRequest(message)
}

func containerNames(pod *corev1.Pod) (containers, inits, ephemeral []string) {
	for i := range pod.Spec.Containers {
		containers = append(containers, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.InitContainers {
		inits = append(inits, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		ephemeral = append(ephemeral, pod.Spec.EphemeralContainers[i].Name)
	}
	return containers, inits, ephemeral
}
