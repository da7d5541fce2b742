package core

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/barque/barque/apiserver/resource"
)

// EventTTL is how long an event is kept after its newest change.
const EventTTL = time.Hour

// events declares the events of the core group and, as another form of the same objects, those of
// events.k8s.io.
func events() resource.Resource {
	return &resource.Kind[corev1.Event]{
		GroupVersion: version,
		Name:         "events",
		Singular:     "event",
		ShortNames:   []string{"ev"},
		List:         &corev1.EventList{},
		Aliases: []resource.Alias{
			resource.AliasOf(eventsv1.SchemeGroupVersion, &eventsv1.EventList{}, eventFromEventsV1, eventToEventsV1,
				regardingLabels()),
		},
		Prepare: func(_ context.Context, e, old *corev1.Event) {
			// New-style events may omit their namespace when they name their object.
			if old == nil && e.Namespace == "" {
				e.Namespace = e.InvolvedObject.Namespace
			}
		},
		Validate:       validateEvent,
		CreateOnUpdate: true,
		TTL:            func(*corev1.Event) time.Duration { return EventTTL },
		Columns: []metav1.TableColumnDefinition{
			resource.Column("Last Seen", "string", "Time since the event was last seen."),
			resource.Column("Type", "string", "Normal or Warning."),
			resource.Column("Reason", "string", "Why the event happened, for machines."),
			resource.Column("Object", "string", "What the event is about."),
			resource.WideColumn("Subobject", "string", "Which part of it the event is about."),
			resource.WideColumn("Source", "string", "Who reports the event."),
			resource.Column("Message", "string", "What happened, for people."),
			resource.WideColumn("First Seen", "string", "Time since the event was first seen."),
			resource.WideColumn("Count", "integer", "How often the event was seen."),
			nameWide(),
		},
		Row:    eventRow,
		Fields: eventFields,
	}
}

func nameWide() metav1.TableColumnDefinition {
	c := resource.Name()
	c.Priority = 1
	return c
}

func eventFields(e *corev1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	o := e.InvolvedObject
	return fields.Set{
		"involvedObject.kind":            o.Kind,
		"involvedObject.namespace":       o.Namespace,
		"involvedObject.name":            o.Name,
		"involvedObject.uid":             string(o.UID),
		"involvedObject.apiVersion":      o.APIVersion,
		"involvedObject.resourceVersion": o.ResourceVersion,
		"involvedObject.fieldPath":       o.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}

// regardingLabels are the field labels of events.k8s.io that are called otherwise in core.
func regardingLabels() map[string]string {
	labels := map[string]string{"reportingController": "reportingComponent"}
	for _, f := range []string{"kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"} {
		labels["regarding."+f] = "involvedObject." + f
	}
	return labels
}

func eventRow(e *corev1.Event, now time.Time) []any {
	first, last, count := e.FirstTimestamp, e.LastTimestamp, e.Count
	if first.IsZero() {
		first = metav1.NewTime(e.EventTime.Time)
	}
	switch {
	case e.Series != nil:
		last, count = metav1.NewTime(e.Series.LastObservedTime.Time), e.Series.Count
	case last.IsZero():
		last = first
	}
	if count == 0 {
		count = 1
	}
	return []any{
		resource.Since(last, now),
		e.Type,
		e.Reason,
		strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name,
		e.InvolvedObject.FieldPath,
		eventSource(e),
		strings.TrimSpace(e.Message),
		resource.Since(first, now),
		int64(count),
		e.Name,
	}
}

func eventSource(e *corev1.Event) string {
	component, instance := e.Source.Component, e.Source.Host
	if component == "" {
		component, instance = e.ReportingController, e.ReportingInstance
	}
	if instance == "" {
		return component
	}
	return component + ", " + instance
}
