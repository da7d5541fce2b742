package quota

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// newQuota makes a quota of which nothing is used.
func newQuota(name string, hard corev1.ResourceList) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard},
		Status:     corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{}}}
	for r := range hard {
		q.Status.Used[r] = resource.MustParse("0")
	}
	return q
}

// store has the quotas of a namespace, which are changed by compare and set.
type store struct {
	t testing.TB

	mu       sync.Mutex
	revision int
	quotas   map[string]*corev1.ResourceQuota
	before   func(name string) // each write
	writes   int
}

func newStore(t testing.TB, quotas ...*corev1.ResourceQuota) *store {
	s := &store{t: t, revision: 1, quotas: map[string]*corev1.ResourceQuota{}, before: func(string) {}}
	for _, q := range quotas {
		s.quotas[q.Name] = q
	}
	return s
}

// get returns a quota, nil if it is gone.
func (s *store) get(name string) *corev1.ResourceQuota {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quotas[name].DeepCopy()
}

func (s *store) used(name string, r corev1.ResourceName) int64 {
	q := s.get(name).Status.Used[r]
	return q.Value()
}

func (s *store) react(action clienttesting.Action) (bool, runtime.Object, error) {
	switch a := action.(type) {
	case clienttesting.GetAction:
		if q := s.get(a.GetName()); q != nil {
			return true, q, nil
		}
		return true, nil, apierrors.NewNotFound(corev1.Resource("resourcequotas"), a.GetName())
	case clienttesting.UpdateAction:
		sent := a.GetObject().(*corev1.ResourceQuota).DeepCopy()
		s.before(sent.Name)
		return s.set(sent)
	}
	return false, nil, nil
}

func (s *store) set(sent *corev1.ResourceQuota) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.quotas[sent.Name]
	if is == nil {
		return true, nil, apierrors.NewNotFound(corev1.Resource("resourcequotas"), sent.Name)
	}
	if is.ResourceVersion != sent.ResourceVersion {
		return true, nil,
			apierrors.NewConflict(corev1.Resource("resourcequotas"), sent.Name,
				fmt.Errorf("it is at %s", is.ResourceVersion))
	}
	if ok, exceeded := quotav1.LessThanOrEqual(sent.Status.Used, sent.Status.Hard); !ok {
		s.t.Errorf("%s exceeds its %v: %v", sent.Name, exceeded, sent.Status)
	}
	s.revision++
	s.writes++
	sent.ResourceVersion = strconv.Itoa(s.revision)
	s.quotas[sent.Name] = sent
	return true, sent.DeepCopy(), nil
}

// server is a Quota of a server, with the quotas that this server has received.
type server struct {
	*Quota
	heard cache.Indexer
}

func newServer(t testing.TB, s *store) server {
	t.Helper()
	client := &fake.Clientset{}
	client.AddReactor("*", "resourcequotas", s.react)
	factory := informers.NewSharedInformerFactory(client, 0)
	q, err := New(nil, factory, nil, client)
	if err != nil {
		t.Fatal(err)
	}
	q.synced = func() bool { return true }
	sv := server{q, factory.Core().V1().ResourceQuotas().Informer().GetIndexer()}
	sv.hear(s)
	return sv
}

// hear brings the lister up to date.
func (sv server) hear(s *store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.quotas {
		if err := sv.heard.Add(q.DeepCopy()); err != nil {
			s.t.Error(err)
		}
	}
}

func create(obj runtime.Object, gvr schema.GroupVersionResource) admission.Attributes {
	return admission.NewAttributesRecord(obj, nil, schema.GroupVersionKind{}, "ns", "o", gvr, "", admission.Create, nil,
		false, nil)
}

func configMap() admission.Attributes {
	return create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "o"}},
		corev1.SchemeGroupVersion.WithResource("configmaps"))
}

func pod(cpu string) admission.Attributes {
	return create(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "o"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "c", Resources: corev1.ResourceRequirements{Requests: amounts("cpu", cpu)}},
			}}}, pods)
}

