package scheduler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/scheduler"
)

// apiServer is the part of an API server that the scheduler uses: pods in memory with a watch that
// never overflows, bindings and status patches. The rest is client-go's fake.
type apiServer struct {
	tb        testing.TB
	client    *fake.Clientset
	informers informers.SharedInformerFactory
	watch     *watch.FakeWatcher

	mu      sync.Mutex
	pods    map[string]*v1.Pod
	changed chan struct{} // closed and replaced at every change
	binds   int
	lists   int
	events  []*v1.Event
	// onBind may answer a binding in the server's place, before or after it took effect.
	onBind func(b *v1.Binding, apply func() error) error
	// onDelete answers a deletion in the server's place. It may take its time, as long as ctx
	// lasts.
	onDelete func(ctx context.Context, p *v1.Pod) error
}

func newAPIServer(tb testing.TB, objects ...runtime.Object) *apiServer {
	s := &apiServer{
		tb: tb, client: fake.NewClientset(objects...),
		watch: watch.NewFakeWithChanSize(1<<16, false), pods: map[string]*v1.Pod{}, changed: make(chan struct{}),
	}
	s.client.PrependReactor("*", "pods", s.react)
	// The fake client's own creation of objects costs a millisecond each.
	s.client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		e := a.(clienttesting.CreateActionImpl).Object.(*v1.Event)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
		s.announce()
		return true, e, nil
	})
	s.client.PrependWatchReactor("pods", clienttesting.DefaultWatchReactor(s.watch, nil))
	s.informers = informers.NewSharedInformerFactory(s.client, 0)
	return s
}

func (s *apiServer) react(a clienttesting.Action) (bool, runtime.Object, error) {
	switch a := a.(type) {
	case clienttesting.CreateActionImpl:
		if b, ok := a.Object.(*v1.Binding); ok {
			return true, nil, s.bind(b)
		}
	case clienttesting.ListActionImpl:
		return true, s.list(), nil
	case clienttesting.GetActionImpl:
		if p := s.get(a.Namespace, a.Name); p != nil {
			return true, p, nil
		}
		return true, nil, apierrors.NewNotFound(v1.Resource("pods"), a.Name)
	case clienttesting.PatchActionImpl:
		return s.patch(a)
	case clienttesting.DeleteActionImpl:
		s.remove(a.Namespace, a.Name)
		return true, nil, nil
	}
	return false, nil, nil
}

// termClient is the client of a term. The fake client holds a lock during each call. A call that
// hangs beside others must hang before it takes that lock.
type termClient struct {
	kubernetes.Interface
	s *apiServer
}

func (c termClient) CoreV1() typedcorev1.CoreV1Interface {
	return termCore{c.Interface.CoreV1(), c.s}
}

type termCore struct {
	typedcorev1.CoreV1Interface
	s *apiServer
}

func (c termCore) Pods(namespace string) typedcorev1.PodInterface {
	return termPods{c.CoreV1Interface.Pods(namespace), c.s, namespace}
}

type termPods struct {
	typedcorev1.PodInterface
	s         *apiServer
	namespace string
}

func (p termPods) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	if p.s.onDelete != nil {
		return p.s.onDelete(ctx, p.s.get(p.namespace, name))
	}
	return p.PodInterface.Delete(ctx, name, opts)
}

func (s *apiServer) bind(b *v1.Binding) error {
	apply := func() error {
		p := s.get(b.Namespace, b.Name)
		switch {
		case p == nil:
			return apierrors.NewNotFound(v1.Resource("pods"), b.Name)
		case p.Spec.NodeName != "" || p.UID != b.UID:
			return apierrors.NewConflict(v1.Resource("pods"), b.Name, fmt.Errorf("already on %q", p.Spec.NodeName))
		}
		p.Spec.NodeName = b.Target.Name
		s.put(p)
		return nil
	}
	s.mu.Lock()
	s.binds++
	on := s.onBind
	s.mu.Unlock()
	if on != nil {
		return on(b, apply)
	}
	return apply()
}

