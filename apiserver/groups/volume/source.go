package volume

import (
	"fmt"
	"path"
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
)

// validateSource demands that a volume has one source, and checks it.
func validateSource(spec *corev1.PersistentVolumeSpec, name string, at *field.Path) field.ErrorList {
	errs := podtemplate.ValidateOneSource(&spec.PersistentVolumeSource, at)
	switch s := &spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		errs = append(errs, podtemplate.ValidateHostPath(s.HostPath, at.Child("hostPath"))...)
	case s.Local != nil:
		errs = append(errs, validation.Name(s.Local.Path, at.Child("local", "path"), noBacksteps)...)
		if spec.NodeAffinity == nil {
			errs = append(errs, field.Required(at.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	case s.NFS != nil:
		errs = append(errs, required(at.Child("nfs"), "server", s.NFS.Server, "path", s.NFS.Path)...)
		if !path.IsAbs(s.NFS.Path) {
			errs = append(errs, field.Invalid(at.Child("nfs", "path"), s.NFS.Path, "must be an absolute path"))
		}
	case s.CSI != nil:
		errs = append(errs, validateCSI(s.CSI, at.Child("csi"))...)
	case s.ISCSI != nil:
		errs = append(errs, validateISCSI(s.ISCSI, name, at.Child("iscsi"))...)
	case s.FC != nil:
		errs = append(errs, validateFC(s.FC, at.Child("fc"))...)
	case s.FlexVolume != nil:
		errs = append(errs, required(at.Child("flexVolume"), "driver", s.FlexVolume.Driver)...)
	default:
		errs = append(errs, validateRemoved(s, at)...)
	}
	return errs
}

func noBacksteps(value string) []string {
	var messages []string
	for _, err := range validation.NoBacksteps(value, nil) {
		messages = append(messages, err.Detail)
	}
	return messages
}

// required reports empty ones among pairs of names and values.
func required(at *field.Path, pairs ...string) field.ErrorList {
	var errs field.ErrorList
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			errs = append(errs, field.Required(at.Child(pairs[i]), ""))
		}
	}
	return errs
}

func validateCSI(s *corev1.CSIPersistentVolumeSource, at *field.Path) field.ErrorList {
	errs := validation.DriverName(s.Driver, at.Child("driver"))
	errs = append(errs, required(at, "volumeHandle", s.VolumeHandle)...)
	for _, secret := range []struct {
		child string
		ref   *corev1.SecretReference
	}{
		{"controllerPublishSecretRef", s.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.NodePublishSecretRef},
		{"nodeExpandSecretRef", s.NodeExpandSecretRef},
	} {
		if secret.ref != nil {
			errs = append(errs, validation.DNSSubdomain(secret.ref.Name, at.Child(secret.child, "name"))...)
			errs = append(errs, validation.DNSLabel(secret.ref.Namespace, at.Child(secret.child, "namespace"))...)
		}
	}
	return errs
}

// iscsiNames are the forms of the names of initiators and targets (RFC 3720).
var iscsiNames = regexp.MustCompile(
	`^(iqn\.\d{4}-\d{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\s]+)|eui.[[:alnum:]]{16}|naa.[[:alnum:]]{32})$`)

