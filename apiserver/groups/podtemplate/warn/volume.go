package warn

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Claim warns of values in a persistent volume claim at a path that are valid, but probably
// a mistake.
func Claim(spec *corev1.PersistentVolumeClaimSpec, at *field.Path) []string {
	out := fractions(spec.Resources.Requests, at.Child("resources", "requests"), corev1.ResourceStorage)
	return append(out, fractions(spec.Resources.Limits, at.Child("resources", "limits"), corev1.ResourceStorage)...)
}

func (w *warner) volumes() {
	for i := range w.spec.Volumes {
		v, at := &w.spec.Volumes[i], w.path("volumes").Index(i)
		for _, old := range []struct {
			used         bool
			name, advice string
		}{
			{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
			{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
			{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
			{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
			{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
			{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
			{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if old.used {
				w.warn(at.Child(old.name), "%s", old.advice)
			}
		}
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			w.add(
				Claim(&v.Ephemeral.VolumeClaimTemplate.Spec,
					at.Child("ephemeral", "volumeClaimTemplate", "spec"))...)
		}
	}
	for i := range w.spec.Volumes {
		w.overlaps(&w.spec.Volumes[i])
	}
}

// file is a file in a volume, and its source.
type file struct{ path, source string }

func (f file) String() string {
	if f.source == "" {
		return fmt.Sprintf("%q", f.path)
	}
	return fmt.Sprintf("%q (%s)", f.path, f.source)
}

// within reports whether one of two files would be the other one, or in it as in a directory.
func (f file) within(o file) bool {
	return strings.HasPrefix(f.path+"/", o.path+"/") || strings.HasPrefix(o.path+"/", f.path+"/")
}

// overlaps warns of files in a volume that hide each other.
func (w *warner) overlaps(v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		w.files(v.Name, fmt.Sprintf("ConfigMap %q", v.ConfigMap.Name), keys(v.ConfigMap.Items, ""))
	case v.Secret != nil:
		w.files(v.Name, fmt.Sprintf("Secret %q", v.Secret.SecretName), keys(v.Secret.Items, ""))
	case v.DownwardAPI != nil:
		w.files(v.Name, "DownwardAPI", fieldsOf(v.DownwardAPI.Items, ""))
	case v.Projected != nil:
		var all []file
		for i := range v.Projected.Sources {
			if v.Projected.Sources[i] == (corev1.VolumeProjection{}) {
				w.add(fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
			}
			all = append(all, projected(&v.Projected.Sources[i])...)
		}
		w.files(v.Name, "Projected", all)
	}
}

func (w *warner) files(volume, kind string, files []file) {
	for i := range files {
		files[i].path = strings.TrimRight(files[i].path, "/")
		for _, other := range files[:i] {
			if files[i].path != "" && other.path != "" && files[i].within(other) {
				w.add(fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", volume, kind, files[i], other))
			}
		}
	}
}

func keys(items []corev1.KeyToPath, source string) []file {
	var out []file
	for _, item := range items {
		out = append(out, file{item.Path, source})
	}
	return out
}

func fieldsOf(items []corev1.DownwardAPIVolumeFile, source string) []file {
	var out []file
	for _, item := range items {
		out = append(out, file{item.Path, source})
	}
	return out
}

// projected are the files of one source of a projected volume, as far as their names are known.
func projected(s *corev1.VolumeProjection) []file {
	switch {
	case s.ConfigMap != nil:
		return keys(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil:
		return keys(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil:
		return fieldsOf(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []file{{s.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := ptr.Deref(s.ClusterTrustBundle.Name, ptr.Deref(s.ClusterTrustBundle.SignerName, ""))
		return []file{{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", name)}}
	case s.PodCertificate != nil:
		return []file{
			{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{s.PodCertificate.KeyPath, "PodCertificate key"},
			{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		}
	}
	return nil
}
