package validation

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// nativePrefix begins the names of resources that Kubernetes itself defines.
const nativePrefix = "kubernetes.io/"

// IsNativeResource reports whether the name has no domain, or Kubernetes' own.
func IsNativeResource(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), nativePrefix)
}

// IsExtendedResource reports whether nodes advertise the resource under a domain of their own; such
// resources are counted in whole units and cannot be overcommitted.
func IsExtendedResource(name corev1.ResourceName) bool {
	if IsNativeResource(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(utilvalidation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// IsHugePages reports whether the name is hugepages-<size>.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// isContainerResource reports whether a container may request the name, which has no domain.
func isContainerResource(name corev1.ResourceName) bool {
	return slices.Contains(
		[]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}, name) ||
		IsHugePages(name)
}

// Quantity checks an amount of a resource.
func Quantity(name corev1.ResourceName, q resource.Quantity, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if q.Sign() < 0 {
		errs = append(errs, field.Invalid(at, q.String(), "must be greater than or equal to 0"))
	}
	if (isCounted(name) || IsExtendedResource(name)) && q.MilliValue()%1000 != 0 {
		errs = append(errs, field.Invalid(at, q.String(), "must be an integer"))
	}
	return errs
}

// ContainerResourceName checks the name of a resource that a container requests.
func ContainerResourceName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := ResourceName(name, at)
	if !strings.Contains(string(name), "/") {
		if !isContainerResource(name) {
			errs = append(errs, field.Invalid(at, name, "must be a standard resource for containers"))
		}
	} else if !IsNativeResource(name) && !IsExtendedResource(name) {
		errs = append(errs, field.Invalid(at, name, "doesn't follow extended resource name standard"))
	}
	return errs
}

// ResourceName checks the name of a resource that is counted or limited for objects of any kind.
func ResourceName(name corev1.ResourceName, at *field.Path) field.ErrorList {
	errs := Check(string(name), at, utilvalidation.IsQualifiedName)
	if len(errs) == 0 && !strings.Contains(string(name), "/") && !isStandardResource(name) {
		errs = append(errs, field.Invalid(at, name, "must be a standard resource type or fully qualified"))
	}
	return errs
}

// isCounted reports whether the name has no domain, and is counted as objects.
func isCounted(name corev1.ResourceName) bool {
	return slices.Contains([]corev1.ResourceName{
		corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
		corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
	}, name)
}

// isStandardResource reports whether the name is a known one without a domain.
func isStandardResource(name corev1.ResourceName) bool {
	return isContainerResource(name) || isCounted(name) ||
		strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) ||
		slices.Contains([]corev1.ResourceName{
			corev1.ResourceStorage, corev1.ResourceRequestsStorage,
			corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
			corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
		}, name)
}

// ResourceRequirements checks the resources of a container: names, amounts, and that no request is
// above its limit.
func ResourceRequirements(r *corev1.ResourceRequirements, claims map[string]bool, at *field.Path) field.ErrorList {
	errs := requirements(r, at, ContainerResourceName)
	return append(errs, resourceClaims(r.Claims, claims, at.Child("claims"))...)
}

// PodResourceRequirements is ResourceRequirements for the resources of a pod as a whole, which can
// be of fewer kinds.
func PodResourceRequirements(r *corev1.ResourceRequirements, at *field.Path) field.ErrorList {
	return requirements(r, at, func(name corev1.ResourceName, at *field.Path) field.ErrorList {
		if errs := ResourceName(name, at); len(errs) > 0 {
			return errs
		}
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || IsHugePages(name) {
			return nil
		}
		return field.ErrorList{
			field.NotSupported(at, name,
				[]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceHugePagesPrefix, corev1.ResourceMemory})}
	})
}

