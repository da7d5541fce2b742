package core

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// largestData is the limit of the values of a ConfigMap or Secret together.
const largestData = 1 << 20

func configMaps() resource.Resource {
	return &resource.Kind[corev1.ConfigMap]{
		GroupVersion: version,
		Name:         "configmaps",
		Singular:     "configmap",
		ShortNames:   []string{"cm"},
		List:         &corev1.ConfigMapList{},
		Validate:     validateConfigMap,
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Data", "integer", "How many keys the config map holds."),
			resource.Age(),
		},
		Row: func(cm *corev1.ConfigMap, now time.Time) []any {
			return []any{cm.Name, int64(len(cm.Data) + len(cm.BinaryData)), resource.Since(cm.CreationTimestamp, now)}
		},
	}
}

func validateConfigMap(_ context.Context, cm, old *corev1.ConfigMap) field.ErrorList {
	errs := validation.Meta(cm, old, true, validation.SubdomainName)
	if old != nil {
		errs = append(errs, validateFrozen(old.Immutable, cm.Immutable,
			frozen{"data", apiequality.Semantic.DeepEqual(cm.Data, old.Data)},
			frozen{"binaryData", apiequality.Semantic.DeepEqual(cm.BinaryData, old.BinaryData)})...)
	}
	size := 0
	for _, key := range validation.SortedKeys(cm.Data) {
		at := field.NewPath("data").Key(key)
		errs = append(errs, validation.Check(key, at, utilvalidation.IsConfigMapKey)...)
		if _, twice := cm.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(at, key, "duplicate of key present in binaryData"))
		}
		size += len(cm.Data[key])
	}
	for _, key := range validation.SortedKeys(cm.BinaryData) {
		errs = append(errs,
			validation.Check(key, field.NewPath("binaryData").Key(key), utilvalidation.IsConfigMapKey)...)
		size += len(cm.BinaryData[key])
	}
	if size > largestData {
		errs = append(errs, field.TooLong(field.NewPath(""), "", largestData))
	}
	return errs
}

// frozen is a field that an immutable object may not change.
type frozen struct {
	name string
	same bool
}

// validateFrozen checks the update of an object that may have been declared immutable, for good.
func validateFrozen(was, is *bool, fields ...frozen) field.ErrorList {
	if !ptr.Deref(was, false) {
		return nil
	}
	const why = "field is immutable when `immutable` is set"
	var errs field.ErrorList
	if !ptr.Deref(is, false) {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), why))
	}
	for _, f := range fields {
		if !f.same {
			errs = append(errs, field.Forbidden(field.NewPath(f.name), why))
		}
	}
	return errs
}
