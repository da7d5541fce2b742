// Package storage declares the resources of the storage.k8s.io API group: the classes of volumes,
// the drivers that make them, and the reports of these.
package storage

import (
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

var version = storagev1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		storageClasses(),
		volumeAttributesClasses(),
		drivers(),
		driversOfNodes(),
		capacities(),
		attachments(),
	}
}

// Limits of the parameters of a class.
const (
	largestParameters = 256 << 10
	mostParameters    = 512
)

// validateProvisioner checks the name of a provisioner.
func validateProvisioner(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return validation.Check(strings.ToLower(name), at, utilvalidation.IsQualifiedName)
}

func validateParameters(parameters map[string]string, at *field.Path) field.ErrorList {
	if len(parameters) > mostParameters {
		return field.ErrorList{field.TooLong(at, "", mostParameters)}
	}
	var errs field.ErrorList
	if _, ok := parameters[""]; ok {
		errs = append(errs, field.Invalid(at, "", "field can not be empty."))
	}
	return append(errs, limitSize(parameters, largestParameters, at)...)
}

// limitSize reports a map whose keys and values are too large together.
func limitSize(m map[string]string, most int, at *field.Path) field.ErrorList {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > most {
		return field.ErrorList{field.TooLong(at, "", most)}
	}
	return nil
}
