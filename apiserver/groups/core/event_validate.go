package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
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
	errs := validation.Meta(e, old, true, validation.SubdomainName)
	errs = append(errs, validateEventNamespace(e)...)
	info, ok := genericrequest.RequestInfoFrom(ctx)
	strict := ok && info.APIGroup == eventsv1.GroupName
	if !strict && e.EventTime.IsZero() {
		return errs
	}
	errs = append(errs, validateNewEvent(e, old, strict)...)
	return errs
}

// validateEventNamespace: an event lives beside what it is about. Events about objects without a
// namespace live in default or kube-system.
func validateEventNamespace(e *corev1.Event) field.ErrorList {
	at := field.NewPath("involvedObject", "namespace")
	if e.InvolvedObject.Namespace == "" {
		switch e.Namespace {
		case metav1.NamespaceNone, metav1.NamespaceDefault, metav1.NamespaceSystem:
			return nil
		}
	}
	if e.InvolvedObject.Namespace != e.Namespace {
		return field.ErrorList{field.Invalid(at, e.InvolvedObject.Namespace, "does not match event.namespace")}
	}
	return nil
}

func validateNewEvent(e, old *corev1.Event, strict bool) field.ErrorList {
	var errs field.ErrorList
	if strict && e.EventTime.IsZero() && (old == nil || !old.EventTime.IsZero()) {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	errs = append(errs, validation.Name(e.ReportingController, field.NewPath("reportingController"), utilvalidation.IsQualifiedName)...)
	bounded := func(name, value string, most int) {
		switch {
		case value == "":
			errs = append(errs, field.Required(field.NewPath(name), ""))
		case len(value) > most:
			errs = append(errs, field.TooLong(field.NewPath(name), value, most))
		}
	}
	bounded("reportingInstance", e.ReportingInstance, longestInstance)
	bounded("action", e.Action, longestReason)
	bounded("reason", e.Reason, longestReason)
	if len(e.Message) > longestMessage {
		errs = append(errs, field.TooLong(field.NewPath("message"), e.Message, longestMessage))
	}
	if !strict {
		return errs
	}
	errs = append(errs, validation.Enum(e.Type, field.NewPath("type"), corev1.EventTypeNormal, corev1.EventTypeWarning)...)
	if s := e.Series; s != nil {
		if s.Count < 2 {
			errs = append(errs, field.Invalid(field.NewPath("series", "count"), s.Count, "should be at least 2"))
		}
		if s.LastObservedTime.IsZero() {
			errs = append(errs, field.Required(field.NewPath("series", "lastObservedTime"), ""))
		}
	}
	if old == nil {
		return append(errs, validateNoOldFields(e)...)
	}
	return append(errs, validateNewEventUpdate(e, old)...)
}

// validateNoOldFields refuses in new events what only old reporters say.
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
