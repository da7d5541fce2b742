package persistentvolume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/groups/volume"
	"github.com/barque/barque/apiserver/resource"
)

const (
	unset                  = "<unset>"
	mountOptionsAnnotation = "volume.beta.kubernetes.io/mount-options"
)

// Volumes declares persistent volumes.
func Volumes() resource.Resource {
	return &resource.Kind[corev1.PersistentVolume]{
		GroupVersion:  corev1.SchemeGroupVersion,
		Name:          "persistentvolumes",
		Singular:      "persistentvolume",
		ShortNames:    []string{"pv"},
		ClusterScoped: true,
		List:          &corev1.PersistentVolumeList{},
		ReturnDeleted: true,
		Default: func(v *corev1.PersistentVolume) {
			if v.Status.Phase == "" {
				v.Status.Phase = corev1.VolumePending
			}
			volume.Default(&v.Spec)
			podtemplate.RoundUp(v.Spec.Capacity)
		},
		Prepare: func(_ context.Context, v, old *corev1.PersistentVolume) {
			if old == nil && v.Status.LastPhaseTransitionTime == nil {
				v.Status.LastPhaseTransitionTime = ptr.To(metav1.Now())
			}
		},
		Validate: validateVolume,
		Warnings: volumeWarnings,
		Status: &resource.Status[corev1.PersistentVolume]{
			Prepare: func(_ context.Context, v, old *corev1.PersistentVolume) {
				stampPhase(&v.Status, &old.Status, metav1.Now())
			},
			Validate: func(_ context.Context, v, _ *corev1.PersistentVolume) field.ErrorList {
				return requireVersion(v.ResourceVersion)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Capacity", "string", "How large the volume is."),
			resource.Column("Access Modes", "string", "How the volume can be mounted."),
			resource.Column("Reclaim Policy", "string", "What becomes of the volume when its claim goes."),
			resource.Column("Status", "string", "Whether the volume is available or bound."),
			resource.Column("Claim", "string", "The claim that has the volume."),
			resource.Column("StorageClass", "string", "The class of the volume."),
			resource.Column("VolumeAttributesClass", "string", "The class of the volume's attributes."),
			resource.Column("Reason", "string", "Why the volume is in its state."),
			resource.Age(),
			resource.WideColumn("VolumeMode", "string", "Whether the volume is a file system or a block device."),
		},
		Row: func(v *corev1.PersistentVolume, now time.Time) []any {
			claim, phase := "", string(v.Status.Phase)
			if c := v.Spec.ClaimRef; c != nil {
				claim = c.Namespace + "/" + c.Name
			}
			if v.DeletionTimestamp != nil {
				phase = "Terminating"
			}
			size := v.Spec.Capacity[corev1.ResourceStorage]
			return []any{v.Name, size.String(), formatAccessModes(v.Spec.AccessModes),
				string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim,
				classOf(v.Annotations, &v.Spec.StorageClassName), ptr.Deref(v.Spec.VolumeAttributesClassName, unset),
				v.Status.Reason,
				resource.Since(v.CreationTimestamp, now), string(ptr.Deref(v.Spec.VolumeMode, unset))}
		},
	}
}

// classOf is the class of a volume or claim. Its annotation goes before its field.
func classOf(annotations map[string]string, class *string) string {
	if old, ok := annotations[corev1.BetaStorageClassAnnotation]; ok {
		return old
	}
	return ptr.Deref(class, "")
}

func formatAccessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var short []string
	for _, m := range []struct {
		mode corev1.PersistentVolumeAccessMode
		name string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"},
		{corev1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(modes, m.mode) {
			short = append(short, m.name)
		}
	}
	return strings.Join(short, ",")
}

// stampPhase writes down when the phase changed, unless the writer did.
func stampPhase(s, old *corev1.PersistentVolumeStatus, now metav1.Time) {
	at := s.LastPhaseTransitionTime
	switch {
	case s.Phase == old.Phase && at == nil:
		s.LastPhaseTransitionTime = old.LastPhaseTransitionTime
	case s.Phase != old.Phase && (at == nil || at.Equal(old.LastPhaseTransitionTime)):
		s.LastPhaseTransitionTime = &now
	}
}

func requireVersion(resourceVersion string) field.ErrorList {
	if resourceVersion == "" {
		return field.ErrorList{field.Required(field.NewPath("resourceVersion"), "")}
	}
	return nil
}

func volumeWarnings(_ context.Context, v, _ *corev1.PersistentVolume) []string {
	var warnings []string
	at := field.NewPath("metadata", "annotations")
	if _, ok := v.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		warnings = append(warnings,
			fmt.Sprintf(`%s: deprecated since v1.8; use "storageClassName" attribute instead`,
				at.Key(corev1.BetaStorageClassAnnotation)))
	}
	if _, ok := v.Annotations[mountOptionsAnnotation]; ok {
		warnings = append(warnings,
			fmt.Sprintf(`%s: deprecated since v1.31; use "mountOptions" attribute instead`,
				at.Key(mountOptionsAnnotation)))
	}
	return append(warnings, volume.Warnings(&v.Spec, field.NewPath("spec"))...)
}

