package controllers_test

import (
	"cmp"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers"
	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/runtime"
)

// A scenario is something that controllers do, in which their leader ends at every write.
type scenario struct {
	name        string
	controllers string // the controllers that run
	// objects exist before the controllers start. Their effects are complete when change is called.
	objects func() []kruntime.Object
	change  func(t *testing.T, c *controllertest.Cluster)
	takes   time.Duration // in which all is done, also when a leader ends
	jobs    bool          // pods of Jobs succeed after five seconds
	dies    string        // the node that is dead from the change on
	load    int64         // for autoscalers: the CPU usage of all pods together after the change, in thousandths
	// check judges the result. wrote has the controllers' writes since the change.
	check func(t *testing.T, c *controllertest.Cluster, wrote *ledger) error
}

// errEnded is the answer to a leader whose term is over.
var errEnded = apierrors.NewConflict(corev1.Resource("any"), "", errors.New("the term is over"))

// ledger counts the writes of leaders and ends the first one at one of them.
type ledger struct {
	mu      sync.Mutex
	armed   bool
	kill    int  // at which write, 0 for none
	after   bool // after the write took effect, its answer is lost
	end     func()
	writes  []string       // the attempted writes
	created map[string]int // resource/name
	deleted map[string]int
}

func isWrite(a clienttesting.Action) bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "delete-collection"}, a.GetVerb()) &&
		a.GetResource().Resource != "events"
}

// begin notes a write, and reports whether the leader ends at it.
func (l *ledger) begin(a clienttesting.Action) (here bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.armed {
		return false
	}
	name := ""
	switch a := a.(type) {
	case clienttesting.UpdateActionImpl:
		if m, ok := a.GetObject().(metav1.Object); ok {
			name = m.GetName()
		}
	case interface{ GetName() string }:
		name = a.GetName()
	}
	l.writes = append(l.writes,
		strings.Join(strings.Fields(a.GetVerb()+" "+a.GetResource().Resource+" "+name+" "+a.GetSubresource()), " "))
	return len(l.writes) == l.kill
}

func (l *ledger) did(a clienttesting.Action, obj kruntime.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.armed {
		return
	}
	switch a := a.(type) {
	case clienttesting.CreateActionImpl:
		if m, ok := obj.(metav1.Object); ok && a.GetSubresource() == "" {
			l.created[a.GetResource().Resource+"/"+m.GetName()]++
		}
	case clienttesting.DeleteActionImpl:
		l.deleted[a.GetResource().Resource+"/"+a.GetName()]++
	}
}

func (l *ledger) isArmed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.armed
}

// count is how many objects of a resource are in one of its maps.
func count(of map[string]int, resource string) int {
	n := 0
	for name := range of {
		if strings.HasPrefix(name, resource+"/") {
			n++
		}
	}
	return n
}

// call executes a request to the API.
type call func(clienttesting.Action) (kruntime.Object, error)

// callOf makes a leader's way to the API: its writes go into the ledger, and are refused when lead
// has ended.
func callOf(c *controllertest.Cluster, lead context.Context, l *ledger) call {
	return func(a clienttesting.Action) (kruntime.Object, error) {
		switch {
		case lead.Err() != nil && a.GetResource().Resource == "events":
			return nil, nil // the events are dropped
		case lead.Err() != nil:
			return nil, errEnded
		case !isWrite(a):
			return c.Client.Invokes(a, nil)
		}
		here := l.begin(a)
		if here && !l.after {
			l.end()
			return nil, errEnded
		}
		obj, err := c.Client.Invokes(a, nil)
		if err == nil {
			l.did(a, obj)
		}
		if here {
			l.end()
			return nil, errEnded
		}
		return obj, err
	}
}

// clientOf makes the client of a leader.
func clientOf(do call) kubernetes.Interface {
	client := &fake.Clientset{}
	client.AddReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		obj, err := do(a)
		return true, obj, err
	})
	return leader{client, apis{&fakediscovery.FakeDiscovery{Fake: &client.Fake}}}
}