// Three servers, a hundred writers each, quotas that all of them use: none is ever exceeded,
// allowed requests are charged, and nothing is refused before the quota is full.
func TestServersNeverExceedAQuota(t *testing.T) {
	const servers, writers, each, hard = 3, 100, 4, 700
	s := newStore(t, newQuota("a", amounts("count/configmaps", strconv.Itoa(hard))),
		newQuota("b", amounts("configmaps", "1000", "pods", "1")))
	var all sync.WaitGroup
	var mu sync.Mutex
	allowed, refused := 0, 0
	var members []server
	for range servers {
		members = append(members, newServer(t, s))
	}
	for i := range servers * writers {
		all.Go(func() {
			for n := range each {
				sv := members[(i+n)%servers]
				err := sv.Validate(t.Context(), configMap(), nil)
				mu.Lock()
				switch {
				case err == nil:
					allowed++
				case apierrors.IsForbidden(err) &&
					strings.Contains(err.Error(),
						"exceeded quota: a, requested: count/configmaps=1, used: count/configmaps=700, limited: count/configmaps=700"):
					refused++
				default:
					t.Errorf("a charge ended with %v", err)
				}
				mu.Unlock()
				if rand.IntN(50) == 0 {
					sv.hear(s)
				}
			}
		})
	}
	all.Wait()
	if allowed != hard || refused != servers*writers*each-hard {
		t.Errorf("%d are allowed, %d refused", allowed, refused)
	}
	if a, b := s.used("a", "count/configmaps"), s.used("b", "configmaps"); a != hard || b != hard {
		t.Errorf("charged are %d and %d", a, b)
	}
	if s.writes > servers*writers*each {
		t.Errorf("%d writes for %d charges", s.writes, allowed)
	}
}

// A request that one quota refuses stays refused when another server changes a second quota
// meanwhile (kubernetes/kubernetes#141904), and its charge to the second is given back.
func TestConflictLetsNothingPass(t *testing.T) {
	for _, c := range []struct {
		name   string
		meddle func(s *store) // when a quota is written for the first time
	}{
		{"no conflict", func(*store) {}},
		{"another server charged the first one", func(s *store) { s.charge("a", "configmaps", 3) }},
		{"the first one is gone", func(s *store) { delete(s.quotas, "a") }},
		{"another server charged the second one", func(s *store) { s.charge("b", "pods", 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, newQuota("a", amounts("configmaps", "100", "requests.cpu", "100")),
				newQuota("b", amounts("pods", "5", "requests.cpu", "2")))
			sv := newServer(t, s)
			var once sync.Once
			s.before = func(string) {
				once.Do(func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					c.meddle(s)
				})
			}
			var charges []*charge
			for _, a := range []admission.Attributes{configMap(), pod("3"), pod("1"), configMap()} {
				charges = append(charges, &charge{a: a, checker: sv.evaluators.Get(a.GetResource().GroupResource()),
					done: make(chan struct{}), paid: map[string]corev1.ResourceList{}})
			}
			sv.charge(t.Context(), "ns", charges)
			for i, want := range []string{"",
				"exceeded quota: b, requested: requests.cpu=3, used: requests.cpu=0, limited: requests.cpu=2", "", ""} {
				if err := charges[i].err; (err == nil) != (want == "") ||
					err != nil && !strings.HasSuffix(err.Error(), want) {
					t.Errorf("request %d: %v, want %q", i, err, want)
				}
			}
			if got := s.used("b", "requests.cpu"); got != 1 {
				t.Errorf("b is charged %d CPUs", got)
			}
			if a := s.get("a"); a != nil && s.used("a", "requests.cpu") != 1 {
				t.Errorf("a is charged %v", a.Status.Used)
			}
		})
	}
}

// charge is a charge by another server. s.mu is held.
func (s *store) charge(name string, r corev1.ResourceName, n int) {
	q := s.quotas[name].DeepCopy()
	q.Status.Used = quotav1.Add(q.Status.Used, corev1.ResourceList{r: count(n)})
	s.revision++
	q.ResourceVersion = strconv.Itoa(s.revision)
	s.quotas[name] = q
}

// A request that has paid one quota is paid back when the other one is full, even if other servers
// write meanwhile.
func TestRefund(t *testing.T) {
	for _, c := range []struct {
		name   string
		meddle func(s *store) // when it is given back
		want   int64
	}{
		{"nobody", func(*store) {}, 0},
		{"another server charges", func(s *store) { s.charge("a", "pods", 2) }, 2},
		{"the quota goes", func(s *store) { delete(s.quotas, "a") }, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, newQuota("a", amounts("pods", "9")), newQuota("b", amounts("pods", "3")))
			sv := newServer(t, s)
			times := map[string]int{}
			s.before = func(name string) {
				s.mu.Lock()
				defer s.mu.Unlock()
				switch times[name]++; {
				case name == "b" && times[name] == 1:
					s.charge("b", "pods", 3)
				case name == "a" && times[name] == 2:
					c.meddle(s)
				}
			}
			err := sv.Validate(t.Context(), pod("1"), nil)
			if !apierrors.IsForbidden(err) ||
				!strings.Contains(err.Error(), "exceeded quota: b, requested: pods=1, used: pods=3, limited: pods=3") {
				t.Errorf("the request: %v", err)
			}
			if got := s.used("b", "pods"); got != 3 {
				t.Errorf("b is charged %d", got)
			}
			if s.get("a") == nil != (c.want < 0) || c.want >= 0 && s.used("a", "pods") != c.want {
				t.Errorf("a is %v", s.get("a"))
			}
		})
	}
}

