package queue

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/barque/barque/scheduler/framework"
)

// Rules are the parts of a pod's profile that the queue uses.
type Rules interface {
	// PreEnqueue returns why the pod must not be tried yet, nil if it may.
	PreEnqueue(ctx context.Context, pod *v1.Pod) *fwk.Status
	// Events returns, by plugin, the events that may help a pod it rejected.
	Events() map[string][]fwk.ClusterEventWithHint
}

// Config configures a queue.
type Config struct {
	Clock clock.Clock
	// Less orders the pods that are ready to be tried.
	Less fwk.LessFunc
	// RulesFor returns the rules for a pod that names this scheduler.
	RulesFor func(schedulerName string) Rules
	Logger   logr.Logger
	// A pod that failed n times in a row waits InitialBackoff·2ⁿ⁻¹, at most MaxBackoff.
	InitialBackoff, MaxBackoff time.Duration
	// MaxUnschedulable is after how long a pod is tried again though nothing happened.
	MaxUnschedulable time.Duration
}

// Queue is safe for concurrent use. It has no goroutine: deadlines are checked while Pop waits.
type Queue struct {
	cfg Config

	mu            sync.Mutex
	active        podHeap
	rejected      podHeap // back off after a rejection, while others are tried
	failed        podHeap // back off after an error
	unschedulable map[types.UID]*Pod
	pods          map[types.UID]*Pod // all of the above and those in flight
	flying        int
	events        []happened // since the oldest pod in flight was popped
	inserted      uint64
	// nextWait is not after the end of the first wait in unschedulable; zero when there is none.
	nextWait time.Time
	// wake has room for one token. A change that ends or shortens Pop's wait puts one in.
	wake chan struct{}
}

// happened is an event that pods in flight may have missed.
type happened struct {
	event    fwk.ClusterEvent
	old, new any
}

// New returns an empty queue.
func New(cfg Config) *Queue {
	q := &Queue{
		cfg:           cfg,
		unschedulable: map[types.UID]*Pod{},
		pods:          map[types.UID]*Pod{},
		wake:          make(chan struct{}, 1),
	}
	q.active.less = func(a, b *Pod) bool {
		if cfg.Less(a, b) {
			return true
		}
		return !cfg.Less(b, a) && a.tieBreak(b)
	}
	q.failed.less = func(a, b *Pod) bool { return a.backoffUntil.Before(b.backoffUntil) }
	// Back-offs that end in the same second count as equal, and the pods come in the order of
	// active pods: one event often wakes many.
	q.rejected.less = func(a, b *Pod) bool {
		x, y := a.backoffUntil.Truncate(time.Second), b.backoffUntil.Truncate(time.Second)
		return x.Before(y) || x.Equal(y) && q.active.less(a, b)
	}
	return q
}

// backoff is where a pod backs off. In it, its errors do not change.
func (q *Queue) backoff(p *Pod) *podHeap {
	if p.errors > 0 {
		return &q.failed
	}
	return &q.rejected
}

// tieBreak orders pods that the profile holds equal by name: informers deliver existing objects in
// no order.
func (p *Pod) tieBreak(o *Pod) bool {
	a, b := p.GetPod(), o.GetPod()
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	if a.Name != b.Name {
		return a.Name < b.Name
	}
	return p.insertionOrder < o.insertionOrder
}

// Add puts in a pod that waits for a node.
func (q *Queue) Add(info *framework.PodInfo) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if old := q.pods[info.GetPod().UID]; old != nil {
		q.replace(old, info)
		return
	}
	now := q.cfg.Clock.Now()
	// By the pod's age, not its arrival: a new leader that finds many waiting pods serves the
	// oldest first.
	since := info.GetPod().CreationTimestamp.Time
	if since.IsZero() || since.After(now) {
		since = now
	}
	q.inserted++
	p := &Pod{Info: info, Added: now, timestamp: since, insertionOrder: q.inserted}
	q.pods[p.UID()] = p
	q.enqueue(p)
}

// Update replaces a changed pod. event is the kind of the change.
func (q *Queue) Update(old *v1.Pod, info *framework.PodInfo, event fwk.ClusterEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.pods[info.GetPod().UID]
	if p == nil {
		return
	}
	q.replace(p, info)
	switch p.where {
	case inUnschedulable:
		if p.gate != "" || q.helps(p, happened{event, old, info.GetPod()}) {
			q.wakeUp(p)
		}
	case inFlight:
		q.events = append(q.events, happened{event, old, info.GetPod()})
	}
}

func (q *Queue) replace(p *Pod, info *framework.PodInfo) {
	if p.where == inFlight {
		p.newer = info // the caller of Pop works with the old version
		return
	}
	p.Info = info
	switch p.where {
	case inActive:
		q.active.fix(p)
	case inBackoff:
		q.backoff(p).fix(p)
	}
}

// Delete drops a pod that is gone or has a node.
func (q *Queue) Delete(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.pods[uid]
	if p == nil {
		return
	}
	q.takeOut(p)
	p.deleted = true
	delete(q.pods, uid)
}

