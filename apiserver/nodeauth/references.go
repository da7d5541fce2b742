package nodeauth

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// refersTo returns a function that reports whether a pod refers to the object of that name in
// its namespace.
func refersTo(resource string) func(p *corev1.Pod, name string) bool {
	switch resource {
	case "secrets":
		return refersToSecret
	case "configmaps":
		return refersToConfigMap
	}
	return refersToClaim
}

func refersToSecret(p *corev1.Pod, name string) bool {
	if slices.Contains(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name}) {
		return true
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i].VolumeSource
		switch {
		case v.Secret != nil && v.Secret.SecretName == name,
			v.CSI != nil && named(v.CSI.NodePublishSecretRef, name),
			v.ISCSI != nil && named(v.ISCSI.SecretRef, name),
			v.CephFS != nil && named(v.CephFS.SecretRef, name),
			v.RBD != nil && named(v.RBD.SecretRef, name),
			v.FlexVolume != nil && named(v.FlexVolume.SecretRef, name):
			return true
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.Secret != nil && s.Secret.Name == name {
				return true
			}
		}
	}
	return anyContainer(p, func(from *corev1.EnvFromSource) bool {
		return from.SecretRef != nil && from.SecretRef.Name == name
	}, func(from *corev1.EnvVarSource) bool {
		return from.SecretKeyRef != nil && from.SecretKeyRef.Name == name
	})
}

func refersToConfigMap(p *corev1.Pod, name string) bool {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i].VolumeSource
		if v.ConfigMap != nil && v.ConfigMap.Name == name {
			return true
		}
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil && s.ConfigMap.Name == name {
				return true
			}
		}
	}
	return anyContainer(p, func(from *corev1.EnvFromSource) bool {
		return from.ConfigMapRef != nil && from.ConfigMapRef.Name == name
	}, func(from *corev1.EnvVarSource) bool {
		return from.ConfigMapKeyRef != nil && from.ConfigMapKeyRef.Name == name
	})
}

func refersToClaim(p *corev1.Pod, name string) bool {
	for i := range p.Spec.Volumes {
		if name != "" && claimOf(p, &p.Spec.Volumes[i]) == name {
			return true
		}
	}
	return false
}

// claimOf names the claim behind a volume of a pod, or is "".
func claimOf(p *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}

// nodeSecrets are the Secrets that the node of a volume passes to its driver. Those of the driver's
// controller are not among them.
func nodeSecrets(v *corev1.CSIPersistentVolumeSource) []*corev1.SecretReference {
	return []*corev1.SecretReference{v.NodeStageSecretRef, v.NodePublishSecretRef, v.NodeExpandSecretRef}
}

// refersToDevices reports whether a pod has a claim for devices, of its own or made for it.
func refersToDevices(p *corev1.Pod, name string) bool {
	for i := range p.Spec.ResourceClaims {
		c := &p.Spec.ResourceClaims[i]
		if c.ResourceClaimName != nil && *c.ResourceClaimName == name {
			return true
		}
	}
	for i := range p.Status.ResourceClaimStatuses {
		s := &p.Status.ResourceClaimStatuses[i]
		if s.ResourceClaimName != nil && *s.ResourceClaimName == name {
			return true
		}
	}
	e := p.Status.ExtendedResourceClaimStatus
	return e != nil && e.ResourceClaimName != "" && e.ResourceClaimName == name
}

func named(ref *corev1.LocalObjectReference, name string) bool { return ref != nil && ref.Name == name }

// anyContainer reports whether a function holds for the environment of any container, of
// every type.
func anyContainer(p *corev1.Pod, envFrom func(*corev1.EnvFromSource) bool, env func(*corev1.EnvVarSource) bool) bool {
	look := func(froms []corev1.EnvFromSource, vars []corev1.EnvVar) bool {
		for i := range froms {
			if envFrom(&froms[i]) {
				return true
			}
		}
		for i := range vars {
			if vars[i].ValueFrom != nil && env(vars[i].ValueFrom) {
				return true
			}
		}
		return false
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if look(list[i].EnvFrom, list[i].Env) {
				return true
			}
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if look(p.Spec.EphemeralContainers[i].EnvFrom, p.Spec.EphemeralContainers[i].Env) {
			return true
		}
	}
	return false
}