func validateISCSI(s *corev1.ISCSIPersistentVolumeSource, name string, at *field.Path) field.ErrorList {
	errs := required(at, "targetPortal", s.TargetPortal, "iqn", s.IQN)
	if s.IQN != "" && !iscsiNames.MatchString(s.IQN) {
		errs = append(errs, field.Invalid(at.Child("iqn"), s.IQN, "must be valid format"))
	}
	errs = append(errs, validateLun(s.Lun, at)...)
	if (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil {
		errs = append(errs, field.Required(at.Child("secretRef"), ""))
	}
	if s.SecretRef != nil {
		errs = append(errs, required(at.Child("secretRef"), "name", s.SecretRef.Name)...)
	}
	if s.InitiatorName == nil {
		return errs
	}
	if len(name+":"+s.TargetPortal) > 64 {
		errs = append(errs, field.Invalid(at.Child("targetportal"), s.TargetPortal,
			"Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."))
	}
	if !iscsiNames.MatchString(*s.InitiatorName) {
		errs = append(errs, field.Invalid(at.Child("initiatorname"), *s.InitiatorName, "must be valid format"))
	}
	return errs
}

func validateLun(lun int32, at *field.Path) field.ErrorList {
	if lun < 0 || lun > 255 {
		return field.ErrorList{field.Invalid(at.Child("lun"), lun, utilvalidation.InclusiveRangeError(0, 255))}
	}
	return nil
}

func validateFC(s *corev1.FCVolumeSource, at *field.Path) field.ErrorList {
	names := at.Child("targetWWNs")
	switch {
	case len(s.TargetWWNs) == 0 && len(s.WWIDs) == 0:
		return field.ErrorList{field.Required(names, "must specify either targetWWNs or wwids, but not both")}
	case len(s.TargetWWNs) == 0:
		return nil
	}
	var errs field.ErrorList
	if len(s.WWIDs) > 0 {
		errs = append(errs,
			field.Invalid(names, s.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously"))
	}
	if s.Lun == nil {
		return append(errs, field.Required(at.Child("lun"), "lun is required if targetWWNs is specified"))
	}
	return append(errs, validateLun(*s.Lun, at)...)
}

// validateRemoved checks the sources that have moved to CSI drivers, or that nothing mounts any
// more: only the fields that name the volume.
func validateRemoved(s *corev1.PersistentVolumeSource, at *field.Path) field.ErrorList {
	switch {
	case s.GCEPersistentDisk != nil:
		return required(at.Child("persistentDisk"), "pdName", s.GCEPersistentDisk.PDName)
	case s.AWSElasticBlockStore != nil:
		return required(at.Child("awsElasticBlockStore"), "volumeID", s.AWSElasticBlockStore.VolumeID)
	case s.Glusterfs != nil:
		return required(at.Child("glusterfs"), "endpoints", s.Glusterfs.EndpointsName, "path", s.Glusterfs.Path)
	case s.RBD != nil:
		return append(required(at.Child("rbd"), "image", s.RBD.RBDImage),
			some(s.RBD.CephMonitors, at.Child("rbd", "monitors"))...)
	case s.Quobyte != nil:
		return required(at.Child("quobyte"), "registry", s.Quobyte.Registry, "volume", s.Quobyte.Volume)
	case s.CephFS != nil:
		return some(s.CephFS.Monitors, at.Child("cephfs", "monitors"))
	case s.Cinder != nil:
		return required(at.Child("cinder"), "volumeID", s.Cinder.VolumeID)
	case s.AzureFile != nil:
		return required(at.Child("azureFile"), "secretName", s.AzureFile.SecretName, "shareName", s.AzureFile.ShareName)
	case s.VsphereVolume != nil:
		return required(at.Child("vsphereVolume"), "volumePath", s.VsphereVolume.VolumePath)
	case s.PhotonPersistentDisk != nil:
		return required(at.Child("photonPersistentDisk"), "pdID", s.PhotonPersistentDisk.PdID)
	case s.PortworxVolume != nil:
		return required(at.Child("portworxVolume"), "volumeID", s.PortworxVolume.VolumeID)
	case s.AzureDisk != nil:
		return required(at.Child("azureDisk"), "diskName", s.AzureDisk.DiskName, "diskURI", s.AzureDisk.DataDiskURI)
	case s.ScaleIO != nil:
		return required(at.Child("scaleIO"), "gateway", s.ScaleIO.Gateway, "system", s.ScaleIO.System, "volumeName",
			s.ScaleIO.VolumeName)
	}
	return nil
}

func some(list []string, at *field.Path) field.ErrorList {
	if len(list) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	return nil
}

// Warnings warns of values in the spec of a persistent volume that are valid, and have no effect.
func Warnings(spec *corev1.PersistentVolumeSpec, at *field.Path) []string {
	var warnings []string
	if spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		warnings = append(warnings,
			fmt.Sprintf(
				"%s: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
				at.Child("persistentVolumeReclaimPolicy")))
	}
	if a := spec.NodeAffinity; a != nil {
		at := at.Child("nodeAffinity", "required", "nodeSelectorTerms")
		for i, term := range ptr.Deref(a.Required, corev1.NodeSelector{}).NodeSelectorTerms {
			for j, e := range term.MatchExpressions {
				warnings = append(warnings,
					validation.NodeLabelWarning(e.Key, at.Index(i).Child("matchExpressions").Index(j).Child("key"))...)
			}
		}
	}
	source := reflect.ValueOf(spec.PersistentVolumeSource)
	for _, gone := range []struct{ name, message string }{
		{"CephFS", "cephfs: deprecated in v1.28, non-functional in v1.31+"},
		{"PhotonPersistentDisk", "photonPersistentDisk: deprecated in v1.11, non-functional in v1.16+"},
		{"ScaleIO", "scaleIO: deprecated in v1.16, non-functional in v1.22+"},
		{"StorageOS", "storageOS: deprecated in v1.22, non-functional in v1.25+"},
		{"Glusterfs", "glusterfs: deprecated in v1.25, non-functional in v1.26+"},
		{"RBD", "rbd: deprecated in v1.28, non-functional in v1.31+"},
	} {
		if !source.FieldByName(gone.name).IsNil() {
			child, message, _ := strings.Cut(gone.message, ":")
			warnings = append(warnings, fmt.Sprintf("%s:%s", at.Child(child), message))
		}
	}
	return warnings
}
