package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	k8sresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/podtemplate"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func limitRanges() resource.Resource {
	return &resource.Kind[corev1.LimitRange]{
		GroupVersion:   version,
		Name:           "limitranges",
		Singular:       "limitrange",
		ShortNames:     []string{"limits"},
		List:           &corev1.LimitRangeList{},
		CreateOnUpdate: true,
		Default:        defaultLimitRange,
		Prepare: func(_ context.Context, l, old *corev1.LimitRange) {
			if old == nil && l.Name == "" {
				l.Name = string(uuid.NewUUID())
			}
		},
		Validate: validateLimitRange,
		Columns: []metav1.TableColumnDefinition{resource.Name(),
			resource.Column("Created At", "date", "When the object was created.")},
		Row: func(l *corev1.LimitRange, _ time.Time) []any {
			return []any{l.Name, l.CreationTimestamp.UTC().Format(time.RFC3339)}
		},
	}
}

// defaultLimitRange derives the default resources of a container from its other bounds.
func defaultLimitRange(l *corev1.LimitRange) {
	for i := range l.Spec.Limits {
		item := &l.Spec.Limits[i]
		if item.Type == corev1.LimitTypeContainer {
			item.Default = withDefaults(item.Default, item.Max)
			item.DefaultRequest = withDefaults(item.DefaultRequest, item.Default, item.Min)
		}
		for _, list := range []corev1.ResourceList{item.Max, item.Min, item.Default, item.DefaultRequest,
			item.MaxLimitRequestRatio} {
			podtemplate.RoundUp(list)
		}
	}
}

// withDefaults adds entries that list lacks, from the first of the others that has them.
func withDefaults(list corev1.ResourceList, others ...corev1.ResourceList) corev1.ResourceList {
	if list == nil {
		list = corev1.ResourceList{}
	}
	for _, other := range others {
		for name, q := range other {
			if _, ok := list[name]; !ok {
				list[name] = q.DeepCopy()
			}
		}
	}
	return list
}

func validateLimitRange(_ context.Context, l, old *corev1.LimitRange) field.ErrorList {
	errs := validation.Meta(l, old, true, validation.SubdomainName)
	seen := map[corev1.LimitType]bool{}
	for i := range l.Spec.Limits {
		item, at := &l.Spec.Limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(item.Type, at.Child("type"))...)
		if seen[item.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), item.Type))
		}
		seen[item.Type] = true
		errs = append(errs, validateLimits(item, at)...)
	}
	return errs
}

func validateLimitType(t corev1.LimitType, at *field.Path) field.ErrorList {
	errs := validation.Check(string(t), at, utilvalidation.IsQualifiedName)
	standard := []corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer,
		corev1.LimitTypePersistentVolumeClaim}
	if len(errs) == 0 && !strings.Contains(string(t), "/") && !slices.Contains(standard, t) {
		errs = append(errs, field.Invalid(at, t, "must be a standard limit type or fully qualified"))
	}
	return errs
}

func validateLimits(item *corev1.LimitRangeItem, at *field.Path) field.ErrorList {
	checkName := validation.ResourceName
	if item.Type == corev1.LimitTypePod || item.Type == corev1.LimitTypeContainer {
		checkName = validation.ContainerResourceName
	}
	var errs field.ErrorList
	byName := map[corev1.ResourceName]bool{}
	for _, list := range []struct {
		name   string
		values corev1.ResourceList
	}{
		{"max", item.Max}, {"min", item.Min}, {"default", item.Default},
		{"defaultRequest", item.DefaultRequest}, {"maxLimitRequestRatio", item.MaxLimitRequestRatio},
	} {
		if item.Type == corev1.LimitTypePod && len(list.values) > 0 && strings.HasPrefix(list.name, "default") {
			errs = append(errs, field.Forbidden(at.Child(list.name), "may not be specified when `type` is 'Pod'"))
			continue
		}
		for _, name := range validation.SortedResources(list.values) {
			errs = append(errs, checkName(name, at.Child(list.name).Key(string(name)))...)
			byName[name] = true
		}
	}
	if item.Type == corev1.LimitTypePersistentVolumeClaim {
		_, min := item.Min[corev1.ResourceStorage]
		_, max := item.Max[corev1.ResourceStorage]
		if !min && !max {
			errs = append(errs,
				field.Required(at.Child("limits"),
					"either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	for _, name := range validation.SortedKeys(byName) {
		errs = append(errs, validateLimit(item, name, at)...)
	}
	return errs
}

// bound returns the value of a resource, nil where the limit has none.
func bound(list corev1.ResourceList, name corev1.ResourceName) *k8sresource.Quantity {
	if q, ok := list[name]; ok {
		return &q
	}
	return nil
}

// above reports that both are given, and a is greater.
func above(a, b *k8sresource.Quantity) bool { return a != nil && b != nil && a.Cmp(*b) > 0 }

// validateLimit checks the values of one resource against each other.
func validateLimit(item *corev1.LimitRangeItem, name corev1.ResourceName, at *field.Path) field.ErrorList {
	min, max, ratio := bound(item.Min, name), bound(item.Max, name), bound(item.MaxLimitRequestRatio, name)
	var limit, request *k8sresource.Quantity
	if item.Type != corev1.LimitTypePod {
		limit, request = bound(item.Default, name), bound(item.DefaultRequest, name)
	}
	var errs field.ErrorList
	wrong := func(child string, value *k8sresource.Quantity, format string, args ...any) {
		errs = append(errs,
			field.Invalid(at.Child(child).Key(string(name)), value.String(), fmt.Sprintf(format, args...)))
	}
	if above(min, max) {
		wrong("min", min, "min value %s is greater than max value %s", min, max)
	}
	if above(min, request) {
		wrong("defaultRequest", request, "min value %s is greater than default request value %s", min, request)
	}
	if above(request, max) {
		wrong("defaultRequest", request, "default request value %s is greater than max value %s", request, max)
	}
	if above(request, limit) {
		wrong("defaultRequest", request, "default request value %s is greater than default limit value %s", request,
			limit)
	}
	if above(min, limit) {
		wrong("default", min, "min value %s is greater than default value %s", min, limit)
	}
	if above(limit, max) {
		wrong("default", max, "default value %s is greater than max value %s", limit, max)
	}
	if ratio != nil && ratio.Cmp(*k8sresource.NewQuantity(1, k8sresource.DecimalSI)) < 0 {
		wrong("maxLimitRequestRatio", ratio, "ratio %s is less than 1", ratio)
	}
	if ratio != nil && min != nil && max != nil {
		if most := quotient(max, min); thousandths(ratio)/1000 > most {
			wrong("maxLimitRequestRatio", ratio, "ratio %s is greater than max/min = %f", ratio, most)
		}
	}
	overcommit := validation.IsNativeResource(name) && !validation.IsHugePages(name)
	if !overcommit && limit != nil && request != nil && limit.Cmp(*request) != 0 {
		wrong("defaultRequest", request, "default value %s must equal to defaultRequest value %s in %s", limit, request,
			name)
	}
	return errs
}

// quotient divides quantities as users write them: 0.3/0.1 is 3.
func quotient(a, b *k8sresource.Quantity) float64 { return thousandths(a) / thousandths(b) }

// thousandths is exact for every quantity whose thousandths fit into 53 bits.
func thousandths(q *k8sresource.Quantity) float64 {
	if q.CmpInt64(k8sresource.MaxMilliValue) > 0 {
		return float64(q.Value()) * 1000
	}
	return float64(q.MilliValue())
}