// Pop waits for the next pod to try. It fails with the context's cause when ctx ends.
func (q *Queue) Pop(ctx context.Context) (*Pod, error) {
	for {
		p, wait := q.tryPop()
		if p != nil {
			return p, nil
		}
		if err := q.sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// tryPop returns the next pod, or the time until one becomes ready without an event; negative for
// never.
func (q *Queue) tryPop() (*Pod, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.cfg.Clock.Now()
	q.endBackoffs(now)
	q.endWaits(now)
	// A back-off after a rejection only lets other pods go first. A back-off after an error spares
	// the failing part, and is kept.
	for q.active.Len() == 0 && q.rejected.Len() > 0 {
		q.enqueue(q.rejected.take())
	}
	if q.active.Len() == 0 {
		return nil, q.untilNext(now)
	}
	p := q.active.take()
	p.where = inFlight
	p.Attempts++
	p.woken = false
	q.flying++
	return p, 0
}

func (q *Queue) sleep(ctx context.Context, wait time.Duration) error {
	var timeout <-chan time.Time
	if wait >= 0 {
		t := q.cfg.Clock.NewTimer(wait)
		defer t.Stop()
		timeout = t.C()
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-q.wake:
	case <-timeout:
	}
	return nil
}

func (q *Queue) endBackoffs(now time.Time) {
	for _, waiting := range []*podHeap{&q.rejected, &q.failed} {
		for p := waiting.peek(); p != nil && !p.backoffUntil.After(now); p = waiting.peek() {
			waiting.take()
			q.enqueue(p)
		}
	}
}

// endWaits retries the pods that have been unschedulable for too long.
func (q *Queue) endWaits(now time.Time) {
	if q.nextWait.IsZero() || now.Before(q.nextWait) {
		return
	}
	q.nextWait = time.Time{}
	var over []*Pod
	for _, p := range q.unschedulable {
		if p.gate != "" {
			continue
		}
		end := p.rejectedAt.Add(q.cfg.MaxUnschedulable)
		if !end.After(now) {
			over = append(over, p)
		} else if q.nextWait.IsZero() || end.Before(q.nextWait) {
			q.nextWait = end
		}
	}
	for _, p := range over {
		q.wakeUp(p)
	}
}

func (q *Queue) untilNext(now time.Time) time.Duration {
	next := time.Duration(-1)
	if p := q.failed.peek(); p != nil { // none is in rejected
		next = p.backoffUntil.Sub(now)
	}
	if !q.nextWait.IsZero() {
		if d := q.nextWait.Sub(now); next < 0 || d < next {
			next = d
		}
	}
	return next
}

// Done ends the queue's interest in a popped pod: it has a node, or it is gone. Retry can return it
// when the binding fails.
func (q *Queue) Done(p *Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.land(p)
	if q.pods[p.UID()] == p {
		delete(q.pods, p.UID())
	}
}

// Reject gives back a popped pod that no node takes, with the plugins that rejected it.
func (q *Queue) Reject(p *Pod, plugins sets.Set[string]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	missed := q.events
	q.land(p)
	if p.deleted {
		return
	}
	now := q.cfg.Clock.Now()
	p.rejections++
	p.errors = 0
	p.rejectedBy, p.rejectedAt = plugins, now
	p.backoffUntil = now.Add(q.delay(p.rejections))
	p.timestamp = now
	p.where = inUnschedulable
	q.unschedulable[p.UID()] = p
	if q.nextWait.IsZero() {
		q.nextWait = now.Add(q.cfg.MaxUnschedulable)
	}
	if p.woken {
		q.wakeUp(p)
		return
	}
	for _, e := range missed {
		if q.helps(p, e) {
			q.wakeUp(p)
			break
		}
	}
	q.signal()
}

// Retry returns a pod whose attempt ended in an error, in flight or after Done. It is always tried
// again after a back-off. A pod that has returned by an update is left alone.
func (q *Queue) Retry(p *Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.land(p)
	if known := q.pods[p.UID()]; p.deleted || (known != nil && known != p) {
		return
	}
	q.pods[p.UID()] = p
	now := q.cfg.Clock.Now()
	p.errors++
	p.rejectedBy = nil
	p.backoffUntil = now.Add(q.delay(p.errors))
	p.timestamp = now
	q.toBackoff(p)
}

// land ends the flight of a pod in flight. It drops the kept events when no other pod is in flight.
func (q *Queue) land(p *Pod) {
	if p.where != inFlight {
		return
	}
	p.where = nowhere
	if p.newer != nil {
		p.Info, p.newer = p.newer, nil
	}
	if q.flying--; q.flying == 0 {
		q.events = nil
	}
}

func (q *Queue) delay(failures int) time.Duration {
	d := q.cfg.InitialBackoff
	for i := 1; i < failures && d < q.cfg.MaxBackoff; i++ {
		d *= 2
	}
	return min(d, q.cfg.MaxBackoff)
}

// Len returns how many pods are ready, back off, are unschedulable (or gated) and in flight.
func (q *Queue) Len() (active, backoff, unschedulable, flying int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.active.Len(), q.rejected.Len() + q.failed.Len(), len(q.unschedulable), q.flying
}

// signal wakes Pop to look again.
func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
