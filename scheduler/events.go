package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/barque/barque/internal/lastevents"
)

const (
	eventWriters = 4
	eventBuffer  = 4096 // events for each writer; an event beyond them is dropped
	eventMemory  = 1024 // events, for each writer, whose repetition is counted and not written anew
)

// recorder writes Kubernetes Events apart from other writes. Events inform people and nothing
// depends on them. Under load they are dropped, never waited for.
type recorder struct {
	log      *slog.Logger
	client   kubernetes.Interface
	clock    clock.PassiveClock
	source   v1.EventSource
	queues   [eventWriters]chan *v1.Event
	wg       sync.WaitGroup
	dropping sync.Once
	stopping chan struct{} // closed by wait: no event follows
	end      context.CancelFunc
}

// newRecorder starts the writers, which wait ends. They outlive ctx: the last writes of a term have
// events too.
func newRecorder(ctx context.Context, cfg *Config, client kubernetes.Interface) *recorder {
	r := &recorder{
		log: cfg.Logger, client: client, clock: cfg.Clock,
		source:   v1.EventSource{Component: v1.DefaultSchedulerName, Host: cfg.Identity},
		stopping: make(chan struct{}),
	}
	ctx, r.end = context.WithCancel(context.WithoutCancel(ctx))
	for i := range r.queues {
		r.queues[i] = make(chan *v1.Event, eventBuffer)
		r.wg.Go(func() { r.write(ctx, r.queues[i]) })
	}
	return r
}

// wait returns when the queued events are written, or after lastevents.Patience. event must not be
// called after it.
func (r *recorder) wait() {
	close(r.stopping)
	defer r.end()
	defer time.AfterFunc(lastevents.Patience, r.end).Stop()
	r.wg.Wait()
}

// event queues an event about a pod. Events of one pod keep their order.
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
		select { // the end comes before the next event
		case <-r.stopping:
			r.writeLast(ctx, seen, in)
			return
		default:
		}
		select {
		case <-r.stopping:
		case e := <-in:
			_ = r.writeOne(ctx, seen, e) // it was logged
		}
	}
}

// writeLast writes the events that are queued at the end of a term. A server that stops still
// leads, so its writes succeed. After a lost leadership the client has ended, and the first event
// fails. A refusal is an answer: the next event may succeed.
func (r *recorder) writeLast(ctx context.Context, seen *lru.Cache, in <-chan *v1.Event) {
	for {
		select {
		case e := <-in:
			err := r.writeOne(ctx, seen, e)
			if answer := apierrors.APIStatus(nil); err != nil && !errors.As(err, &answer) {
				return
			}
		default:
			return
		}
	}
}

// writeOne writes an event, or counts its repetition. It logs its error.
func (r *recorder) writeOne(ctx context.Context, seen *lru.Cache, e *v1.Event) (err error) {
	defer func() {
		if err != nil {
			r.log.Debug("cannot write an event", "namespace", e.Namespace, "pod", e.InvolvedObject.Name, "err", err)
		}
	}()
	key := eventKey{e.InvolvedObject.UID, e.Reason, e.Message}
	if v, ok := seen.Get(key); ok {
		before := v.(*v1.Event)
		before.Count++
		before.LastTimestamp = e.LastTimestamp
		body, err := json.Marshal(map[string]any{"count": before.Count, "lastTimestamp": before.LastTimestamp})
		if err != nil {
			return err
		}
		if _, err := r.client.CoreV1().Events(e.Namespace).Patch(ctx, before.Name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{}); err == nil {
			return nil
		}
		// It has probably expired: a new event is written.
	}
	seen.Add(key, e)
	_, err = r.client.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}
