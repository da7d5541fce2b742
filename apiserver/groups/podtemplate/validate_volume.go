package podtemplate

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

// validateVolumes checks the volumes and keeps the valid ones by name.
func (c *checker) validateVolumes(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range c.spec.Volumes {
		v, at := &c.spec.Volumes[i], at.Index(i)
		bad := validation.DNSLabel(v.Name, at.Child("name"))
		if c.volumes[v.Name] != nil {
			bad = append(bad, field.Duplicate(at.Child("name"), v.Name))
		}
		bad = append(bad, oneSource(&v.VolumeSource, at)...)
		bad = append(bad, c.validateVolume(v, at)...)
		if len(bad) == 0 {
			c.volumes[v.Name] = v // one that is refused cannot be mounted
		}
		errs = append(errs, bad...)
	}
	return errs
}

// oneSource demands that exactly one of the pointers of a union is set.
func oneSource(union any, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	value, first := reflect.ValueOf(union).Elem(), ""
	// The message names an emptyDir as the first source, in any order.
	if v, ok := union.(*corev1.VolumeSource); ok && v.EmptyDir != nil {
		first = "emptyDir"
	}
	for i := range value.NumField() {
		f := value.Field(i)
		if f.Kind() != reflect.Pointer || f.IsNil() {
			continue
		}
		name, _, _ := strings.Cut(value.Type().Field(i).Tag.Get("json"), ",")
		if first != "" && name != first {
			errs = append(errs, field.Forbidden(at.Child(name), "may not specify more than 1 volume type"))
			continue
		}
		first = name
	}
	if first == "" {
		errs = append(errs, field.Required(at, "must specify a volume type"))
	}
	return errs
}

// validateVolume checks the sources that this server's nodes can mount, and of the others only the
// fields that name them.
func (c *checker) validateVolume(v *corev1.Volume, at *field.Path) field.ErrorList {
	switch {
	case v.EmptyDir != nil:
		return validateEmptyDir(v.EmptyDir, at.Child("emptyDir"))
	case v.HostPath != nil:
		return validateHostPath(v.HostPath, at.Child("hostPath"))
	case v.ConfigMap != nil:
		at := at.Child("configMap")
		errs := required(v.ConfigMap.Name, at.Child("name"))
		errs = append(errs, validation.FileMode(v.ConfigMap.DefaultMode, at.Child("defaultMode"))...)
		return append(errs, validateKeysToPaths(v.ConfigMap.Items, at.Child("items"))...)
	case v.Secret != nil:
		at := at.Child("secret")
		errs := required(v.Secret.SecretName, at.Child("secretName"))
		errs = append(errs, validation.FileMode(v.Secret.DefaultMode, at.Child("defaultMode"))...)
		return append(errs, validateKeysToPaths(v.Secret.Items, at.Child("items"))...)
	case v.DownwardAPI != nil:
		at := at.Child("downwardAPI")
		errs := validation.FileMode(v.DownwardAPI.DefaultMode, at.Child("defaultMode"))
		return append(errs, validateDownwardItems(v.DownwardAPI.Items, at)...)
	case v.Projected != nil:
		return validateProjected(v.Projected, at.Child("projected"))
	case v.PersistentVolumeClaim != nil:
		return required(v.PersistentVolumeClaim.ClaimName, at.Child("persistentVolumeClaim", "claimName"))
	case v.Ephemeral != nil:
		return validateEphemeral(v.Ephemeral, at.Child("ephemeral", "volumeClaimTemplate"))
	case v.CSI != nil:
		return validateInlineCSI(v.CSI, at.Child("csi"))
	case v.Image != nil:
		return append(required(v.Image.Reference, at.Child("image", "reference")),
			validation.Enum(v.Image.PullPolicy, at.Child("image", "pullPolicy"), corev1.PullAlways,
				corev1.PullIfNotPresent, corev1.PullNever)...)
	case v.NFS != nil:
		errs := append(required(v.NFS.Server, at.Child("nfs", "server")),
			required(v.NFS.Path, at.Child("nfs", "path"))...)
		if !strings.HasPrefix(v.NFS.Path, "/") {
			errs = append(errs, field.Invalid(at.Child("nfs", "path"), v.NFS.Path, "must be an absolute path"))
		}
		return errs
	case v.ISCSI != nil:
		return append(required(v.ISCSI.TargetPortal, at.Child("iscsi", "targetPortal")),
			required(v.ISCSI.IQN, at.Child("iscsi", "iqn"))...)
	case v.GitRepo != nil:
		return field.ErrorList{
			field.Forbidden(at.Child("gitRepo"),
				"gitRepo volumes have been removed; clone in an init container into an emptyDir")}
	}
	return nil
}

