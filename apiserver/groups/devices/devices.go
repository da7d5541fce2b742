// Package devices declares the resources of the resource.k8s.io API group: the devices that drivers
// offer, the classes and claims by which pods request them, and taints on devices.
//
// Fields behind feature gates that are off by default (derived attributes, attributes that are
// lists, compatibility groups, resources of nodes that a device stands for, node operations that
// are skipped, types of partitions) are dropped from writes, as in Kubernetes. The scheduler
// allocates devices. The server adds the checks that need more than the object: the permissions for
// administrative access, and for each part of a status.
package devices

import (
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

var version = resourcev1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		deviceClasses(),
		deviceTaintRules(),
		resourceClaims(),
		resourceClaimTemplates(),
		resourceSlices(),
	}
}

// unbounded is the size of lists that are bounded elsewhere.
const unbounded = -1

// each checks the items of a list. A list that is too long has only that error.
func each[T any](list []T, most int, at *field.Path, check func(*T, *field.Path) field.ErrorList) field.ErrorList {
	if most != unbounded && len(list) > most {
		return field.ErrorList{field.TooMany(at, len(list), most)}
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, check(&list[i], at.Index(i))...)
	}
	return errs
}

// eachOf is each for a list whose items differ in their keys.
func eachOf[T any](
	list []T, most int, at *field.Path, key func(*T) string, check func(*T, *field.Path) field.ErrorList,
) field.ErrorList {
	errs := each(list, most, at, check)
	if most != unbounded && len(list) > most {
		return errs
	}
	seen := map[string]bool{}
	for i := range list {
		k := key(&list[i])
		if seen[k] {
			errs = append(errs, field.Duplicate(at.Index(i), k))
		}
		seen[k] = true
	}
	return errs
}

// entries checks the keys and values of a map, in the order of the keys.
func entries[K ~string, V any](
	m map[K]V, most int, at *field.Path, key func(string, *field.Path) field.ErrorList,
	check func(*V, *field.Path) field.ErrorList,
) field.ErrorList {
	if most != unbounded && len(m) > most {
		return field.ErrorList{field.TooMany(at, len(m), most)}
	}
	var errs field.ErrorList
	for _, k := range validation.SortedKeys(m) {
		errs = append(errs, key(string(k), at)...)
		value := m[k]
		errs = append(errs, check(&value, at.Key(shortened(string(k))))...)
	}
	return errs
}

// longestKey is the length of a key up to which messages have all of it.
const longestKey = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength

// shortened leaves out the middle of a key that is too long.
func shortened(key string) string {
	if len(key) <= longestKey {
		return key
	}
	const gap = "..."
	const kept = longestKey - len(gap)
	return key[:(kept+1)/2] + gap + key[len(key)-kept/2:]
}

// label checks a DNS label; an empty one is invalid, not missing.
func label(name string, at *field.Path) field.ErrorList {
	return validation.Check(name, at, utilvalidation.IsDNS1123Label)
}

func nodeName(name string, at *field.Path) field.ErrorList {
	return validation.Check(name, at, utilvalidation.IsDNS1123Subdomain)
}

// driverName checks the name of a driver, which follows the rule for CSI drivers.
func driverName(name string, at *field.Path) field.ErrorList {
	return validation.DriverName(name, at)
}

// poolName checks the name of a pool: DNS subdomains with slashes in between.
func poolName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(at, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		errs = append(errs, validation.Check(part, at, utilvalidation.IsDNS1123Subdomain)...)
	}
	return errs
}

// qualifiedName checks the name of an attribute or capacity: an identifier, with or without a
// domain and a slash before it.
func qualifiedName(name string, at *field.Path) field.ErrorList {
	parts := strings.Split(name, "/")
	switch len(parts) {
	case 1:
		return identifier(name, at)
	case 2:
	default:
		return nil // Kubernetes accepts more slashes
	}
	var errs field.ErrorList
	if parts[0] == "" {
		errs = append(errs, field.Invalid(at, "", "the domain must not be empty"))
	} else {
		errs = append(errs, driverName(parts[0], at)...)
	}
	if parts[1] == "" {
		return append(errs, field.Invalid(at, "", "the name must not be empty"))
	}
	return append(errs, identifier(parts[1], at)...)
}

func identifier(name string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(name) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(at, "", resourcev1.DeviceMaxIDLength))
	}
	return append(errs, validation.Check(name, at, content.IsCIdentifier)...)
}

// labelName checks a condition that a device is bound under, which is named like a label.
func labelName(name *string, at *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelName(*name, at)
}

func self(s *string) string { return *s }
