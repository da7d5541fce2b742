package scheduler

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/barque/barque/scheduler/cache"
	"github.com/barque/barque/scheduler/devices"
	"github.com/barque/barque/scheduler/extender"
	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/queue"
)

// term is the state of one leadership term. The loop's goroutine owns the fields that are not
// marked as shared.
type term struct {
	cfg    *Config
	meters *meters // shared
	log    *slog.Logger
	client kubernetes.Interface
	pods   corelisters.PodLister

	cache    *cache.Cache         // shared
	queue    *queue.Queue         // shared
	nominees *framework.Nominator // shared
	devices  *devices.Devices     // shared
	writes   *writes              // shared
	events   *recorder            // shared
	profiles map[string]*framework.Profile
	// extenders is nil when there are none.
	extenders *extender.Set

	snapshot *cache.Snapshot
	rng      *rand.Rand
	// start is the index at which the next search begins, so that in a large cluster each node gets
	// its turn.
	start int
}

// Run schedules until ctx, the leadership term, ends, and then returns nil. client must be fenced
// by the term and must not be throttled. When Run returns, all its goroutines and informer handlers
// have ended, and it can be called again.
func (s *Scheduler) Run(ctx context.Context, client kubernetes.Interface) error {
	if !s.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer s.running.Store(false)
	t, err := newTerm(ctx, &s.cfg, s.meters, client)
	if err != nil {
		return err
	}
	s.current.Store(t)
	defer s.current.Store(nil)
	// Waited for last: the writes end after ctx, and add the last events.
	defer t.events.wait()
	defer t.writes.wait()
	if err := t.run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

func newTerm(ctx context.Context, cfg *Config, meters *meters, client kubernetes.Interface) (*term, error) {
	t := &term{
		cfg:      cfg,
		meters:   meters,
		log:      cfg.Logger,
		client:   client,
		pods:     cfg.Informers.Core().V1().Pods().Lister(),
		cache:    cache.New(cfg.Clock, cfg.AssumedTTL),
		nominees: framework.NewNominator(),
		devices:  devices.New(cfg.Informers.Resource().V1()),
		writes:   newWrites(cfg.Writes),
		profiles: map[string]*framework.Profile{},
		snapshot: cache.NewSnapshot(),
		rng:      rand.New(rand.NewPCG(cfg.Seed, 0)),
	}
	world := framework.World{
		Client:    client,
		Informers: cfg.Informers,
		NodeInfos: t.snapshot,
		Devices:   t.devices,
		Victims:   meters.victims,
		Nominator: t.nominees,
		Logger:    cfg.Logger,
		Parallel:  framework.Parallel(cfg.Parallelism),
		Evict:     func(victim, preemptor *v1.Pod, done func(error)) { t.evict(ctx, victim, preemptor, done) },
		Beside:    func(pod *v1.Pod, calls func()) { t.writes.do(pod.UID, calls) },
		Event: func(pod *v1.Pod, kind, reason, action, message string) {
			t.events.event(pod, kind, reason, action, message)
		},
		// The queue is made of the profiles, so it is not there yet.
		Denominate: func(pod *v1.Pod) { t.denominate(ctx, pod) },
		Wake:       func(uid types.UID) { t.queue.Wake(uid) },
		Ungate:     func(uid types.UID) { t.queue.Ungate(uid) },
	}
	if len(cfg.Extenders) > 0 {
		var err error
		if t.extenders, err = extender.New(cfg.Extenders, cfg.Logger); err != nil {
			return nil, err
		}
		world.Extenders = extenders{t}
	}
	for _, spec := range cfg.Profiles {
		p, err := framework.NewProfile(ctx, spec, cfg.Registry, world)
		if err != nil {
			return nil, err
		}
		t.profiles[spec.SchedulerName] = p
	}
	t.queue = queue.New(queue.Config{
		Clock:            cfg.Clock,
		Less:             t.profiles[cfg.Profiles[0].SchedulerName].Less,
		RulesFor:         t.rulesFor,
		Logger:           logr.FromSlogHandler(cfg.Logger.Handler()),
		InitialBackoff:   cfg.InitialBackoff,
		MaxBackoff:       cfg.MaxBackoff,
		MaxUnschedulable: cfg.MaxUnschedulable,
	})
	t.events = newRecorder(ctx, cfg, client)
	return t, nil
}

func (t *term) rulesFor(schedulerName string) queue.Rules {
	if p := t.profiles[schedulerName]; p != nil {
		return p
	}
	return nil
}

func (t *term) run(ctx context.Context) error {
	began := t.cfg.Clock.Now()
	stop, err := t.watch(ctx)
	defer stop()
	if err != nil {
		return err
	}
	if err := t.catchUp(ctx); err != nil {
		return err
	}
	active, _, _, _ := t.queue.Len()
	t.log.Info("scheduling", "waiting", active, "prepared", t.cfg.Clock.Since(began))
	if t.cfg.OnStarted != nil {
		t.cfg.OnStarted(ctx)
	}
	for {
		p, err := t.queue.Pop(ctx)
		if err != nil {
			return err
		}
		t.scheduleOne(ctx, p)
	}
}

// catchUp waits until the informers show every pod and every allocated device, as new as the API
// server now. Before, pods that the last leader bound might be missing in the cache. Their room
// would be given away twice.
func (t *term) catchUp(ctx context.Context) error {
	var list *v1.PodList
	err := t.until(ctx, 100*time.Millisecond, func() (done bool) {
		var err error
		if list, err = t.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); err != nil {
			t.log.Warn("cannot list pods at the start of the term; trying again", "err", err)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	left := list.Items
	err = t.until(ctx, 5*time.Millisecond, func() (done bool) {
		for len(left) > 0 && t.hasSeen(ctx, &left[len(left)-1]) {
			left = left[:len(left)-1]
		}
		return len(left) == 0
	})
	if err != nil {
		return err
	}
	return t.catchUpDevices(ctx)
}

func (t *term) hasSeen(ctx context.Context, pod *v1.Pod) bool {
	if pod.Spec.NodeName == "" {
		return true // costs no room; the informer brings it
	}
	if t.cache.Has(pod.UID) || !occupies(pod) {
		return true
	}
	have, err := t.pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil {
		// Not seen yet, or deleted since. Only the API server knows.
		_, err := t.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	// The informer's store runs ahead of our handler: a pod on a node counts when the cache has it.
	c, err := resourceversion.CompareResourceVersion(have.ResourceVersion, pod.ResourceVersion)
	return !occupies(have) && err == nil && c >= 0
}

// maxPause bounds the pauses of until.
const maxPause = 5 * time.Second

// until calls step until it reports done or ctx ends. The pause doubles with each call: a fresh
// wait is checked soon, a long one rarely.
func (t *term) until(ctx context.Context, pause time.Duration, step func() (done bool)) error {
	for ; !step(); pause = min(2*pause, maxPause) {
		timer := t.cfg.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C():
		}
	}
	return nil
}