func required(value string, at *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return nil
}

func validateEmptyDir(e *corev1.EmptyDirVolumeSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if e.SizeLimit != nil && e.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity"))
	}
	return errs
}

func validateHostPath(h *corev1.HostPathVolumeSource, at *field.Path) field.ErrorList {
	if h.Path == "" {
		return required(h.Path, at.Child("path"))
	}
	errs := validation.NoBacksteps(h.Path, at.Child("path"))
	if ptr.Deref(h.Type, "") != "" {
		errs = append(errs,
			validation.OptionalEnum(h.Type, at.Child("type"), corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate,
				corev1.HostPathDirectory,
				corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev,
				corev1.HostPathBlockDev)...)
	}
	return errs
}

func validateKeysToPaths(items []corev1.KeyToPath, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, item := range items {
		errs = append(errs, required(item.Key, at.Index(i).Child("key"))...)
		errs = append(errs, validateFile(item.Path, item.Mode, at.Index(i))...)
	}
	return errs
}

// validateFile checks where in a volume a file goes, and its mode.
func validateFile(path string, mode *int32, at *field.Path) field.ErrorList {
	errs := required(path, at.Child("path"))
	errs = append(errs, validation.NonReservedPath(path, at.Child("path"))...)
	return append(errs, validation.FileMode(mode, at.Child("mode"))...)
}

// validateDownwardItems reports the faults of an item for the volume, as in Kubernetes.
func validateDownwardItems(items []corev1.DownwardAPIVolumeFile, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, item := range items {
		errs = append(errs, validateFile(item.Path, item.Mode, at)...)
		switch {
		case item.FieldRef != nil:
			errs = append(errs, validateFieldRef(item.FieldRef, volumeFieldPaths, at.Child("fieldRef"))...)
			if item.ResourceFieldRef != nil {
				errs = append(errs,
					field.Invalid(at, "resource", "fieldRef and resourceFieldRef can not be specified simultaneously"))
			}
		case item.ResourceFieldRef != nil:
			errs = append(errs, validateResourceFieldRef(item.ResourceFieldRef, true, at.Child("resourceFieldRef"))...)
		default:
			errs = append(errs, field.Required(at, "one of fieldRef and resourceFieldRef is required"))
		}
	}
	return errs
}