// leader is a client with a discovery.
type leader struct {
	kubernetes.Interface
	apis apis
}

func (l leader) Discovery() discovery.DiscoveryInterfaces { return l.apis }

// lagging makes a client whose watches are late.
func lagging(c *controllertest.Cluster, lag func(resource string) time.Duration) kubernetes.Interface {
	client := &fake.Clientset{}
	client.AddReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		obj, err := c.Client.Invokes(a, nil)
		return true, obj, err
	})
	client.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := lateWatch(c, a, lag, nil)
		return true, w, err
	})
	return client
}

// lateWatch begins a watch that is late. It shows its objects as show makes them, unless that is
// nil.
func lateWatch(
	c *controllertest.Cluster, a clienttesting.Action, lag func(resource string) time.Duration,
	show func(kruntime.Object) kruntime.Object,
) (watch.Interface, error) {
	w, err := c.Client.InvokesWatch(a)
	if err != nil {
		return nil, err
	}
	d := &late{Interface: w, show: show, out: make(chan watch.Event), stop: make(chan struct{})}
	go d.run(lag(a.GetResource().Resource)) // ends with Stop
	return d, nil
}

// late is a watch whose events come late.
type late struct {
	watch.Interface
	show func(kruntime.Object) kruntime.Object
	out  chan watch.Event
	once sync.Once
	stop chan struct{}
}

func (l *late) ResultChan() <-chan watch.Event { return l.out }

func (l *late) Stop() {
	l.once.Do(func() {
		l.Interface.Stop()
		close(l.stop)
	})
}

func (l *late) run(lag time.Duration) {
	defer close(l.out)
	type item struct {
		event watch.Event
		due   time.Time
	}
	var queue []item
	for {
		var out chan<- watch.Event
		var first watch.Event
		var wait <-chan time.Time
		if len(queue) > 0 {
			first = queue[0].event
			if left := time.Until(queue[0].due); left > 0 {
				wait = time.After(left) // brief: virtual time, as of all scenarios
			} else {
				out = l.out
			}
		}
		select {
		case e, open := <-l.Interface.ResultChan():
			if !open {
				return
			}
			if l.show != nil {
				e.Object = l.show(e.Object)
			}
			queue = append(queue, item{e, time.Now().Add(lag)})
		case out <- first:
			queue = queue[1:]
		case <-wait:
		case <-l.stop:
			return
		}
	}
}

// outside is the controllers' environment besides the API. One node may die, nodes called server-…
// are servers, and all certificates are signed.
type outside struct {
	world
	mortal string
	death  atomic.Pointer[time.Time]
}

func (o *outside) die(now time.Time) { o.death.Store(&now) }

func (o *outside) Life(node string) (nodelifecycle.Life, bool) {
	if at := o.death.Load(); at != nil && node == o.mortal {
		return nodelifecycle.Life{State: nodelifecycle.Dead, Since: *at}, true
	}
	return nodelifecycle.Life{State: nodelifecycle.Alive}, true
}

func (o *outside) Confirm(_ context.Context, node *corev1.Node) bool {
	return o.death.Load() == nil || node.Name != o.mortal
}

func (o *outside) IsServer(node *corev1.Node) (server, known bool) {
	return strings.HasPrefix(node.Name, "server-"), true
}

func (o *outside) Sign(*x509.Certificate, crypto.PublicKey, time.Time) ([]byte, error) {
	return []byte("signed"), nil
}

