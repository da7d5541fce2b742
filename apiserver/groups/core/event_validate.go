package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/groups/validation"
)

// Limits of new-style events.
const (
	longestReason   = 128
	longestMessage  = 1024
	longestInstance = 128
)

// validateEvent checks an event. The rules of events.k8s.io are stricter than those that old
// reporters to the core group are held to, so it matters through which group a request came.
func validateEvent(ctx context.Context, e, old *corev1.Event) field.ErrorList {
	info, ok := genericrequest.RequestInfoFrom(ctx)
	strict := ok && info.APIGroup == eventsv1.GroupName
	errs := validateEventNamespace(e)
	if !e.EventTime.IsZero() {
		errs = append(errs, validateNewEvent(e, strict)...)
	}
	if !strict {
		return errs
	}
	errs = append(errs, validation.Meta(e, old, true, validation.SubdomainName)...)
	if old == nil || !apiequality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = append(errs, validateSeries(e.Series)...)
	}
	if old != nil {
		return append(errs, validateNewEventUpdate(e, old)...)
	}
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
	}
	return append(errs, validateNoOldFields(e)...)
}

// validateEventNamespace: an event is in the namespace of its object. Events about objects without
// a namespace are in default, new ones also in kube-system.
func validateEventNamespace(e *corev1.Event) field.ErrorList {
	agrees := e.InvolvedObject.Namespace == e.Namespace
	switch {
	case !e.EventTime.IsZero():
		agrees = e.InvolvedObject.Namespace != "" || e.Namespace == metav1.NamespaceDefault ||
			e.Namespace == metav1.NamespaceSystem
	case e.InvolvedObject.Namespace == "":
		agrees = e.Namespace == metav1.NamespaceNone || e.Namespace == metav1.NamespaceDefault
	}
	if agrees {
		return nil
	}
	return field.ErrorList{
		field.Invalid(field.NewPath("involvedObject", "namespace"), e.InvolvedObject.Namespace,
			"does not match event.namespace")}
}

func validateNewEvent(e *corev1.Event, strict bool) field.ErrorList {
	var errs field.ErrorList
	reporter := field.NewPath("reportingComponent")
	if strict {
		reporter = field.NewPath("reportingController")
	}
	if e.ReportingController == "" {
		errs = append(errs, field.Required(reporter, ""))
	}
	errs = append(errs, validation.Check(e.ReportingController, reporter, utilvalidation.IsQualifiedName)...)
	bounded := func(name, value string, most int) {
		if len(value) > most {
			errs = append(errs,
				field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %d characters", most)))
		}
	}
	for _, f := range []struct {
		name, value string
		most        int
	}{
		{"reportingInstance", e.ReportingInstance, longestInstance},
		{"action", e.Action, longestReason},
		{"reason", e.Reason, longestReason},
	} {
		if f.value == "" {
			errs = append(errs, field.Required(field.NewPath(f.name), ""))
		}
		bounded(f.name, f.value, f.most)
	}
	bounded("message", e.Message, longestMessage)
	return errs
}

func validateSeries(s *corev1.EventSeries) field.ErrorList {
	var errs field.ErrorList
	if s == nil {
		return nil
	}
	if s.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateNoOldFields refuses in new events the fields of old reporters.
func validateNoOldFields(e *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"firstTimestamp", !e.FirstTimestamp.IsZero()},
		{"lastTimestamp", !e.LastTimestamp.IsZero()},
		{"count", e.Count != 0},
		{"source", e.Source != corev1.EventSource{}},
	} {
		if f.set {
			errs = append(errs, field.Invalid(field.NewPath(f.name), "", "needs to be unset"))
		}
	}
	return errs
}

// validateNewEventUpdate: only the series of an event changes.
func validateNewEventUpdate(e, old *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name     string
		new, old any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject},
		{"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message},
		{"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"count", e.Count, old.Count},
		{"type", e.Type, old.Type},
		{"action", e.Action, old.Action},
		{"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		errs = append(errs, validation.Immutable(f.new, f.old, field.NewPath(f.name))...)
	}
	if !e.EventTime.Time.Truncate(1000).Equal(old.EventTime.Time.Truncate(1000)) {
		errs = append(errs, field.Invalid(field.NewPath("eventTime"), e.EventTime, "field is immutable"))
	}
	return errs
}