func validateProjected(p *corev1.ProjectedVolumeSource, at *field.Path) field.ErrorList {
	errs := validation.FileMode(p.DefaultMode, at.Child("defaultMode"))
	paths := map[string]bool{}
	// Conflicts are reported for the volume, with the name of the source or with the path.
	conflict := func(path, value string) {
		if path != "" && paths[path] {
			errs = append(errs, field.Invalid(at, value, "conflicting duplicate paths"))
		}
		paths[path] = true
	}
	for i := range p.Sources {
		s, source := &p.Sources[i], at.Child("sources").Index(i)
		sources := 0
		if s.Secret != nil {
			sources++
			errs = append(errs, required(s.Secret.Name, source.Child("secret", "name"))...)
			errs = append(errs, validateKeysToPaths(s.Secret.Items, source.Child("secret", "items"))...)
			for _, item := range s.Secret.Items {
				conflict(item.Path, s.Secret.Name)
			}
		}
		if s.ConfigMap != nil {
			sources++
			errs = append(errs, required(s.ConfigMap.Name, source.Child("configMap", "name"))...)
			errs = append(errs, validateKeysToPaths(s.ConfigMap.Items, source.Child("configMap", "items"))...)
			for _, item := range s.ConfigMap.Items {
				conflict(item.Path, s.ConfigMap.Name)
			}
		}
		if s.DownwardAPI != nil {
			sources++
			errs = append(errs, validateDownwardItems(s.DownwardAPI.Items, source.Child("downwardAPI"))...)
			for _, item := range s.DownwardAPI.Items {
				conflict(item.Path, item.Path)
			}
		}
		if s.ServiceAccountToken != nil {
			sources++
			errs = append(errs,
				validateTokenProjection(s.ServiceAccountToken, source.Child("serviceAccountToken"), at)...)
		}
		if s.ClusterTrustBundle != nil {
			sources++
			errs = append(errs, validateBundleProjection(s.ClusterTrustBundle, source.Child("clusterTrustBundle"))...)
			conflict(s.ClusterTrustBundle.Path, s.ClusterTrustBundle.Path)
		}
		if s.PodCertificate != nil {
			sources++
			errs = append(errs, validateCertificateProjection(s.PodCertificate, source.Child("podCertificate"))...)
			for _, path := range []string{s.PodCertificate.CredentialBundlePath, s.PodCertificate.KeyPath,
				s.PodCertificate.CertificateChainPath} {
				conflict(path, path)
			}
		}
		if sources > 1 {
			errs = append(errs, field.Forbidden(source, "may not specify more than 1 volume type per source"))
		}
	}
	return errs
}