func (s *apiServer) patch(a clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
	p := s.get(a.Namespace, a.Name)
	if p == nil {
		return true, nil, apierrors.NewNotFound(v1.Resource("pods"), a.Name)
	}
	before, err := json.Marshal(p)
	if err != nil {
		return true, nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, a.Patch, v1.Pod{})
	if err != nil {
		return true, nil, err
	}
	out := &v1.Pod{}
	if err := json.Unmarshal(after, out); err != nil {
		return true, nil, err
	}
	s.put(out)
	return true, out, nil
}

func (s *apiServer) list() *v1.PodList {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	s.announce()
	l := &v1.PodList{}
	for _, p := range s.pods {
		l.Items = append(l.Items, *p)
	}
	return l
}

func (s *apiServer) get(namespace, name string) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[namespace+"/"+name]; p != nil {
		return p.DeepCopy()
	}
	return nil
}

// put creates or replaces a pod and sends the event to the watchers.
func (s *apiServer) put(p *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := p.Namespace + "/" + p.Name
	kind := watch.Modified
	if s.pods[key] == nil {
		kind = watch.Added
	}
	s.pods[key] = p
	s.watch.Action(kind, p)
	s.announce()
}

func (s *apiServer) remove(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	if p := s.pods[key]; p != nil {
		delete(s.pods, key)
		s.watch.Delete(p)
		s.announce()
	}
}

func (s *apiServer) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// seed puts pods in before the informers start.
func (s *apiServer) seed(pods ...*v1.Pod) {
	for _, p := range pods {
		s.pods[p.Namespace+"/"+p.Name] = p
	}
}

// eventually waits until ok says so about the pods.
func (s *apiServer) eventually(what string, ok func(pods map[string]*v1.Pod) bool) {
	s.tb.Helper()
	timeout := time.After(time.Minute)
	for {
		s.mu.Lock()
		done, changed := ok(s.pods), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, p := range s.pods {
				s.tb.Logf("%s on %q: %v", p.Name, p.Spec.NodeName, p.Status.Conditions)
			}
			s.tb.Fatalf("never came true: %s", what)
		}
	}
}

func (s *apiServer) bound(names ...string) func(map[string]*v1.Pod) bool {
	return func(pods map[string]*v1.Pod) bool {
		for _, n := range names {
			if p := pods["default/"+n]; p == nil || p.Spec.NodeName == "" {
				return false
			}
		}
		return true
	}
}

// start makes a scheduler over the server's informers, and starts these.
func (s *apiServer) start(cfg scheduler.Config) *scheduler.Scheduler {
	s.tb.Helper()
	cfg.Informers = s.informers
	if cfg.InitialBackoff == 0 {
		cfg.InitialBackoff, cfg.MaxBackoff = time.Millisecond, 10*time.Millisecond
	}
	sched, err := scheduler.New(cfg)
	if err != nil {
		s.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.tb.Cleanup(func() {
		cancel()
		s.informers.Shutdown()
	})
	s.informers.Start(ctx.Done())
	s.informers.WaitForCacheSync(ctx.Done())
	return sched
}

// lead runs a term; the function that it returns ends it and waits.
func (s *apiServer) lead(sched *scheduler.Scheduler) (depose func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sched.Run(ctx, termClient{s.client, s}) }()
	var once sync.Once
	depose = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				if err != nil {
					s.tb.Errorf("Run: %v", err)
				}
			case <-time.After(time.Minute):
				s.tb.Error("Run does not return after its context has ended")
			}
		})
	}
	s.tb.Cleanup(depose)
	return depose
}

// eventuallyEvent waits for an event about the pod.
func (s *apiServer) eventuallyEvent(pod, reason, note string) {
	s.tb.Helper()
	s.eventually(fmt.Sprintf("event %s %q about %s", reason, note, pod), func(map[string]*v1.Pod) bool {
		return slices.ContainsFunc(s.events, func(e *v1.Event) bool {
			return e.InvolvedObject.Name == pod && e.Reason == reason && strings.HasPrefix(e.Message, note)
		})
	})
}

func node(name, cpu, memory string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory),
			v1.ResourcePods: resource.MustParse("110"),
		}},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

// created is when all pods were.
var created = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

func pod(name, cpu, memory string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			CreationTimestamp: created},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName,
			Containers: []v1.Container{
				{Name: "c", Image: "nginx", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
					v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory),
				}}}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func ownedBy(uid string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: uid, UID: types.UID(uid), Controller: &yes}}
	}
}

func priority(n int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &n } }
