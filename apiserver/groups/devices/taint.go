package devices

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func deviceTaintRules() resource.Resource {
	return &resource.Kind[resourcev1.DeviceTaintRule]{
		GroupVersion:    version,
		Name:            "devicetaintrules",
		Singular:        "devicetaintrule",
		ClusterScoped:   true,
		List:            &resourcev1.DeviceTaintRuleList{},
		Generation:      true,
		VersionedUpdate: true,
		Default:         func(r *resourcev1.DeviceTaintRule) { defaultTaint(&r.Spec.Taint) },
		Prepare:         prepareTaintRule,
		Validate:        validateTaintRule,
		Status: &resource.Status[resourcev1.DeviceTaintRule]{
			Prepare: func(_ context.Context, r, old *resourcev1.DeviceTaintRule) {
				metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
			},
			Validate: validateTaintRuleStatus,
			Reset:    []fieldpath.Path{fieldpath.MakePathOrDie("metadata")},
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("Key", "string", "The key of the taint."),
			resource.Column("Value", "string", "The value of the taint."),
			resource.Column("Effect", "string", "What happens to pods that do not tolerate the taint."),
			resource.Column("TimeAdded", "string", "How long the taint has had its effect."),
			resource.Age(),
		},
		Row: func(r *resourcev1.DeviceTaintRule, now time.Time) []any {
			t, added := &r.Spec.Taint, ""
			if t.TimeAdded != nil {
				added = resource.Since(*t.TimeAdded, now)
			}
			return []any{r.Name, t.Key, t.Value, string(t.Effect), added, resource.Since(r.CreationTimestamp, now)}
		},
	}
}

// defaultTaint dates a taint that has no date. Stored taints have one, so that only new taints
// depend on the time at which they are read.
func defaultTaint(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = thisSecond()
	}
}

// thisSecond is the time as it is written.
func thisSecond() *metav1.Time { return &metav1.Time{Time: time.Now().Truncate(time.Second)} }

// prepareTaintRule dates a taint anew whose effect changes, unless the client has dated it.
func prepareTaintRule(_ context.Context, r, old *resourcev1.DeviceTaintRule) {
	if old == nil {
		return
	}
	t, was := &r.Spec.Taint, &old.Spec.Taint
	if t.Effect != was.Effect && t.TimeAdded.Equal(was.TimeAdded) {
		t.TimeAdded = thisSecond()
	}
}

func validateTaintRule(_ context.Context, r, old *resourcev1.DeviceTaintRule) field.ErrorList {
	errs := validation.Meta(r, old, false, validation.SubdomainName)
	at := field.NewPath("spec")
	if s := r.Spec.DeviceSelector; s != nil {
		at := at.Child("deviceSelector")
		if s.Driver != nil {
			errs = append(errs, driverName(*s.Driver, at.Child("driver"))...)
		}
		if s.Pool != nil {
			errs = append(errs, poolName(*s.Pool, at.Child("pool"))...)
		}
		if s.Device != nil {
			errs = append(errs, label(*s.Device, at.Child("device"))...)
		}
	}
	var was *resourcev1.DeviceTaint
	if old != nil {
		was = &old.Spec.Taint
	}
	return append(errs, validateTaint(&r.Spec.Taint, was, at.Child("taint"))...)
}

func validateTaintRuleStatus(_ context.Context, r, old *resourcev1.DeviceTaintRule) field.ErrorList {
	errs := validation.Meta(r, old, false, validation.SubdomainName)
	at := field.NewPath("status", "conditions")
	errs = append(errs, metav1validation.ValidateConditions(r.Status.Conditions, at)...)
	if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
		errs = append(errs, field.TooMany(at, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
	}
	return errs
}

// effects of taints.
var effects = []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoExecute,
	resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone}

// validateTaint checks a taint. An effect that was stored before stays valid.
func validateTaint(t, old *resourcev1.DeviceTaint, at *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabelName(t.Key, at.Child("key"))
	if t.Value != "" {
		errs = append(errs, validation.Check(t.Value, at.Child("value"), utilvalidation.IsValidLabelValue)...)
	}
	if old == nil || old.Effect != t.Effect {
		errs = append(errs, validation.Enum(t.Effect, at.Child("effect"), effects...)...)
	}
	return errs
}

func validateToleration(t *resourcev1.DeviceToleration, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, metav1validation.ValidateLabelName(t.Key, at.Child("key"))...)
	}
	switch t.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(at.Child("value"), t.Value, "must be empty for operator `Exists`"))
		}
	case resourcev1.DeviceTolerationOpEqual:
		errs = append(errs, validation.Check(t.Value, at.Child("value"), utilvalidation.IsValidLabelValue)...)
	default:
		errs = append(errs,
			validation.Enum(t.Operator, at.Child("operator"), resourcev1.DeviceTolerationOpEqual,
				resourcev1.DeviceTolerationOpExists)...)
	}
	if t.Effect != "" {
		errs = append(errs, validation.Enum(t.Effect, at.Child("effect"), effects...)...)
	}
	return errs
}

func defaultTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		if list[i].Operator == "" {
			list[i].Operator = resourcev1.DeviceTolerationOpEqual
		}
	}
}