// routines makes a server's controllers.
func (s scenario) routines(
	t *testing.T, c *controllertest.Cluster, factory informers.SharedInformerFactory, o *outside, l *ledger,
	lag func(string) time.Duration,
) []runtime.Routine {
	t.Helper()
	settings := controllers.DefaultSettings()
	settings.Controllers = strings.Split(s.controllers, ",")
	list, err := controllers.New(controllers.Config{
		Informers: factory, Settings: settings,
		ClientsOf: func(user string) controllers.Clients {
			return controllers.Clients{
				API: func(lead context.Context) (kubernetes.Interface, error) {
					return clientOf(rights.guard(t, user, callOf(c, lead, l))), nil
				},
				Config: func(lead context.Context) *rest.Config {
					return &rest.Config{Host: "http://api",
						Transport: &webAPI{do: callOf(c, lead, l), load: func() int64 {
							if l.isArmed() {
								return s.load
							}
							return initialLoad
						}, may: func(r *http.Request) error { return rights.mayRequest(t, user, r) }}}
				},
				Metadata: func(lead context.Context) (metadata.Interface, error) {
					return metadataOf(t, rights.guard(t, user, callOf(c, lead, l)),
						func(
							a clienttesting.Action, show func(kruntime.Object) kruntime.Object,
						) (watch.Interface, error) {
							if err := rights.may(t, user, a); err != nil {
								return nil, err
							}
							return lateWatch(c, a, lag, show)
						}), nil
				},
			}
		},
		CA: o, Signer: o, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, Liveness: o,
		Servers: o, ServerReady: o.ready, Roles: o, LoadBalancers: balancer{},
		QuotaEvaluators: func(list quotav1.ListerForResourceFunc) []quotav1.Evaluator {
			pods := corev1.SchemeGroupVersion.WithResource("pods")
			return []quotav1.Evaluator{
				generic.NewObjectCountEvaluator(pods.GroupResource(), generic.ListResourceUsingListerFunc(list, pods),
					corev1.ResourcePods)}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// lead runs routines until the term ends. The returned function waits for them.
func lead(t *testing.T, term context.Context, list []runtime.Routine) (wait func()) {
	var wg sync.WaitGroup
	for _, r := range list {
		wg.Go(func() {
			if err := r.Run(term, nil); err != nil && term.Err() == nil {
				t.Errorf("%s failed: %v", r.Name, err)
			}
		})
	}
	return wg.Wait
}

// run ends the first leader at its write of number kill, before or after the write takes effect.
// Another server with lagging informers goes on. It returns the writes of the run.
func (s scenario) run(t *testing.T, kill int, after bool, lag func(string) time.Duration) (writes []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, s.objects()...)
		c.Collected = slices.Contains(strings.Split(s.controllers, ","), "garbagecollector")
		c.RunPods("n1", func(*corev1.Pod) bool { return true })
		if s.jobs {
			succeed(t, c)
		}
		stopped, stop := context.WithCancel(context.Background())
		other := informers.NewSharedInformerFactory(lagging(c, lag), 0)
		term1, lose := context.WithCancelCause(stopped)
		ended := make(chan struct{})
		l := &ledger{kill: kill, after: after, created: map[string]int{}, deleted: map[string]int{},
			end: sync.OnceFunc(func() { lose(errors.New("the end of the term")); close(ended) })}
		o := &outside{world: world{make(chan struct{})}, mortal: s.dies}
		first, second := s.routines(t, c, c.Informers, o, l, func(string) time.Duration { return 0 }),
			s.routines(t, c, other, o, l, lag)
		other.StartWithContext(stopped)
		other.WaitForCacheSync(stopped.Done())

		var waits []func()
		c.Start(func(ctx context.Context, _ kubernetes.Interface) error {
			lead(t, term1, first)()
			<-ctx.Done()
			return nil
		})
		time.Sleep(2 * time.Minute)
		l.mu.Lock()
		l.armed = true
		l.mu.Unlock()
		o.die(time.Now())
		s.change(t, c)
		select {
		case <-ended:
			term2, end := context.WithCancel(stopped)
			defer end()
			waits = append(waits, lead(t, term2, second))
		case <-time.After(s.takes):
		}
		time.Sleep(s.takes)
		l.mu.Lock()
		err := s.check(t, c, l)
		writes = slices.Clone(l.writes)
		l.mu.Unlock()
		if err != nil {
			at := "no leader ended"
			if kill > 0 {
				at = fmt.Sprintf("the leader ended at write %d, done %t", kill, after)
			}
			t.Errorf("%s: %v; writes: %s", at, err, strings.Join(writes, ", "))
		}
		stop()
		for _, wait := range waits {
			wait()
		}
		other.Shutdown()
	})
	return writes
}

// succeed lets the pods of Jobs succeed.
func succeed(t *testing.T, c *controllertest.Cluster) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	_, err := c.Informers.Core().V1().Pods().Informer().AddEventHandler(
		cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) {
			pod := now.(*corev1.Pod)
			if ref := metav1.GetControllerOfNoCopy(pod); ref == nil || ref.Kind != "Job" ||
				pod.Status.Phase != corev1.PodRunning {
				return
			}
			time.AfterFunc(5*time.Second, func() {
				pod, err := c.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
				if err != nil || pod.Status.Phase != corev1.PodRunning {
					return
				}
				pod.Status.Phase = corev1.PodSucceeded
				// a conflict is one of another end
				_, _ = c.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			})
		}})
	if err != nil {
		t.Fatal(err)
	}
}

