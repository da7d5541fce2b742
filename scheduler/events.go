package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/barque/barque/internal/lastevents"
)

const (
	eventWriters = 4
	eventBuffer  = 4096 // for each writer; what does not fit is dropped
	eventMemory  = 1024 // events, for each writer, whose repetition is counted and not written anew
)

// recorder writes Kubernetes Events beside everything else. Events tell people what happened;
// nothing depends on them, so under pressure they are dropped and not waited for.
type recorder struct {
	log      *slog.Logger
	client   kubernetes.Interface
	clock    clock.PassiveClock
	source   v1.EventSource
	queues   [eventWriters]chan *v1.Event
	wg       sync.WaitGroup
	dropping sync.Once
}

// newRecorder starts the writers, which end with ctx; wait joins them.
func newRecorder(ctx context.Context, cfg *Config, client kubernetes.Interface) *recorder {
	r := &recorder{
		log: cfg.Logger, client: client, clock: cfg.Clock,
		source: v1.EventSource{Component: v1.DefaultSchedulerName, Host: cfg.Identity},
	}
	for i := range r.queues {
		r.queues[i] = make(chan *v1.Event, eventBuffer)
		r.wg.Go(func() { r.write(ctx, r.queues[i]) })
	}
	return r
}

func (r *recorder) wait() { r.wg.Wait() }

// event notes what happened to a pod. Events of one pod keep their order.
func (r *recorder) event(pod *v1.Pod, kind, reason, action, message string) {
	now := metav1.NewTime(r.clock.Now())
	source := r.source
	if pod.Spec.SchedulerName != "" {
		source.Component = pod.Spec.SchedulerName
	}
	e := &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", pod.Name, now.UnixNano()),
			Namespace: pod.Namespace,
		},
		InvolvedObject: v1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name,
			UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Type: kind, Reason: reason, Action: action, Message: message,
		Source: source, ReportingController: source.Component, ReportingInstance: source.Host,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	h := fnv.New32a()
	h.Write([]byte(pod.UID))
	select {
	case r.queues[h.Sum32()%eventWriters] <- e:
	default:
		r.dropping.Do(func() { r.log.Warn("events come faster than the API server takes them; dropping some") })
	}
}

type eventKey struct {
	uid             types.UID
	reason, message string
}

func (r *recorder) write(ctx context.Context, in <-chan *v1.Event) {
	seen := lru.New(eventMemory) // eventKey → *v1.Event as written
	for {
		select {
		case <-ctx.Done():
			r.writeLast(ctx, seen, in)
			return
		case e := <-in:
			if err := r.writeOne(ctx, seen, e); err != nil && ctx.Err() == nil {
				r.log.Debug("cannot write an event", "namespace", e.Namespace, "pod", e.InvolvedObject.Name, "error", err)
			}
		}
	}
}

// writeLast writes the events that wait at the end of a term. A server that stops still leads then.
// One that has lost its leadership is refused at the first event.
func (r *recorder) writeLast(ctx context.Context, seen *lru.Cache, in <-chan *v1.Event) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastevents.Patience)
	defer cancel()
	for {
		select {
		case e := <-in:
			if err := r.writeOne(ctx, seen, e); err != nil {
				return
			}
		default:
			return
		}
	}
}

func (r *recorder) writeOne(ctx context.Context, seen *lru.Cache, e *v1.Event) error {
	key := eventKey{e.InvolvedObject.UID, e.Reason, e.Message}
	if v, ok := seen.Get(key); ok {
		before := v.(*v1.Event)
		before.Count++
		before.LastTimestamp = e.LastTimestamp
		body, err := json.Marshal(map[string]any{"count": before.Count, "lastTimestamp": before.LastTimestamp})
		if err != nil {
			return err
		}
		if _, err := r.client.CoreV1().Events(e.Namespace).Patch(ctx, before.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}); err == nil {
			return nil
		}
		// It has expired, most likely: begin again.
	}
	seen.Add(key, e)
	_, err := r.client.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}
