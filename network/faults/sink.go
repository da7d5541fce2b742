package faults

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
)

// Options of the broadcaster of these events: each reason has its own budget, so that a frequent
// one leaves room for the others.
var Options = record.CorrelatorOptions{SpamKeyFunc: func(e *corev1.Event) string {
	return e.Source.Component + "/" + e.InvolvedObject.Kind + "/" + e.InvolvedObject.Namespace + "/" +
		e.InvolvedObject.Name + "/" + e.Reason
}}

// Sink retries events that a server refuses for a while, as without a quorum: network faults may
// cause that, too. Client-go retries without an answer, for some two minutes, and gives up at every
// answer.
type Sink struct{ record.EventSink }

// Create implements record.EventSink.
func (s Sink) Create(event *corev1.Event) (*corev1.Event, error) {
	made, err := s.EventSink.Create(event)
	return made, forAWhile(err)
}

// Patch implements record.EventSink.
func (s Sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	made, err := s.EventSink.Patch(event, data)
	return made, forAWhile(err)
}

// forAWhile makes an answer that is different later no answer.
func forAWhile(err error) error {
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) {
		return errors.New(err.Error())
	}
	return err
}