// validateTokenProjection reports an invalid path for the volume, and all other faults for
// the source.
func validateTokenProjection(s *corev1.ServiceAccountTokenProjection, at, volume *field.Path) field.ErrorList {
	const (
		shortest = 10 * 60
		longest  = 1 << 32
	)
	errs := required(s.Path, volume.Child("path"))
	errs = append(errs, validation.NonReservedPath(s.Path, volume.Child("path"))...)
	switch seconds := ptr.Deref(s.ExpirationSeconds, 0); {
	case seconds < shortest:
		errs = append(errs,
			field.Invalid(at.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
	case seconds > longest:
		errs = append(errs,
			field.Invalid(at.Child("expirationSeconds"), seconds,
				"may not specify a duration larger than 2^32 seconds"))
	}
	return errs
}

func validateEphemeral(e *corev1.EphemeralVolumeSource, at *field.Path) field.ErrorList {
	if e.VolumeClaimTemplate == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	return ValidateClaimSpec(&e.VolumeClaimTemplate.Spec, at.Child("spec"))
}

func validateInlineCSI(c *corev1.CSIVolumeSource, at *field.Path) field.ErrorList {
	errs := validation.DriverName(c.Driver, at.Child("driver"))
	if ref := c.NodePublishSecretRef; ref != nil && ref.Name == "" {
		errs = append(errs, field.Required(at.Child("nodePublishSecretRef", "name"), ""))
	} else if ref != nil {
		errs = append(errs, validation.Check(ref.Name, at.Child("name"), utilvalidation.IsDNS1123Subdomain)...)
	}
	return errs
}

func (c *checker) validateMounts(container *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths, devicePaths, devices := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, d := range container.VolumeDevices {
		devices[d.Name], devicePaths[d.DevicePath] = true, true
	}
	for i := range container.VolumeMounts {
		m, mount := &container.VolumeMounts[i], at.Index(i)
		errs = append(errs, required(m.Name, mount.Child("name"))...)
		if c.volumes[m.Name] == nil {
			errs = append(errs, field.NotFound(mount.Child("name"), m.Name))
		}
		errs = append(errs, required(m.MountPath, mount.Child("mountPath"))...)
		if paths[m.MountPath] {
			errs = append(errs, field.Invalid(mount.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths[m.MountPath] = true
		if devices[m.Name] {
			errs = append(errs, field.Invalid(mount.Child("name"), m.Name, "must not already exist in volumeDevices"))
		}
		if devicePaths[m.MountPath] {
			errs = append(errs,
				field.Invalid(mount.Child("mountPath"), m.MountPath,
					"must not already exist as a path in volumeDevices"))
		}
		errs = append(errs, validateMountOptions(m, container, at, mount)...)
	}
	return errs
}

// validateMountOptions reports most faults for the list of mounts, as in Kubernetes.
func validateMountOptions(m *corev1.VolumeMount, container *corev1.Container, at, mount *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.SubPath != "" {
		errs = append(errs, validation.DescendingPath(m.SubPath, at.Child("subPath"))...)
	}
	if m.SubPathExpr != "" {
		errs = append(errs, validation.DescendingPath(m.SubPathExpr, at.Child("subPathExpr"))...)
		if m.SubPath != "" {
			errs = append(errs,
				field.Invalid(mount.Child("subPathExpr"), m.SubPathExpr,
					"subPathExpr and subPath are mutually exclusive"))
		}
	}
	if p := m.MountPropagation; p != nil {
		errs = append(errs, validation.OneOf(*p, at.Child("mountPropagation"),
			corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer,
			corev1.MountPropagationNone)...)
		privileged := container.SecurityContext != nil && ptr.Deref(container.SecurityContext.Privileged, false)
		if *p == corev1.MountPropagationBidirectional && !privileged {
			errs = append(errs,
				field.Forbidden(at.Child("mountPropagation"),
					"Bidirectional mount propagation is available only to privileged containers"))
		}
	}
	if r := m.RecursiveReadOnly; r != nil {
		at := at.Child("recursiveReadOnly")
		errs = append(errs,
			validation.OneOf(*r, at, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled,
				corev1.RecursiveReadOnlyIfPossible)...)
		if *r == corev1.RecursiveReadOnlyEnabled || *r == corev1.RecursiveReadOnlyIfPossible {
			if !m.ReadOnly {
				errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
			}
			if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
				errs = append(errs,
					field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
			}
		}
	}
	return errs
}

func (c *checker) validateDevices(container *corev1.Container, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	names, paths, mounts, mountPaths := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range container.VolumeMounts {
		mounts[m.Name], mountPaths[m.MountPath] = true, true
	}
	for i, d := range container.VolumeDevices {
		name, path := at.Index(i).Child("name"), at.Index(i).Child("devicePath")
		errs = append(errs, required(d.Name, name)...)
		if d.Name != "" && names[d.Name] {
			errs = append(errs, field.Invalid(name, d.Name, "must be unique"))
		}
		names[d.Name] = true
		if v := c.volumes[d.Name]; v == nil {
			errs = append(errs, field.NotFound(name, d.Name))
		} else if v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			errs = append(errs,
				field.Invalid(name, d.Name,
					"can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		errs = append(errs, required(d.DevicePath, path)...)
		if paths[d.DevicePath] {
			errs = append(errs, field.Invalid(path, d.DevicePath, "must be unique"))
		}
		if len(validation.NoBacksteps(d.DevicePath, path)) > 0 {
			errs = append(errs, field.Invalid(path, d.DevicePath, "can not contain backsteps ('..')"))
		} else {
			paths[d.DevicePath] = true
		}
		if mounts[d.Name] {
			errs = append(errs, field.Invalid(name, d.Name, "must not already exist in volumeMounts"))
		}
		if mountPaths[d.DevicePath] {
			errs = append(errs, field.Invalid(path, d.DevicePath, "must not already exist as a path in volumeMounts"))
		}
	}
	return errs
}
