package podtemplate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

// Fields of a pod that the downward API hands to its containers. Labels and annotations can be
// selected one by one, metadata.labels['key'], and in files also as a whole.
var (
	envFieldPaths = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
		"spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	volumeFieldPaths = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels",
		"metadata.annotations"}
	// which neither of the two may select
	otherFieldPaths = []string{"spec.restartPolicy", "spec.schedulerName", "status.phase"}
	containerFields = []string{"limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu",
		"requests.memory", "requests.ephemeral-storage"}
)

func (c *checker) validateEnv(env []corev1.EnvVar, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range env {
		e, at := &env[i], at.Index(i)
		errs = append(errs, validation.Name(e.Name, at.Child("name"), utilvalidation.IsRelaxedEnvVarName)...)
		if e.ValueFrom != nil {
			errs = append(errs, c.validateEnvSource(e, at.Child("valueFrom"))...)
		}
	}
	return errs
}

func (c *checker) validateEnvSource(e *corev1.EnvVar, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	sources, from := 0, e.ValueFrom
	if ref := from.FieldRef; ref != nil {
		sources++
		errs = append(errs, validateFieldRef(ref, envFieldPaths, at.Child("fieldRef"))...)
	}
	if ref := from.ResourceFieldRef; ref != nil {
		sources++
		errs = append(errs, validateResourceFieldRef(ref, false, at.Child("resourceFieldRef"))...)
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		sources++
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, at.Child("configMapKeyRef"))...)
	}
	if ref := from.SecretKeyRef; ref != nil {
		sources++
		errs = append(errs, validateKeyRef(ref.Name, ref.Key, at.Child("secretKeyRef"))...)
	}
	if ref := from.FileKeyRef; ref != nil {
		sources++
		errs = append(errs, c.validateFileRef(ref, at.Child("fileKeyRef"))...)
	}
	switch {
	case sources == 0:
		errs = append(errs,
			field.Invalid(at, "",
				"must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case e.Value != "":
		errs = append(errs, field.Invalid(at, "", "may not be specified when `value` is not empty"))
	case sources > 1:
		errs = append(errs, field.Invalid(at, "", "may not have more than one field specified at a time"))
	}
	return errs
}

// validateFileRef checks a variable from a file, which containers write into an emptyDir.
func (c *checker) validateFileRef(ref *corev1.FileKeySelector, at *field.Path) field.ErrorList {
	errs := validation.Name(ref.Key, at.Child("key"), utilvalidation.IsRelaxedEnvVarName)
	errs = append(errs, validation.DNSLabel(ref.VolumeName, at.Child("volumeName"))...)
	errs = append(errs, required(ref.Path, at.Child("path"))...)
	errs = append(errs, validation.NoBacksteps(ref.Path, at.Child("path"))...)
	// A volume that has errors of its own still counts.
	i := slices.IndexFunc(c.spec.Volumes, func(v corev1.Volume) bool { return v.Name == ref.VolumeName })
	if i < 0 {
		errs = append(errs, field.NotFound(at.Child("volumeName"), ref.VolumeName))
	} else if c.spec.Volumes[i].EmptyDir == nil {
		errs = append(errs,
			field.Invalid(at.Child("volumeName"), ref.VolumeName, "referenced volume must be of type emptyDir"))
	}
	return errs
}

func validateKeyRef(name, key string, at *field.Path) field.ErrorList {
	errs := validation.Check(name, at.Child("name"), utilvalidation.IsDNS1123Subdomain)
	return append(errs, validation.Name(key, at.Child("key"), utilvalidation.IsConfigMapKey)...)
}

func validateEnvFrom(sources []corev1.EnvFromSource, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range sources {
		if s.Prefix != "" {
			errs = append(errs,
				validation.Check(s.Prefix, at.Index(i).Child("prefix"), utilvalidation.IsRelaxedEnvVarName)...)
		}
		if s.ConfigMapRef != nil {
			errs = append(errs,
				validation.DNSSubdomain(s.ConfigMapRef.Name, at.Index(i).Child("configMapRef", "name"))...)
		}
		if s.SecretRef != nil {
			errs = append(errs, validation.DNSSubdomain(s.SecretRef.Name, at.Index(i).Child("secretRef", "name"))...)
		}
		// That there is not one source is reported for the list, as clients know it.
		switch {
		case s.ConfigMapRef == nil && s.SecretRef == nil:
			errs = append(errs, field.Invalid(at, "", "must specify one of: `configMapRef` or `secretRef`"))
		case s.ConfigMapRef != nil && s.SecretRef != nil:
			errs = append(errs, field.Invalid(at, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

func validateFieldRef(ref *corev1.ObjectFieldSelector, allowed []string, at *field.Path) field.ErrorList {
	path := at.Child("fieldPath")
	unknown := func(why, what string) field.ErrorList {
		return field.ErrorList{field.Invalid(path, ref.FieldPath, "error converting fieldPath: "+why+": "+what)}
	}
	switch {
	case ref.APIVersion == "":
		return field.ErrorList{field.Required(at.Child("apiVersion"), "")}
	case ref.FieldPath == "":
		return field.ErrorList{field.Required(path, "")}
	case ref.APIVersion != "v1":
		return unknown("unsupported pod version", ref.APIVersion)
	}
	if of, key, ok := subscript(ref.FieldPath); ok {
		switch of {
		case "metadata.labels":
			return validation.Check(key, at, utilvalidation.IsQualifiedName)
		case "metadata.annotations":
			return validation.Check(strings.ToLower(key), at, utilvalidation.IsQualifiedName)
		}
		return unknown("field label does not support subscript", ref.FieldPath)
	}
	if !slices.Contains(slices.Concat(envFieldPaths, volumeFieldPaths, otherFieldPaths), ref.FieldPath) {
		return unknown("field label not supported", ref.FieldPath)
	}
	if !slices.Contains(allowed, ref.FieldPath) {
		return field.ErrorList{field.NotSupported(path, ref.FieldPath, slices.Sorted(slices.Values(allowed)))}
	}
	return nil
}

// subscript splits path['key'].
func subscript(s string) (path, key string, ok bool) {
	inner, ok := strings.CutSuffix(s, "']")
	if !ok {
		return s, "", false
	}
	path, key, ok = strings.Cut(inner, "['")
	return path, key, ok && path != ""
}

func validateResourceFieldRef(ref *corev1.ResourceFieldSelector, inVolume bool, at *field.Path) field.ErrorList {
	list, name, _ := strings.Cut(ref.Resource, ".")
	huge := (list == "limits" || list == "requests") && validation.IsHugePages(corev1.ResourceName(name))
	known := slices.Contains(containerFields, ref.Resource) || huge
	var errs field.ErrorList
	switch {
	case inVolume && ref.ContainerName == "":
		errs = append(errs, field.Required(at.Child("containerName"), ""))
	case ref.Resource == "":
		errs = append(errs, field.Required(at.Child("resource"), ""))
	case !known:
		errs = append(errs, field.NotSupported(at.Child("resource"), ref.Resource, containerFields))
	}
	if !known {
		return errs
	}
	return append(errs, validateDivisor(ref.Resource, name, ref.Divisor, at.Child("divisor"))...)
}

func validateDivisor(asked, name string, divisor resource.Quantity, at *field.Path) field.ErrorList {
	allowed := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	list := strings.Join(allowed, ", ")
	switch {
	case name == "cpu":
		allowed, list = []string{"1m", "1"}, "1m and 1"
	case name == "ephemeral-storage":
		name = "local ephemeral storage"
	case name != "memory":
		name = "hugepages"
	}
	if divisor.IsZero() || slices.Contains(allowed, divisor.String()) {
		return nil
	}
	return field.ErrorList{
		field.Invalid(at, asked,
			fmt.Sprintf("only divisor's values %s are supported with the %s resource", list, name))}
}
