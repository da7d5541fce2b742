package optional

import (
	"context"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// EventRate refuses events that come too fast, at this server.
type EventRate struct {
	*admission.Handler
	limits []*eventLimit
}

var _ admission.ValidationInterface = (*EventRate)(nil)

// eventLimits are a Configuration of eventratelimit.admission.k8s.io.
type eventLimits struct {
	metav1.TypeMeta `json:",inline"`
	Limits          []struct {
		Type      string `json:"type"`
		QPS       int32  `json:"qps"`
		Burst     int32  `json:"burst"`
		CacheSize int32  `json:"cacheSize"`
	} `json:"limits"`
}

// eventLimit bounds the events of each key.
type eventLimit struct {
	kind string
	key  func(admission.Attributes) string
	make func() flowcontrol.PassiveRateLimiter
	all  *lru.Cache // of limiters, by key
}

// keys returns the key of an event's bucket, by the type of the limit.
var keys = map[string]func(admission.Attributes) string{
	"Server":    func(admission.Attributes) string { return "" },
	"Namespace": func(a admission.Attributes) string { return a.GetNamespace() },
	"User": func(a admission.Attributes) string {
		if a.GetUserInfo() == nil {
			return ""
		}
		return a.GetUserInfo().GetName()
	},
	"SourceAndObject": sourceAndObject,
}

// defaultKeys is the number of keys that a limit keeps.
const defaultKeys = 4096

// NewEventRate returns the step.
func NewEventRate(config io.Reader, clock clock.PassiveClock) (*EventRate, error) {
	var c eventLimits
	if err := decode(config, &c); err != nil {
		return nil, err
	}
	if len(c.Limits) == 0 {
		return nil, fmt.Errorf("limits: Required value")
	}
	e := &EventRate{Handler: admission.NewHandler(admission.Create, admission.Update)}
	for i, l := range c.Limits {
		key, ok := keys[l.Type]
		switch {
		case !ok:
			return nil,
				fmt.Errorf("limits[%d].type: Unsupported value: %q: want Server, Namespace, User or SourceAndObject", i,
					l.Type)
		case l.Burst <= 0:
			return nil, fmt.Errorf("limits[%d].burst: Invalid value: %d: must be positive", i, l.Burst)
		case l.QPS <= 0:
			return nil, fmt.Errorf("limits[%d].qps: Invalid value: %d: must be positive", i, l.QPS)
		case l.CacheSize < 0:
			return nil, fmt.Errorf("limits[%d].cacheSize: Invalid value: %d: must not be negative", i, l.CacheSize)
		}
		size := int(l.CacheSize)
		if size == 0 {
			size = defaultKeys
		}
		e.limits = append(e.limits,
			&eventLimit{kind: l.Type, key: key, all: lru.New(size), make: func() flowcontrol.PassiveRateLimiter {
				return flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(l.QPS), int(l.Burst), clock)
			}})
	}
	return e, nil
}

func sourceAndObject(a admission.Attributes) string {
	var source corev1.EventSource
	var object corev1.ObjectReference
	switch e := a.GetObject().(type) {
	case *corev1.Event:
		source, object = e.Source, e.InvolvedObject
	case *eventsv1.Event:
		source, object = e.DeprecatedSource, e.Regarding
	}
	return strings.Join(
		[]string{source.Component, source.Host, object.Kind, object.Namespace, object.Name, string(object.UID),
			object.APIVersion}, "")
}

// Validate implements admission.ValidationInterface.
func (e *EventRate) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if r := a.GetResource().GroupResource(); r != corev1.Resource("events") && r != eventsv1.Resource("events") ||
		a.IsDryRun() {
		return nil
	}
	var errs []error
	for _, l := range e.limits {
		if key := l.key(a); !l.of(key).TryAccept() {
			errs = append(errs, fmt.Errorf("limit reached on type %v for key %v", l.kind, key))
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		return apierrors.NewTooManyRequestsError(err.Error())
	}
	return nil
}

// of returns the limiter of a key. Two that are made at once let a few more events through.
func (l *eventLimit) of(key string) flowcontrol.PassiveRateLimiter {
	if is, ok := l.all.Get(key); ok {
		return is.(flowcontrol.PassiveRateLimiter)
	}
	made := l.make()
	l.all.Add(key, made)
	return made
}
