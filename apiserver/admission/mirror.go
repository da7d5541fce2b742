package admission

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// mirrorOf allows only pods that mirror a static manifest of the node. They may refer to no other
// object: a node may read all objects that its pods refer to, so it could read any object by such
// a pod. The node is their only owner, so that they are collected with its object. find returns
// that object.
func mirrorOf(node string, a admission.Attributes, find func(name string) (*corev1.Node, error)) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !isMirror(pod) {
		return fmt.Errorf("can only create pods with the %q annotation", corev1.MirrorPodAnnotationKey)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("can only create pods with spec.nodeName set to itself")
	}
	if err := ownedBy(node, pod.OwnerReferences, find); err != nil {
		return err
	}
	if what := refersTo(pod); what != "" {
		return fmt.Errorf("can not create pods that reference %s", what)
	}
	return nil
}

// ownedBy checks that the node itself is the one owner.
func ownedBy(node string, owners []metav1.OwnerReference, find func(name string) (*corev1.Node, error)) error {
	if len(owners) > 1 {
		return fmt.Errorf("can only create pods with a single owner reference set to itself")
	}
	if len(owners) == 0 {
		return fmt.Errorf("can only create pods with an owner reference set to itself")
	}
	o := owners[0]
	switch {
	case o.APIVersion != "v1" || o.Kind != "Node" || o.Name != node:
		return fmt.Errorf("can only create pods with an owner reference set to itself")
	case o.Controller == nil || !*o.Controller:
		return fmt.Errorf("can only create pods with a controller owner reference set to itself")
	case o.BlockOwnerDeletion != nil && *o.BlockOwnerDeletion:
		return fmt.Errorf("must not set blockOwnerDeletion on an owner reference")
	}
	have, err := find(node)
	if err != nil {
		return err
	}
	if have.UID != o.UID {
		return fmt.Errorf("UID mismatch: expected %s got %s", have.UID, o.UID)
	}
	return nil
}

// refersTo names objects that a pod refers to, "" if it refers to none.
func refersTo(pod *corev1.Pod) string {
	switch {
	case pod.Spec.ServiceAccountName != "":
		return "serviceaccounts"
	case len(pod.Spec.ImagePullSecrets) > 0:
		return "secrets"
	case len(pod.Spec.ResourceClaims) > 0:
		return "resourceclaims"
	}
	var inEnv string
	eachEnv(pod, func(from []corev1.EnvFromSource, vars []corev1.EnvVar) {
		inEnv = cmp.Or(inEnv, envRefersTo(from, vars))
	})
	if inEnv != "" {
		return inEnv
	}
	for i := range pod.Spec.Volumes {
		if what := volumeRefersTo(&pod.Spec.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	return ""
}

// eachEnv calls f with the environment of each container.
func eachEnv(pod *corev1.Pod, f func([]corev1.EnvFromSource, []corev1.EnvVar)) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			f(list[i].EnvFrom, list[i].Env)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		f(pod.Spec.EphemeralContainers[i].EnvFrom, pod.Spec.EphemeralContainers[i].Env)
	}
}

// envRefersTo names secrets where both they and config maps are referred to.
func envRefersTo(from []corev1.EnvFromSource, vars []corev1.EnvVar) string {
	switch {
	case slices.ContainsFunc(from, func(f corev1.EnvFromSource) bool { return f.SecretRef != nil }),
		slices.ContainsFunc(vars,
			func(v corev1.EnvVar) bool { return v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil }):
		return "secrets"
	case slices.ContainsFunc(from, func(f corev1.EnvFromSource) bool { return f.ConfigMapRef != nil }),
		slices.ContainsFunc(vars,
			func(v corev1.EnvVar) bool { return v.ValueFrom != nil && v.ValueFrom.ConfigMapKeyRef != nil }):
		return "configmaps"
	}
	return ""
}

// volumeRefersTo allows the sources that need no other object, so that a new source needs its place
// in this list.
func volumeRefersTo(v *corev1.VolumeSource) string {
	switch {
	case v.HostPath != nil, v.EmptyDir != nil, v.DownwardAPI != nil, v.Image != nil, v.GitRepo != nil, v.NFS != nil,
		v.FC != nil:
		return ""
	case v.CephFS != nil && v.CephFS.SecretRef == nil, v.ISCSI != nil && v.ISCSI.SecretRef == nil,
		v.RBD != nil && v.RBD.SecretRef == nil,
		v.FlexVolume != nil && v.FlexVolume.SecretRef == nil:
		return ""
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)"
	case v.Secret != nil:
		return "secrets (via secret volumes)"
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.Projected == nil:
		return "secrets"
	}
	for _, s := range v.Projected.Sources {
		switch {
		case s.ConfigMap != nil:
			return "configmaps (via projected volumes)"
		case s.Secret != nil:
			return "secrets (via projected volumes)"
		case s.ServiceAccountToken != nil:
			return "serviceaccounts (via projected volumes)"
		case s.DownwardAPI == nil:
			return "clustertrustbundles or podcertificates"
		}
	}
	return ""
}