// If one request is paid back the same sum that another one pays at the same moment, nothing
// is written.
func TestRefundPaysForAnother(t *testing.T) {
	s := newStore(t, newQuota("a", amounts("pods", "9")), newQuota("b", amounts("configmaps", "3")))
	s.charge("a", "pods", 1)
	sv := newServer(t, s)
	newCharge := func(a admission.Attributes) *charge {
		return &charge{a: a, checker: sv.evaluators.Get(a.GetResource().GroupResource()), done: make(chan struct{}),
			paid: map[string]corev1.ResourceList{}}
	}
	refused, pays := newCharge(pod("1")), newCharge(pod("1"))
	refused.paid["a"], refused.refused = corev1.ResourceList{"pods": count(1)}, errors.New("refused")
	sv.charge(t.Context(), "ns", []*charge{refused, pays})
	if refused.err == nil || pays.err != nil || s.used("a", "pods") != 1 || s.writes > 0 {
		t.Errorf("%v, %v, used %d, %d writes", refused.err, pays.err, s.used("a", "pods"), s.writes)
	}
}

func TestQuotaAnswers(t *testing.T) {
	unknown := newQuota("q", amounts("pods", "3"))
	unknown.Status.Used = nil
	dry := func(a admission.Attributes) admission.Attributes {
		return admission.NewAttributesRecord(a.GetObject(), nil, schema.GroupVersionKind{}, "ns", "o", a.GetResource(),
			"", admission.Create, nil, true, nil)
	}
	crontab := create(&metav1.PartialObjectMetadata{},
		schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "crontabs"})
	event := create(&corev1.Event{}, corev1.SchemeGroupVersion.WithResource("events"))
	for _, c := range []struct {
		name  string
		quota *corev1.ResourceQuota
		a     admission.Attributes
		want  string // of the error; "" means that it is allowed
		used  string // pods, or the usage of the quota, afterwards
	}{
		{"within", newQuota("q", amounts("requests.cpu", "3")), pod("3"), "", "3"},
		{"beyond", newQuota("q", amounts("requests.cpu", "3")), pod("3100m"),
			"exceeded quota: q, requested: requests.cpu=3100m, used: requests.cpu=0, limited: requests.cpu=3", "0"},
		{"dry run", newQuota("q", amounts("requests.cpu", "3")), dry(pod("3")), "", "0"},
		{"dry run beyond", newQuota("q", amounts("requests.cpu", "3")), dry(pod("4")), "exceeded quota", "0"},
		{"says nothing", newQuota("q", amounts("limits.memory", "3Gi")), pod("1"),
			"failed quota: q: must specify limits.memory for: c", "0"},
		{"not counted yet", unknown, pod("1"), "status unknown for quota: q, resources: pods", "0"},
		{"a custom resource", newQuota("q", amounts("count/crontabs.example.com", "1")), crontab, "", "1"},
		{"no more of them", newQuota("q", amounts("count/crontabs.example.com", "0")), crontab, "exceeded quota", "0"},
		{"another kind", newQuota("q", amounts("count/crontabs.example.com", "0")), pod("1"), "", "0"},
		{"events", newQuota("q", amounts("count/events", "0")), event, "", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, c.quota)
			err := newServer(t, s).Validate(t.Context(), c.a, nil)
			if c.want == "" && err != nil ||
				c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			for name := range c.quota.Spec.Hard {
				if is := s.get("q").Status.Used[name]; is.Cmp(resource.MustParse(c.used)) != 0 {
					t.Errorf("%s is at %s", name, is.String())
				}
			}
		})
	}
}

