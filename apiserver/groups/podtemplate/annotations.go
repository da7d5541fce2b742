package podtemplate

import (
	"encoding/json"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

// ValidateAnnotations checks those annotations of a pod or template that have a meaning.
func ValidateAnnotations(annotations map[string]string, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range validation.SortedKeys(annotations) {
		value := annotations[key]
		switch {
		case key == corev1.MirrorPodAnnotationKey:
			if spec.NodeName == "" {
				errs = append(errs,
					field.Invalid(at.Key(key), value, "must set spec.nodeName if mirror pod annotation is set"))
			}
		case key == corev1.TolerationsAnnotationKey:
			errs = append(errs, validateAnnotatedTolerations(value, at)...)
		case key == corev1.PodDeletionCost:
			if !isDeletionCost(value) {
				errs = append(errs, field.Invalid(at.Key(key), value, "must be a 32bit integer"))
			}
		case key == corev1.SeccompPodAnnotationKey, strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix):
			errs = append(errs, validateAnnotatedSeccomp(value, at.Child(key))...)
		case strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix):
			errs = append(errs, validateAnnotatedAppArmor(key, value, spec, at.Key(key))...)
		}
	}
	return errs
}

func validateAnnotatedTolerations(value string, at *field.Path) field.ErrorList {
	if value == "" {
		return nil
	}
	var tolerations []corev1.Toleration
	if err := json.Unmarshal([]byte(value), &tolerations); err != nil {
		return field.ErrorList{field.Invalid(at, corev1.TolerationsAnnotationKey, err.Error())}
	}
	return ValidateTolerations(tolerations, at.Child(corev1.TolerationsAnnotationKey))
}

// isDeletionCost reports whether the value is an int32 without a plus sign or leading zeros.
func isDeletionCost(value string) bool {
	_, err := strconv.ParseInt(value, 10, 32)
	return err == nil && (value == "0" || value[0] == '-' || value[0] >= '1')
}

func validateAnnotatedSeccomp(value string, at *field.Path) field.ErrorList {
	switch value {
	case corev1.SeccompProfileRuntimeDefault, corev1.DeprecatedSeccompProfileDockerDefault,
		corev1.SeccompProfileNameUnconfined:
		return nil
	}
	if path, local := strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix); local {
		return validation.DescendingPath(path, at)
	}
	return field.ErrorList{field.Invalid(at, value, "must be a valid seccomp profile")}
}

func validateAnnotatedAppArmor(key, value string, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	name, found := strings.TrimPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix), false
	EachContainer(spec, nil, func(c *corev1.Container, _ *field.Path) { found = found || c.Name == name })
	if !found {
		errs = append(errs, field.Invalid(at, name, "container not found"))
	}
	switch value {
	case "", corev1.DeprecatedAppArmorBetaProfileRuntimeDefault, corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return errs
	}
	if !strings.HasPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
		errs = append(errs, field.Invalid(at, value, "invalid AppArmor profile name: "+strconv.Quote(value)))
	}
	return errs
}

// ValidateAgreement checks that deprecated annotations agree with the fields that replaced them,
// where both are given.
func ValidateAgreement(annotations map[string]string, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	pod := ptr.Deref(spec.SecurityContext, corev1.PodSecurityContext{})
	seccomp := func(key string, p *corev1.SeccompProfile, at *field.Path) {
		if value, set := annotations[key]; set && p != nil {
			errs = append(errs, seccompAgrees(value, p, at.Child("securityContext", "seccompProfile"))...)
		}
	}
	seccomp(corev1.SeccompPodAnnotationKey, pod.SeccompProfile, at)
	EachContainer(spec, at, func(c *corev1.Container, at *field.Path) {
		own := ptr.Deref(c.SecurityContext, corev1.SecurityContext{})
		seccomp(corev1.SeccompContainerAnnotationKeyPrefix+c.Name, own.SeccompProfile, at)
		profile := pod.AppArmorProfile
		if own.AppArmorProfile != nil {
			profile = own.AppArmorProfile
		}
		value, set := annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
		if set && profile != nil && (spec.OS == nil || spec.OS.Name != corev1.Windows) {
			errs = append(errs, appArmorAgrees(value, profile, at.Child("securityContext", "appArmorProfile"))...)
		}
	})
	return errs
}

func seccompAgrees(value string, p *corev1.SeccompProfile, at *field.Path) field.ErrorList {
	path, local := strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix)
	agrees := true
	switch p.Type {
	case corev1.SeccompProfileTypeUnconfined:
		agrees = value == corev1.SeccompProfileNameUnconfined
	case corev1.SeccompProfileTypeRuntimeDefault:
		agrees = value == corev1.SeccompProfileRuntimeDefault || value == corev1.DeprecatedSeccompProfileDockerDefault
	case corev1.SeccompProfileTypeLocalhost:
		agrees = local
		if local && (p.LocalhostProfile == nil || path != *p.LocalhostProfile) {
			return field.ErrorList{
				field.Forbidden(at.Child("localhostProfile"), "seccomp profile in annotation and field must match")}
		}
	}
	if !agrees {
		return field.ErrorList{field.Forbidden(at.Child("type"), "seccomp type in annotation and field must match")}
	}
	return nil
}

func appArmorAgrees(value string, p *corev1.AppArmorProfile, at *field.Path) field.ErrorList {
	path, local := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	agrees := true
	switch p.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		agrees = value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined
	case corev1.AppArmorProfileTypeRuntimeDefault:
		agrees = value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault
	case corev1.AppArmorProfileTypeLocalhost:
		agrees = local
		if local && (p.LocalhostProfile == nil || path != *p.LocalhostProfile) {
			return field.ErrorList{
				field.Forbidden(at.Child("localhostProfile"), "apparmor profile in annotation and field must match")}
		}
	}
	if !agrees {
		return field.ErrorList{field.Forbidden(at.Child("type"), "apparmor type in annotation and field must match")}
	}
	return nil
}

// SyncAppArmor gives the containers of a new pod the profiles that deprecated annotations name, and
// returns the keys of annotations that clients should write as fields.
func SyncAppArmor(p *corev1.Pod) []string {
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return nil
	}
	var deprecated []string
	var whole *corev1.AppArmorProfile
	if p.Spec.SecurityContext != nil {
		whole = p.Spec.SecurityContext.AppArmorProfile
	}
	sync := func(name string, sc **corev1.SecurityContext) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + name
		value, set := p.Annotations[key]
		if !set || (*sc != nil && (*sc).AppArmorProfile != nil) {
			return
		}
		profile := AnnotatedAppArmor(value)
		if len(validateAppArmor(profile, nil)) > 0 {
			profile = nil
		}
		if profile != nil && apiequality.Semantic.DeepEqual(whole, profile) {
			return
		}
		deprecated = append(deprecated, key)
		if profile == nil {
			return
		}
		if *sc == nil {
			*sc = &corev1.SecurityContext{}
		}
		(*sc).AppArmorProfile = profile
	}
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			sync(containers[i].Name, &containers[i].SecurityContext)
		}
	}
	for i := range p.Spec.EphemeralContainers {
		sync(p.Spec.EphemeralContainers[i].Name, &p.Spec.EphemeralContainers[i].SecurityContext)
	}
	return deprecated
}

// AnnotatedAppArmor is the AppArmor profile of a deprecated annotation; nil if it names none.
func AnnotatedAppArmor(annotation string) *corev1.AppArmorProfile {
	switch name, local := strings.CutPrefix(annotation, corev1.DeprecatedAppArmorBetaProfileNamePrefix); {
	case annotation == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case annotation == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case local && name != "":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