func requirements(
	r *corev1.ResourceRequirements, at *field.Path, checkName func(corev1.ResourceName, *field.Path) field.ErrorList,
) field.ErrorList {
	var errs field.ErrorList
	for _, name := range SortedResources(r.Limits) {
		key := at.Child("limits").Key(string(name))
		errs = append(errs, checkName(name, key)...)
		errs = append(errs, Quantity(name, r.Limits[name], key)...)
		errs = append(errs, wholePages(name, r.Limits[name], key)...)
	}
	for _, name := range SortedResources(r.Requests) {
		key := at.Child("requests").Key(string(name))
		errs = append(errs, checkName(name, key)...)
		errs = append(errs, Quantity(name, r.Requests[name], key)...)
		errs = append(errs, requestWithinLimit(name, r, at)...)
		errs = append(errs, wholePages(name, r.Requests[name], key)...)
	}
	return append(errs, hugePagesNeedMore(r, at)...)
}

// wholePages demands that huge pages are requested in whole pages.
func wholePages(name corev1.ResourceName, q resource.Quantity, at *field.Path) field.ErrorList {
	if !IsHugePages(name) {
		return nil
	}
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err == nil && size.Sign() > 0 && size.MilliValue()%1000 == 0 && q.Value()%size.Value() == 0 {
		return nil
	}
	return field.ErrorList{
		field.Invalid(at, q.String(), q.String()+" is not positive integer multiple of "+string(name))}
}

func mustEqualLimit(name corev1.ResourceName) bool {
	return IsHugePages(name) || IsExtendedResource(name)
}

func requestWithinLimit(name corev1.ResourceName, r *corev1.ResourceRequirements, at *field.Path) field.ErrorList {
	request := r.Requests[name]
	limit, limited := r.Limits[name]
	key := at.Child("requests")
	switch {
	case !limited && mustEqualLimit(name):
		return field.ErrorList{field.Required(at.Child("limits"), "Limit must be set for non overcommitable resources")}
	case !limited:
		return nil
	case mustEqualLimit(name) && request.Cmp(limit) != 0:
		return field.ErrorList{
			field.Invalid(key, request.String(), "must be equal to "+string(name)+" limit of "+limit.String())}
	case request.Cmp(limit) > 0:
		return field.ErrorList{
			field.Invalid(key, request.String(),
				"must be less than or equal to "+string(name)+" limit of "+limit.String())}
	}
	return nil
}

// hugePagesNeedMore reports huge pages without CPU or memory: they cannot be a pod's only resource.
func hugePagesNeedMore(r *corev1.ResourceRequirements, at *field.Path) field.ErrorList {
	huge, other := false, false
	for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
		for name := range list {
			huge = huge || IsHugePages(name)
			other = other || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	if huge && !other {
		return field.ErrorList{field.Forbidden(at, "HugePages require cpu or memory")}
	}
	return nil
}

// resourceClaims checks which claims of its pod a container uses: each once, as a whole or by
// requests.
func resourceClaims(refs []corev1.ResourceClaim, claims map[string]bool, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, ref := range refs {
		at := at.Index(i)
		if ref.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		key := ref.Name
		switch {
		case seen[ref.Name]:
			errs = append(errs, field.Duplicate(at, ref.Name))
		case ref.Request == "":
			for other := range seen {
				if strings.HasPrefix(other, ref.Name+"/") {
					errs = append(errs, field.Duplicate(at, ref.Name))
				}
			}
		default:
			errs = append(errs, Check(ref.Request, at.Child("request"), utilvalidation.IsDNS1123Label)...)
			key += "/" + ref.Request
			if seen[key] {
				errs = append(errs, field.Duplicate(at, key))
			}
		}
		seen[key] = true
		if !claims[ref.Name] {
			missing := field.NotFound(at, ref.Name)
			missing.Detail = "must be one of the names in pod.spec.resourceClaims which is empty"
			if len(claims) > 0 {
				missing.Detail = "must be one of the names in pod.spec.resourceClaims: " +
					strings.Join(SortedKeys(claims), ", ")
			}
			errs = append(errs, missing)
		}
	}
	return errs
}

// SortedResources lists the names of a resource list in order.
func SortedResources(list corev1.ResourceList) []corev1.ResourceName { return SortedKeys(list) }

// SortedKeys lists the keys of a map in order, so that errors come in the same order every time.
func SortedKeys[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