// An update is charged the difference.
func TestUpdatesAreChargedTheDifference(t *testing.T) {
	service := func(kind corev1.ServiceType, ports int) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "o", ResourceVersion: "5"},
			Spec: corev1.ServiceSpec{Type: kind, Ports: make([]corev1.ServicePort, ports)}}
	}
	quota := newQuota("q", amounts("services.nodeports", "5", "services", "1"))
	quota.Status.Used = amounts("services.nodeports", "2", "services", "1")
	s := newStore(t, quota)
	sv := newServer(t, s)
	update := func(is, was *corev1.Service) error {
		return sv.Validate(t.Context(),
			admission.NewAttributesRecord(is, was, schema.GroupVersionKind{}, "ns", "o", services, "", admission.Update,
				nil, false, nil), nil)
	}
	if err := update(service(corev1.ServiceTypeNodePort, 4), service(corev1.ServiceTypeNodePort, 2)); err != nil ||
		s.used("q", "services.nodeports") != 4 {
		t.Errorf("two more: %v, %d", err, s.used("q", "services.nodeports"))
	}
	if err := update(service(corev1.ServiceTypeNodePort, 4),
		service(corev1.ServiceTypeClusterIP, 4)); !apierrors.IsForbidden(err) {
		t.Errorf("four more: %v", err)
	}
	if err := update(service(corev1.ServiceTypeClusterIP, 4), service(corev1.ServiceTypeNodePort, 4)); err != nil ||
		s.used("q", "services.nodeports") != 4 {
		t.Errorf("less, which the controller counts: %v, %d", err, s.used("q", "services.nodeports"))
	}
}

// Where there is no quota the API is not called, unless the configuration demands a quota.
func TestLimitedResources(t *testing.T) {
	s := newStore(t)
	sv := newServer(t, s)
	if err := sv.Validate(t.Context(), pod("1"), nil); err != nil {
		t.Error(err)
	}
	client := &fake.Clientset{}
	client.AddReactor("*", "resourcequotas", s.react)
	factory := informers.NewSharedInformerFactory(client, 0)
	q, err := New(strings.NewReader(`
apiVersion: apiserver.config.k8s.io/v1
kind: ResourceQuotaConfiguration
limitedResources: [{resource: pods, matchContains: [cpu]}]`), factory, nil, client)
	if err != nil {
		t.Fatal(err)
	}
	q.synced = func() bool { return true }
	if err := q.Validate(t.Context(), pod("1"), nil); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "insufficient quota to consume: cpu,requests.cpu") {
		t.Errorf("a limited resource: %v", err)
	}
	if err := q.Validate(t.Context(), configMap(), nil); err != nil {
		t.Errorf("another one: %v", err)
	}
	if _, err := New(
		strings.NewReader(
			"apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\nlimitedResources: [{resource: ''}]"), factory, nil, client); err == nil {
		t.Error("a configuration that names no resource is accepted")
	}
}

// A request that is given up does not wait, and a store that does not answer delays no
// other request.
func TestGivingUp(t *testing.T) {
	s := newStore(t, newQuota("q", amounts("pods", "3")))
	sv := newServer(t, s)
	hold := make(chan struct{})
	s.before = func(string) { <-hold }
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- sv.Validate(ctx, pod("1"), nil) }()
	cancel(fmt.Errorf("enough"))
	select {
	case err := <-done:
		if err == nil || err.Error() != "enough" {
			t.Errorf("given up: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
	close(hold)
}

// A server that has just started knows no DeviceClasses yet. A claim waits until it does, and is
// then counted as the extended resource that its class stands for.
func TestClaimsWaitForDeviceClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, newQuota("q", amounts("requests.example.com/gpu", "2")))
		sv := newServer(t, s)
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
			Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/gpu")}}
		factory := informers.NewSharedInformerFactory(fake.NewClientset(class), 0)
		devices, err := FollowDevices(factory)
		if err != nil {
			t.Fatal(err)
		}
		sv.devices, sv.evaluators = devices, generic.NewRegistry(Evaluators(nil, devices, time.Now))
		claim := newDeviceClaim()
		claim.Spec.Devices.Requests = claim.Spec.Devices.Requests[:1]
		claim.Spec.Devices.Requests[0].Exactly.Count = 3
		request := create(claim, deviceClaims)
		if err := sv.Validate(t.Context(), request, nil); !apierrors.IsServerTimeout(err) {
			t.Errorf("before anything is known: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer factory.Shutdown()
		defer cancel()
		time.AfterFunc(time.Second, func() { factory.Start(ctx.Done()) })
		if err := sv.Validate(t.Context(), request, nil); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), "requested: requests.example.com/gpu=3") {
			t.Errorf("more than the quota has: %v", err)
		}
	})
}