func validateVolume(_ context.Context, v, old *corev1.PersistentVolume) field.ErrorList {
	errs := validation.Meta(v, old, false, validation.SubdomainName)
	at := field.NewPath("spec")
	errs = append(errs, volume.ValidateSpec(&v.Spec, v.Name, at)...)
	if old == nil {
		return errs
	}
	source := v.Spec.PersistentVolumeSource.DeepCopy()
	if was := old.Spec.CSI; was != nil && was.ControllerExpandSecretRef == nil && source.CSI != nil {
		source.CSI.ControllerExpandSecretRef = nil // may be added, once
	}
	if !apiequality.Semantic.DeepEqual(*source, old.Spec.PersistentVolumeSource) {
		errs = append(errs, field.Forbidden(at.Child("persistentvolumesource"),
			fmt.Sprintf("spec.persistentvolumesource is immutable after creation\n%v",
				diff.Diff(old.Spec.PersistentVolumeSource, *source))))
	}
	errs = append(errs, validation.Immutable(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	if old.Spec.NodeAffinity != nil {
		errs = append(errs,
			validateAffinityChange(v.Spec.NodeAffinity, old.Spec.NodeAffinity, field.NewPath("nodeAffinity"))...)
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		errs = append(errs,
			field.Forbidden(at.Child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden"))
	}
	return errs
}

// renamedLabels are labels of nodes that volumes of old may select by their first names.
var renamedLabels = map[string]string{
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
	"beta.kubernetes.io/os":             corev1.LabelOSStable,
	"beta.kubernetes.io/arch":           corev1.LabelArchStable,
}

// validateAffinityChange lets nothing change but the names of labels that have new ones.
func validateAffinityChange(affinity, old *corev1.VolumeNodeAffinity, at *field.Path) field.ErrorList {
	was := old.DeepCopy()
	if affinity != nil && affinity.Required != nil && was.Required != nil {
		for i := range min(len(affinity.Required.NodeSelectorTerms), len(was.Required.NodeSelectorTerms)) {
			renameLabels(was.Required.NodeSelectorTerms[i].MatchExpressions,
				affinity.Required.NodeSelectorTerms[i].MatchExpressions)
		}
	}
	if !apiequality.Semantic.DeepEqual(affinity, was) {
		return field.ErrorList{
			field.Invalid(at, affinity, "field is immutable, except for updating from beta label to GA")}
	}
	return nil
}

// renameLabels gives the labels of old the new names that they have in list.
func renameLabels(old, list []corev1.NodeSelectorRequirement) {
	for i := range min(len(old), len(list)) {
		if renamedLabels[old[i].Key] == list[i].Key {
			old[i].Key = list[i].Key
		}
	}
}
