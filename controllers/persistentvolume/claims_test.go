package persistentvolume

import (
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// claimsOf is an API with the claims of another API.
type claimsOf struct {
	kubernetes.Interface
	claims kubernetes.Interface
}

func (c claimsOf) CoreV1() corev1client.CoreV1Interface {
	return coreClaims{c.Interface.CoreV1(), c.claims}
}

type coreClaims struct {
	corev1client.CoreV1Interface
	claims kubernetes.Interface
}

func (c coreClaims) PersistentVolumeClaims(namespace string) corev1client.PersistentVolumeClaimInterface {
	return c.claims.CoreV1().PersistentVolumeClaims(namespace)
}

// volumesOf is an API with the volumes of another API.
type volumesOf struct {
	kubernetes.Interface
	volumes kubernetes.Interface
}

func (v volumesOf) CoreV1() corev1client.CoreV1Interface {
	return coreVolumes{v.Interface.CoreV1(), v.volumes}
}

type coreVolumes struct {
	corev1client.CoreV1Interface
	volumes kubernetes.Interface
}

func (c coreVolumes) PersistentVolumes() corev1client.PersistentVolumeInterface {
	return c.volumes.CoreV1().PersistentVolumes()
}
