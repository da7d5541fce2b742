package podtemplate

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
)

// sysctlName accepts names separated by dots or by slashes, as sysctl(8) does.
var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

const longestSysctl = 253

// validatePodSecurity checks the namespaces that the pod shares with its host, and its users.
func validatePodSecurity(spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.HostPID && ptr.Deref(spec.ShareProcessNamespace, false) {
		errs = append(errs,
			field.Invalid(at.Child("shareProcessNamespace"), true,
				"ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	if !ptr.Deref(spec.HostUsers, true) {
		// Two of the names are upper case in the message for clients.
		errs = append(errs, forbid(at, "when `hostUsers` is false",
			named{"hostNetwork", spec.HostNetwork}, named{"HostPID", spec.HostPID}, named{"HostIPC", spec.HostIPC})...)
		EachContainer(spec, at, func(c *corev1.Container, at *field.Path) {
			errs = append(errs,
				forbid(at, "when `hostUsers` is false", named{"volumeDevices", len(c.VolumeDevices) > 0})...)
		})
	}
	if spec.OS != nil {
		switch spec.OS.Name {
		case corev1.Linux, corev1.Windows:
		case "":
			errs = append(errs, field.Required(at.Child("os", "name"), ""))
		default:
			errs = append(errs,
				field.NotSupported(at.Child("os"), spec.OS.Name, []corev1.OSName{corev1.Linux, corev1.Windows}))
		}
	}
	if spec.SecurityContext != nil {
		errs = append(errs, validatePodSecurityContext(spec.SecurityContext, spec, at.Child("securityContext"))...)
	}
	return errs
}

func validatePodSecurityContext(sc *corev1.PodSecurityContext, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	errs := validateIDs(sc.RunAsUser, sc.RunAsGroup, at)
	errs = append(errs, validateGroup(sc.FSGroup, at.Child("fsGroup"))...)
	for i, group := range sc.SupplementalGroups {
		errs = append(errs, validateGroup(&group, at.Child("supplementalGroups").Index(i))...)
	}
	errs = append(errs, validation.OptionalOneOf(sc.SupplementalGroupsPolicy, at.Child("supplementalGroupsPolicy"),
		corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	errs = append(errs, validation.OptionalOneOf(sc.FSGroupChangePolicy, at.Child("fsGroupChangePolicy"),
		corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)...)
	errs = append(errs, validation.OptionalOneOf(sc.SELinuxChangePolicy, at.Child("seLinuxChangePolicy"),
		corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)...)
	errs = append(errs, validateSysctls(sc.Sysctls, spec, at.Child("sysctls"))...)
	errs = append(errs, validateSeccomp(sc.SeccompProfile, at.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))...)
	return append(errs, validateWindows(sc.WindowsOptions, spec, at.Child("windowsOptions"))...)
}

func validateSecurityContext(sc *corev1.SecurityContext, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	if sc == nil {
		return nil
	}
	errs := validateIDs(sc.RunAsUser, sc.RunAsGroup, at)
	if sc.ProcMount != nil {
		errs = append(errs,
			validation.OneOf(*sc.ProcMount, at.Child("procMount"), corev1.DefaultProcMount,
				corev1.UnmaskedProcMount)...)
		if *sc.ProcMount == corev1.UnmaskedProcMount && ptr.Deref(spec.HostUsers, true) {
			errs = append(errs,
				field.Invalid(at.Child("procMount"), *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	if !ptr.Deref(sc.AllowPrivilegeEscalation, true) {
		if ptr.Deref(sc.Privileged, false) {
			errs = append(errs,
				field.Invalid(at, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "CAP_SYS_ADMIN") {
			errs = append(errs,
				field.Invalid(at, sc,
					"cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	errs = append(errs, validateSeccomp(sc.SeccompProfile, at.Child("seccompProfile"))...)
	errs = append(errs, validateAppArmor(sc.AppArmorProfile, at.Child("appArmorProfile"))...)
	return append(errs, validateWindows(sc.WindowsOptions, spec, at.Child("windowsOptions"))...)
}

func validateIDs(user, group *int64, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if user != nil {
		for _, msg := range utilvalidation.IsValidUserID(*user) {
			errs = append(errs, field.Invalid(at.Child("runAsUser"), *user, msg))
		}
	}
	return append(errs, validateGroup(group, at.Child("runAsGroup"))...)
}

func validateGroup(group *int64, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if group != nil {
		for _, msg := range utilvalidation.IsValidGroupID(*group) {
			errs = append(errs, field.Invalid(at, *group, msg))
		}
	}
	return errs
}

// validateSysctls checks that the sysctls exist in form, and are not those of a namespace that the
// pod shares with its host.
func validateSysctls(sysctls []corev1.Sysctl, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, s := range sysctls {
		at := at.Index(i).Child("name")
		switch {
		case s.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(s.Name) > longestSysctl || !sysctlName.MatchString(s.Name):
			errs = append(errs,
				field.Invalid(at, s.Name, "must have at most 253 characters and match regex "+sysctlName.String()))
		case seen[s.Name]:
			errs = append(errs, field.Duplicate(at, s.Name))
		}
		switch name := strings.ReplaceAll(s.Name, "/", "."); {
		case spec.HostNetwork && strings.HasPrefix(name, "net."):
			errs = append(errs, field.Invalid(at, s.Name, "may not be specified when 'hostNetwork' is true"))
		case spec.HostIPC &&
			(strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") ||
				strings.HasPrefix(name, "fs.mqueue.") || name == "kernel.sem"):
			errs = append(errs, field.Invalid(at, s.Name, "may not be specified when 'hostIPC' is true"))
		}
		seen[s.Name] = true
	}
	return errs
}

func validateSeccomp(p *corev1.SeccompProfile, at *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validation.EnumOr(p.Type, "type is required when seccompProfile is set", at.Child("type"),
		corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault,
		corev1.SeccompProfileTypeUnconfined)
	at = at.Child("localhostProfile")
	local := p.Type == corev1.SeccompProfileTypeLocalhost
	switch {
	case local && p.LocalhostProfile == nil:
		errs = append(errs, field.Required(at, "must be set when seccomp type is Localhost"))
	case local:
		errs = append(errs, validation.DescendingPath(*p.LocalhostProfile, at)...)
	case p.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, p, "can only be set when seccomp type is Localhost"))
	}
	return errs
}

func validateAppArmor(p *corev1.AppArmorProfile, at *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	const longest = 4095 // the limit of a path
	local := at.Child("localhostProfile")
	switch p.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		name := ptr.Deref(p.LocalhostProfile, "")
		switch {
		case strings.TrimSpace(name) != name:
			return field.ErrorList{field.Invalid(local, name, "must not be padded with whitespace")}
		case name == "":
			return field.ErrorList{field.Required(local, "must be set when AppArmor type is Localhost")}
		case len(name) > longest:
			return field.ErrorList{field.TooLong(local, "", longest)}
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			return field.ErrorList{
				field.Invalid(local, *p.LocalhostProfile, "can only be set when AppArmor type is Localhost")}
		}
	default:
		return validation.EnumOr(p.Type, "type is required when appArmorProfile is set", at.Child("type"),
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault,
			corev1.AppArmorProfileTypeUnconfined)
	}
	return nil
}

// validateWindows refuses options of Windows in a pod whose OS is Linux.
func validateWindows(w *corev1.WindowsSecurityContextOptions, spec *corev1.PodSpec, at *field.Path) field.ErrorList {
	if w != nil && spec.OS != nil && spec.OS.Name == corev1.Linux {
		return field.ErrorList{field.Forbidden(at, "windows options cannot be set for a linux pod")}
	}
	return nil
}