// The leader ends at every write that a controller does: before it, or when it is done and its
// answer is on the way. Another server goes on, whose informers show nothing of the last seconds.
// Nothing is made twice, and nothing is forgotten.
func TestLeaderEndsAtEveryWrite(t *testing.T) {
	const second = time.Second
	lags := map[string]func(string) time.Duration{
		"no lag":     func(string) time.Duration { return 0 },
		"all lag":    func(string) time.Duration { return 3 * second },
		"pods lag":   func(r string) time.Duration { return map[bool]time.Duration{true: 3 * second}[r == "pods"] },
		"owners lag": func(r string) time.Duration { return map[bool]time.Duration{true: 3 * second}[r != "pods"] },
		"history lag": func(r string) time.Duration {
			return map[bool]time.Duration{true: 3 * second}[r == "controllerrevisions" || r == "replicasets" ||
				r == "jobs"]
		},
	}
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			for name, lag := range lags {
				if testing.Short() && name != "all lag" && name != "pods lag" {
					continue
				}
				writes := s.run(t, 0, false, lag)
				if len(writes) == 0 {
					t.Fatal("the controllers wrote nothing: there is nothing to be ended at")
				}
				for kill := 1; kill <= len(writes)+1 && !t.Failed(); kill++ {
					for _, after := range []bool{false, true} {
						s.run(t, kill, after, lag)
					}
				}
				if t.Failed() {
					t.Logf("with %s", name)
					return
				}
			}
		})
	}
}

// withoutScenario are the controllers that no scenario is for, and why.
var withoutScenario = map[string]string{
	"volumeexpand": "writes nothing but events",
}

func TestEveryControllerHasAScenario(t *testing.T) {
	all := map[string]bool{}
	for _, s := range scenarios() {
		for name := range strings.SplitSeq(s.controllers, ",") {
			all[name] = true
		}
	}
	every := scenario{controllers: "*"}
	c := controllertest.New(t)
	for _, r := range every.routines(t, c, c.Informers, &outside{world: world{make(chan struct{})}}, &ledger{}, nil) {
		switch reason := withoutScenario[r.Name]; {
		case all[r.Name] && reason != "":
			t.Errorf("%s has a scenario, and a reason for none: %s", r.Name, reason)
		case !all[r.Name] && reason == "":
			t.Errorf("%s has no scenario in which its leader ends, and no reason in withoutScenario", r.Name)
		}
		delete(all, r.Name)
	}
	for name := range all {
		t.Errorf("there is a scenario of %s, which is no controller", name)
	}
}

func pointer[T any](v T) *T { return &v }

var labelled = map[string]string{"app": "x"}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labelled},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "d", Name: name} }

func selects() *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: labelled} }

func nodesOf(names ...string) []kruntime.Object {
	var out []kruntime.Object
	for _, name := range names {
		out = append(out,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
				Status: corev1.NodeStatus{
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}})
	}
	return out
}

