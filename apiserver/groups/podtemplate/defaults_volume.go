package podtemplate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// defaultFileMode of files that volumes are filled with.
const defaultFileMode int32 = 0o644

// defaultTokenSeconds is how long projected service account tokens live.
const defaultTokenSeconds int64 = 60 * 60

// DefaultClaim fills in the defaults of a persistent volume claim, or of a template of one.
func DefaultClaim(c *corev1.PersistentVolumeClaim) {
	setDefault(&c.Status.Phase, corev1.ClaimPending)
	defaultClaimSpec(&c.Spec)
	RoundUp(c.Status.Capacity)
	RoundUp(c.Status.AllocatedResources)
}

func defaultClaimSpec(spec *corev1.PersistentVolumeClaimSpec) {
	setDefaultPtr(&spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	RoundUp(spec.Resources.Limits)
	RoundUp(spec.Resources.Requests)
}

// RoundUp rounds up to thousandths: no resource is counted in smaller parts.
func RoundUp(list corev1.ResourceList) {
	for name, q := range list {
		q.RoundUp(resource.Milli)
		list[name] = q
	}
}

func defaultVolume(v *corev1.Volume) {
	if v.VolumeSource == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.HostPath != nil:
		setDefaultPtr(&v.HostPath.Type, corev1.HostPathUnset)
	case v.Secret != nil:
		setDefaultPtr(&v.Secret.DefaultMode, defaultFileMode)
	case v.ConfigMap != nil:
		setDefaultPtr(&v.ConfigMap.DefaultMode, defaultFileMode)
	case v.DownwardAPI != nil:
		setDefaultPtr(&v.DownwardAPI.DefaultMode, defaultFileMode)
		defaultDownwardItems(v.DownwardAPI.Items)
	case v.Projected != nil:
		defaultProjected(v.Projected)
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		defaultClaimSpec(&v.Ephemeral.VolumeClaimTemplate.Spec)
	case v.Image != nil:
		setDefault(&v.Image.PullPolicy, PullPolicy(v.Image.Reference))
	case v.ISCSI != nil:
		setDefault(&v.ISCSI.ISCSIInterface, "default")
	case v.RBD != nil:
		setDefault(&v.RBD.RBDPool, "rbd")
		setDefault(&v.RBD.RadosUser, "admin")
		setDefault(&v.RBD.Keyring, "/etc/ceph/keyring")
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	setDefaultPtr(&p.DefaultMode, defaultFileMode)
	for i := range p.Sources {
		if s := p.Sources[i].ServiceAccountToken; s != nil {
			setDefaultPtr(&s.ExpirationSeconds, defaultTokenSeconds)
		}
		if s := p.Sources[i].DownwardAPI; s != nil {
			defaultDownwardItems(s.Items)
		}
	}
}

func defaultDownwardItems(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}
