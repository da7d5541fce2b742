package core

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
)

// eventFromEventsV1 reads an events.k8s.io event. The fields that it calls deprecated are those
// of the core type under their old names.
func eventFromEventsV1(in *eventsv1.Event, out *corev1.Event) error {
	out.TypeMeta, out.ObjectMeta = in.TypeMeta, in.ObjectMeta
	out.InvolvedObject = in.Regarding
	out.Related = in.Related
	out.Reason = in.Reason
	out.Message = in.Note
	out.Type = in.Type
	out.Action = in.Action
	out.EventTime = in.EventTime
	out.ReportingController = in.ReportingController
	out.ReportingInstance = in.ReportingInstance
	out.Source = in.DeprecatedSource
	out.FirstTimestamp = in.DeprecatedFirstTimestamp
	out.LastTimestamp = in.DeprecatedLastTimestamp
	out.Count = in.DeprecatedCount
	out.Series = nil
	if in.Series != nil {
		out.Series = &corev1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	return nil
}

// eventToEventsV1 is the inverse of eventFromEventsV1.
func eventToEventsV1(in *corev1.Event, out *eventsv1.Event) error {
	out.TypeMeta, out.ObjectMeta = in.TypeMeta, in.ObjectMeta
	out.Regarding = in.InvolvedObject
	out.Related = in.Related
	out.Reason = in.Reason
	out.Note = in.Message
	out.Type = in.Type
	out.Action = in.Action
	out.EventTime = in.EventTime
	out.ReportingController = in.ReportingController
	out.ReportingInstance = in.ReportingInstance
	out.DeprecatedSource = in.Source
	out.DeprecatedFirstTimestamp = in.FirstTimestamp
	out.DeprecatedLastTimestamp = in.LastTimestamp
	out.DeprecatedCount = in.Count
	out.Series = nil
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	return nil
}