// edit changes an object by a typed client.
func edit[T any](t *testing.T, client interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error)
	Update(ctx context.Context, obj *T, opts metav1.UpdateOptions) (*T, error)
}, name string, change func(*T)) {
	t.Helper()
	obj, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(obj)
	if _, err := client.Update(t.Context(), obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// add creates an object by a typed client.
func add[T any](t *testing.T, client interface {
	Create(ctx context.Context, obj *T, opts metav1.CreateOptions) (*T, error)
}, obj *T) {
	t.Helper()
	if _, err := client.Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectPods checks how many pods there are, and were created and deleted since the change.
func expectPods(t *testing.T, c *controllertest.Cluster, l *ledger, there, created, deleted int) error {
	list, err := c.Client.CoreV1().Pods("d").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	if n, made, gone := len(list.Items), count(l.created, "pods"), count(l.deleted, "pods"); n != there ||
		made != created || gone != deleted {
		return fmt.Errorf("%d pods are there, %d were created and %d deleted; want %d, %d and %d", n, made, gone, there,
			created, deleted)
	}
	return nil
}

// scenarios are all of them: each controller that writes is in one.
func scenarios() []scenario {
	return slices.Concat(workloadScenarios(), moreWorkloadScenarios(), networkScenarios(), nodeScenarios(),
		clusterScenarios(), storageScenarios(), credentialScenarios())
}

func none() []kruntime.Object { return nil }

func workloadScenarios() []scenario {
	set := func(replicas int32) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: named("rs"),
			Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selects(), Template: template()}}
	}
	stateful := func(replicas int32) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{ObjectMeta: named("web"), Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: selects(), Template: template(),
			PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
				// as the API has it
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: pointer(int32(0))}},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}},
			RevisionHistoryLimit: pointer(int32(0)),
		}}
	}
	daemon := func() *appsv1.DaemonSet {
		one := intstr.FromInt32(1)
		return &appsv1.DaemonSet{ObjectMeta: named("ds"),
			Spec: appsv1.DaemonSetSpec{Selector: selects(), Template: template(),
				RevisionHistoryLimit: pointer(int32(0)),
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one,
						MaxSurge: pointer(intstr.FromInt32(0))}}}}
	}
	deploy := func() *appsv1.Deployment {
		one, zero := intstr.FromInt32(1), intstr.FromInt32(0)
		return &appsv1.Deployment{ObjectMeta: named("web"),
			Spec: appsv1.DeploymentSpec{Replicas: pointer(int32(3)), Selector: selects(), Template: template(),
				RevisionHistoryLimit: pointer(int32(0)), ProgressDeadlineSeconds: pointer(int32(600)),
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &zero}}}}
	}
	job := func() *batchv1.Job {
		labels := map[string]string{"job": "j"}
		return &batchv1.Job{ObjectMeta: named("j"), Spec: batchv1.JobSpec{
			Parallelism: pointer(int32(2)), Completions: pointer(int32(4)), BackoffLimit: pointer(int32(6)),
			CompletionMode: pointer(batchv1.NonIndexedCompletion),
			Selector:       &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}},
		}}
	}
	done := func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
		j, err := c.Client.BatchV1().Jobs("d").Get(t.Context(), "j", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if j.Status.Succeeded != 4 || j.Status.Failed != 0 ||
			!slices.ContainsFunc(j.Status.Conditions,
				func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobComplete }) {
			return fmt.Errorf("status %+v", j.Status)
		}
		return expectPods(t, c, l, 4, 4, 0)
	}
	return []scenario{
		{
			name: "a ReplicaSet grows", controllers: "replicaset", takes: time.Minute,
			objects: func() []kruntime.Object { return []kruntime.Object{set(1)} },
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.AppsV1().ReplicaSets("d"), "rs",
					func(s *appsv1.ReplicaSet) { s.Spec.Replicas = pointer(int32(5)) })
			},
			check: func(
				t *testing.T, c *controllertest.Cluster, l *ledger,
			) error {
				return expectPods(t, c, l, 5, 4, 0)
			},
		},
		{
			name: "a ReplicaSet shrinks", controllers: "replicaset", takes: time.Minute,
			objects: func() []kruntime.Object { return []kruntime.Object{set(5)} },
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.AppsV1().ReplicaSets("d"), "rs",
					func(s *appsv1.ReplicaSet) { s.Spec.Replicas = pointer(int32(2)) })
			},
			check: func(
				t *testing.T, c *controllertest.Cluster, l *ledger,
			) error {
				return expectPods(t, c, l, 2, 0, 3)
			},
		},
		{
			name: "a Deployment rolls out", controllers: "deployment,replicaset", takes: 3 * time.Minute,
			objects: func() []kruntime.Object { return []kruntime.Object{deploy()} },
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.AppsV1().Deployments("d"), "web",
					func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "two" })
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				d, err := c.Client.AppsV1().Deployments("d").Get(t.Context(), "web", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if d.Status.UpdatedReplicas != 3 || d.Status.AvailableReplicas != 3 ||
					d.Status.ObservedGeneration != d.Generation || count(l.created, "replicasets") != 1 ||
					count(l.deleted, "replicasets") != 1 {
					return fmt.Errorf("status %+v, created %v, deleted %v", d.Status, l.created, l.deleted)
				}
				return expectPods(t, c, l, 3, 3, 3)
			},
		},
		{
			name: "a StatefulSet begins", controllers: "statefulset", takes: 3 * time.Minute, objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				add(t, c.Client.AppsV1().StatefulSets("d"), stateful(3))
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				if count(l.created, "persistentvolumeclaims") != 3 || count(l.created, "controllerrevisions") != 1 {
					return fmt.Errorf("created %v", l.created)
				}
				return expectPods(t, c, l, 3, 3, 0)
			},
		},
		{
			name: "a StatefulSet shrinks", controllers: "statefulset", takes: 3 * time.Minute,
			objects: func() []kruntime.Object { return []kruntime.Object{stateful(4)} },
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.AppsV1().StatefulSets("d"), "web",
					func(s *appsv1.StatefulSet) { s.Spec.Replicas = pointer(int32(2)) })
			},
			check: func(
				t *testing.T, c *controllertest.Cluster, l *ledger,
			) error {
				return expectPods(t, c, l, 2, 0, 2)
			},
		},
		{
			name: "a StatefulSet rolls out", controllers: "statefulset", takes: 5 * time.Minute,
			objects: func() []kruntime.Object { return []kruntime.Object{stateful(2)} },
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.AppsV1().StatefulSets("d"), "web",
					func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = "two" })
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				s, err := c.Client.AppsV1().StatefulSets("d").Get(t.Context(), "web", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if s.Status.UpdatedReplicas != 2 || s.Status.CurrentRevision != s.Status.UpdateRevision ||
					count(l.created, "controllerrevisions") != 1 || count(l.deleted, "controllerrevisions") != 1 {
					return fmt.Errorf("status %+v, created %v, deleted %v", s.Status, l.created, l.deleted)
				}
				// Its pods keep their names: each was deleted once and created once.
				return cmp.Or(once(l.created, "pods", 2), once(l.deleted, "pods", 2))
			},
		},
		{
			name: "a DaemonSet begins", controllers: "daemonset", takes: time.Minute,
			objects: func() []kruntime.Object { return nodesOf("n1", "n2", "n3") },
			change: func(
				t *testing.T, c *controllertest.Cluster,
			) {
				add(t, c.Client.AppsV1().DaemonSets("d"), daemon())
			},
			check: func(
				t *testing.T, c *controllertest.Cluster, l *ledger,
			) error {
				return expectPods(t, c, l, 3, 3, 0)
			},
		},
		{
			name: "a DaemonSet rolls out", controllers: "daemonset", takes: 5 * time.Minute,
			objects: func() []kruntime.Object { return append(nodesOf("n1", "n2"), daemon()) },
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.AppsV1().DaemonSets("d"), "ds",
					func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "two" })
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				d, err := c.Client.AppsV1().DaemonSets("d").Get(t.Context(), "ds", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if d.Status.UpdatedNumberScheduled != 2 || d.Status.NumberAvailable != 2 {
					return fmt.Errorf("status %+v", d.Status)
				}
				return expectPods(t, c, l, 2, 2, 2)
			},
		},
		{
			name: "a Job runs", controllers: "job", takes: 3 * time.Minute, objects: none, jobs: true,
			change: func(t *testing.T, c *controllertest.Cluster) { add(t, c.Client.BatchV1().Jobs("d"), job()) },
			check:  done,
		},
		{
			name: "an indexed Job runs", controllers: "job", takes: 3 * time.Minute, objects: none, jobs: true,
			change: func(t *testing.T, c *controllertest.Cluster) {
				j := job()
				j.Spec.CompletionMode = pointer(batchv1.IndexedCompletion)
				add(t, c.Client.BatchV1().Jobs("d"), j)
			},
			check: done,
		},
		{
			// The Job of a time ends and is deleted within a second: only the CronJob's status
			// shows that it existed.
			name: "a CronJob whose Jobs are deleted at once", controllers: "cronjob", takes: 150 * time.Second,
			objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				c.Client.PrependReactor("update", "cronjobs",
					func(a clienttesting.Action) (bool, kruntime.Object, error) {
						if a.GetSubresource() == "status" {
							time.AfterFunc(time.Second, func() { // brief: virtual time
								jobs, err := c.Client.BatchV1().Jobs("d").List(context.Background(),
									metav1.ListOptions{})
								if err != nil {
									return
								}
								for _, j := range jobs.Items {
									_ = c.Client.BatchV1().Jobs("d").Delete(context.Background(), j.Name,
										metav1.DeleteOptions{})
								}
							})
						}
						return false, nil, nil
					})
				add(t, c.Client.BatchV1().CronJobs("d"),
					&batchv1.CronJob{ObjectMeta: named("cron"),
						Spec: batchv1.CronJobSpec{Schedule: "* * * * *", ConcurrencyPolicy: batchv1.AllowConcurrent,
							SuccessfulJobsHistoryLimit: pointer(int32(3)), FailedJobsHistoryLimit: pointer(int32(1))}})
			},
			check: func(_ *testing.T, _ *controllertest.Cluster, l *ledger) error {
				if n := count(l.created, "jobs"); n < 2 {
					return fmt.Errorf("only %d jobs were made", n)
				}
				return once(l.created, "jobs", count(l.created, "jobs"))
			},
		},
		{
			name:        "a budget and a Service follow their pods",
			controllers: "replicaset,disruption,endpointslice,endpoints", takes: time.Minute,
			objects: func() []kruntime.Object {
				one := intstr.FromInt32(1)
				return []kruntime.Object{set(2),
					&policyv1.PodDisruptionBudget{ObjectMeta: named("b"),
						Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: selects()}},
					&corev1.Service{ObjectMeta: named("s"),
						Spec: corev1.ServiceSpec{Selector: labelled, ClusterIP: "10.43.0.9",
							Ports: []corev1.ServicePort{{Port: 80}}}},
				}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.AppsV1().ReplicaSets("d"), "rs",
					func(s *appsv1.ReplicaSet) { s.Spec.Replicas = pointer(int32(4)) })
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				b, err := c.Client.PolicyV1().PodDisruptionBudgets("d").Get(t.Context(), "b", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if b.Status.ExpectedPods != 4 || b.Status.CurrentHealthy != 4 || b.Status.DisruptionsAllowed != 1 {
					return fmt.Errorf("budget %+v", b.Status)
				}
				return expectPods(t, c, l, 4, 2, 0)
			},
		},
		{
			name: "a namespace begins", controllers: "serviceaccount,rootca", takes: time.Minute, objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				add(t, c.Client.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "d"}})
			},
			check: func(_ *testing.T, _ *controllertest.Cluster, l *ledger) error {
				return cmp.Or(once(l.created, "serviceaccounts", 1), once(l.created, "configmaps", 1))
			},
		},
		{
			name: "pods get their claims of devices", controllers: "resourceclaim", takes: time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{&resourcev1.ResourceClaimTemplate{ObjectMeta: named("gpus")}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"p", "q"} {
					add(t, c.Client.CoreV1().Pods("d"),
						&corev1.Pod{ObjectMeta: named(name),
							Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
								{Name: "one", ResourceClaimTemplateName: pointer("gpus")},
								{Name: "two", ResourceClaimTemplateName: pointer("gpus")}}}})
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				for _, name := range []string{"p", "q"} {
					pod, err := c.Client.CoreV1().Pods("d").Get(t.Context(), name, metav1.GetOptions{})
					if err != nil {
						return err
					}
					if len(pod.Status.ResourceClaimStatuses) != 2 {
						return fmt.Errorf("claims of pod %s: %+v", name, pod.Status.ResourceClaimStatuses)
					}
				}
				return cmp.Or(once(l.created, "resourceclaims", 4), once(l.deleted, "resourceclaims", 0))
			},
		},
		{
			name: "a claim of a gone pod is released", controllers: "resourceclaim", takes: time.Minute,
			objects: func() []kruntime.Object { return nil },
			change: func(t *testing.T, c *controllertest.Cluster) {
				claim := &resourcev1.ResourceClaim{ObjectMeta: named("held"), Status: resourcev1.ResourceClaimStatus{
					Allocation: &resourcev1.AllocationResult{},
					ReservedFor: []resourcev1.ResourceClaimConsumerReference{
						{Resource: "pods", Name: "gone", UID: "gone"}}}}
				claim.Finalizers = []string{resourcev1.Finalizer}
				add(t, c.Client.ResourceV1().ResourceClaims("d"), claim)
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				claim, err := c.Client.ResourceV1().ResourceClaims("d").Get(t.Context(), "held", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if claim.Status.Allocation != nil || len(claim.Status.ReservedFor) > 0 {
					return fmt.Errorf("it has %+v", claim.Status)
				}
				return once(l.deleted, "resourceclaims", 0)
			},
		},
		{
			name: "a Secret gets its token", controllers: "serviceaccounttoken", takes: time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{&corev1.ServiceAccount{ObjectMeta: named("robot")}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				c.Client.PrependReactor("create", "serviceaccounts",
					func(a clienttesting.Action) (bool, kruntime.Object, error) {
						if a.GetSubresource() != "token" {
							return false, nil, nil
						}
						return true,
							&authenticationv1.TokenRequest{
								Status: authenticationv1.TokenRequestStatus{Token: "signed"}}, nil
					})
				secret := &corev1.Secret{ObjectMeta: named("s"), Type: corev1.SecretTypeServiceAccountToken}
				secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: "robot"}
				add(t, c.Client.CoreV1().Secrets("d"), secret)
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				s, err := c.Client.CoreV1().Secrets("d").Get(t.Context(), "s", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if string(s.Data[corev1.ServiceAccountTokenKey]) != "signed" ||
					len(s.Data[corev1.ServiceAccountRootCAKey]) == 0 {
					return fmt.Errorf("the Secret has %v", s.Data)
				}
				return once(l.deleted, "secrets", 0)
			},
		},
		{
			name: "nodes join", controllers: "nodeipam", takes: time.Minute,
			objects: func() []kruntime.Object { return nodesOf("n1") },
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"n2", "n3", "n4"} {
					add(t, c.Client.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				list, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				blocks := map[string]string{}
				for _, n := range list.Items {
					if other, taken := blocks[n.Spec.PodCIDR]; taken || n.Spec.PodCIDR == "" {
						return fmt.Errorf("node %s has block %q, as %q has", n.Name, n.Spec.PodCIDR, other)
					}
					blocks[n.Spec.PodCIDR] = n.Name
				}
				return nil
			},
		},
	}
}

// once checks that a map has want objects of a resource, each once.
func once(of map[string]int, resource string, want int) error {
	if n := count(of, resource); n != want {
		return fmt.Errorf("%d %s, want %d: %v", n, resource, want, of)
	}
	for name, n := range of {
		if n != 1 && strings.HasPrefix(name, resource+"/") {
			return fmt.Errorf("%s: %d times", name, n)
		}
	}
	return nil
}
