package resourcequota

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	fakemetadata "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/runtime"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func newQuota(hard, used corev1.ResourceList) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
		Spec:   corev1.ResourceQuotaSpec{Hard: hard},
		Status: corev1.ResourceQuotaStatus{Hard: hard, Used: used}}
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name                string
		hard, used, counted corev1.ResourceList
		recent              recent
		want                corev1.ResourceList
		later               bool
	}{
		{"a new one", amounts("pods", "5"), nil, amounts("pods", "2"), recent{unknown: true}, amounts("pods", "2"),
			false},
		{"as it was", amounts("pods", "5"), amounts("pods", "2"), amounts("pods", "2"), recent{}, amounts("pods", "2"),
			false},
		{"more than was charged", amounts("pods", "5"), amounts("pods", "2"), amounts("pods", "7"),
			recent{unknown: true}, amounts("pods", "7"), false},
		{"some are gone", amounts("pods", "5"), amounts("pods", "5"), amounts("pods", "2"), recent{},
			amounts("pods", "2"), false},
		{"some are gone, others on their way", amounts("pods", "5"), amounts("pods", "5"), amounts("pods", "2"),
			recent{sum: amounts("pods", "1")}, amounts("pods", "3"), true},
		{"all are on their way", amounts("pods", "5"), amounts("pods", "5"), amounts("pods", "2"),
			recent{sum: amounts("pods", "4")}, amounts("pods", "5"), true},
		{"nobody listened", amounts("pods", "5"), amounts("pods", "5"), amounts("pods", "2"), recent{unknown: true},
			amounts("pods", "5"), true},
		{"charged for something else", amounts("pods", "5"), amounts("pods", "5"), amounts("pods", "2"),
			recent{sum: amounts("secrets", "4")}, amounts("pods", "2"), false},
		{"cannot be counted", amounts("pods", "5", "secrets", "5"), amounts("secrets", "3"), amounts("pods", "2"),
			recent{}, amounts("pods", "2", "secrets", "3"), false},
		{"never was counted", amounts("secrets", "5"), nil, nil, recent{}, amounts(), false},
		{"no longer asked for", amounts("pods", "5"), amounts("pods", "1", "secrets", "3"), amounts("pods", "1"),
			recent{}, amounts("pods", "1"), false},
	} {
		status, later := decide(newQuota(c.hard, c.used), c.counted, c.recent)
		if !quotav1.Equals(status.Used, c.want) || !quotav1.Equals(status.Hard, c.hard) || later != c.later {
			t.Errorf("%s: %v, later %t", c.name, status, later)
		}
	}
}

func TestCharges(t *testing.T) {
	began := time.Now()
	key := runtime.Key{Namespace: "ns", Name: "q"}
	c := newCharges(began)
	after := func(d time.Duration) *resource.Quantity {
		q := c.recent(key, began.Add(d)).sum["pods"]
		return &q
	}
	if !c.recent(key, began.Add(inFlight-1)).unknown || c.recent(key, began.Add(inFlight)).unknown {
		t.Error("what was charged before it listened is known too early, or never")
	}
	c.saw(key, amounts("pods", "1"), amounts("pods", "3"), began)
	c.saw(key, amounts("pods", "3"), amounts("pods", "2"), began)
	c.saw(key, nil, amounts("pods", "4"), began.Add(time.Second))
	c.saw(runtime.Key{Name: "other"}, nil, amounts("pods", "9"), began)
	if q := after(inFlight - 1); q.Value() != 6 {
		t.Errorf("both are recent: %s", q)
	}
	if q := after(inFlight); q.Value() != 4 {
		t.Errorf("the second one is: %s", q)
	}
	if q := after(inFlight + time.Second); q.Value() != 0 || len(c.made) != 1 {
		t.Errorf("none is: %s, %v", q, c.made)
	}
}

// ofPods counts pods that have not ended.
type ofPods struct {
	quotav1.Evaluator
	list quotav1.ListerForResourceFunc
}

func (e ofPods) Handles(admission.Attributes) bool { return true }

func (e ofPods) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	return quotav1.Intersection(names, []corev1.ResourceName{"pods"})
}

func (e ofPods) MatchingScopes(
	kruntime.Object, []corev1.ScopedResourceSelectorRequirement,
) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

func (e ofPods) Usage(obj kruntime.Object) (corev1.ResourceList, error) {
	if p, ok := obj.(*corev1.Pod); !ok || p.Status.Phase == corev1.PodSucceeded {
		return corev1.ResourceList{}, nil
	}
	return amounts("pods", "1"), nil
}

func (e ofPods) UsageStats(o quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return generic.CalculateUsageStats(o, generic.ListResourceUsingListerFunc(e.list, pods), generic.MatchesNoScopeFunc,
		e.Usage)
}

func evaluators(list quotav1.ListerForResourceFunc) []quotav1.Evaluator {
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	return []quotav1.Evaluator{
		ofPods{generic.NewObjectCountEvaluator(pods.GroupResource(), nil, ""), list},
		generic.NewObjectCountEvaluator(secrets.GroupResource(), generic.ListResourceUsingListerFunc(list, secrets),
			corev1.ResourceSecrets),
		generic.NewObjectCountEvaluator(quotas.GroupResource(), generic.ListResourceUsingListerFunc(list, quotas),
			corev1.ResourceQuotas),
	}
}

// discovering is the in-memory API with a discovery that knows a custom resource.
type discovering struct {
	kubernetes.Interface
	known *known
}

func (d discovering) Discovery() discovery.DiscoveryInterfaces { return d.known }

type known struct{ *fakediscovery.FakeDiscovery }

func (known) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return []*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "crontabs", Kind: "CronTab", Namespaced: true, Verbs: metav1.Verbs{"list", "watch", "create", "delete"}},
	}}}, nil
}

func TestTheBooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		newPod := func(name string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		}
		hard := amounts("pods", "9", "secrets", "9", "count/crontabs.example.com", "9", "count/none.example.com", "9",
			"count/events", "9")
		c := controllertest.New(t, newQuota(hard, nil), newPod("a"), newPod("b"), newPod("c"))
		scheme := fakemetadata.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		partial := func(api, kind, name string) *metav1.PartialObjectMetadata {
			return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: api, Kind: kind},
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		}
		meta := fakemetadata.NewSimpleMetadataClient(scheme, partial("v1", "Secret", "s"),
			partial("example.com/v1", "CronTab", "t"), partial("example.com/v1", "CronTab", "u"))
		ctrl, err := New(Config{
			Informers: c.Informers, Evaluators: evaluators,
			MetadataFor: func(context.Context) (metadata.Interface, error) { return meta, nil },
			Ignored:     map[schema.GroupResource]struct{}{{Resource: "events"}: {}},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(func(ctx context.Context, client kubernetes.Interface) error {
			return ctrl.Run(ctx, discovering{client, &known{&fakediscovery.FakeDiscovery{Fake: &c.Client.Fake}}})
		})
		used := func() string {
			q, err := c.Client.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			pods, secrets, tabs := q.Status.Used["pods"], q.Status.Used["secrets"],
				q.Status.Used["count/crontabs.example.com"]
			return fmt.Sprintf("%d names, %s pods, %s secrets, %s tabs", len(q.Status.Used), pods.String(),
				secrets.String(), tabs.String())
		}
		expect := func(what, want string) {
			t.Helper()
			controllertest.Eventually(t, what+": "+want, func() bool { return used() == want })
		}
		writes := func() int {
			n := 0
			for _, a := range c.Client.Actions() {
				if a.GetVerb() == "update" && a.GetResource().Resource == "resourcequotas" {
					n++
				}
			}
			return n
		}
		remove := func(name string) {
			t.Helper()
			if err := c.Client.CoreV1().Pods("ns").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		expect("what is there is counted", "3 names, 3 pods, 1 secrets, 2 tabs")
		time.Sleep(time.Minute)
		before := writes()
		time.Sleep(time.Hour)
		if n := writes() - before; n != 0 {
			t.Errorf("%d writes in an hour in which nothing happened", n)
		}
		remove("a")
		expect("a deleted pod is given back", "3 names, 2 pods, 1 secrets, 2 tabs")
		p, err := c.Client.CoreV1().Pods("ns").Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Status.Phase = corev1.PodSucceeded
		if _, err := c.Client.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("so is one that has ended", "3 names, 1 pods, 1 secrets, 2 tabs")
		if err := meta.Tracker().Delete(
			schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "crontabs"}, "ns",
			"t"); err != nil {
			t.Fatal(err)
		}
		expect("and a custom resource", "3 names, 1 pods, 1 secrets, 1 tabs")

		// The API server charges a pod that it has not stored yet: a count must not give it back.
		time.Sleep(time.Minute)
		q, err := c.Client.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		q.Status.Used["pods"] = resource.MustParse("2")
		if _, err := c.Client.CoreV1().ResourceQuotas("ns").UpdateStatus(t.Context(), q,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		remove("c")
		time.Sleep(inFlight / 2)
		if got := used(); got != "3 names, 1 pods, 1 secrets, 1 tabs" {
			t.Errorf("with a pod on its way: %s", got)
		}
		expect("it never came", "3 names, 0 pods, 1 secrets, 1 tabs")
	})
}

// A quota that cannot be counted, as the API does not answer, is tried again.
func TestDiscoveryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := true
		counts := newCounts(t.Context(), nil, func() ([]*metav1.APIResourceList, error) {
			if fails {
				return nil, fmt.Errorf("no answer")
			}
			return known{}.ServerPreferredNamespacedResources()
		}, nil)
		gr := schema.GroupResource{Group: "example.com", Resource: "crontabs"}
		if _, found, err := counts.find(gr); found || err == nil {
			t.Errorf("found %t, %v", found, err)
		}
		fails = false
		time.Sleep(refresh)
		if gvr, found, err := counts.find(gr); !found || err != nil || gvr.Version != "v1" {
			t.Errorf("found %t %v, %v", found, gvr, err)
		}
		if _, found, err := counts.find(schema.GroupResource{Resource: "none"}); found || err != nil {
			t.Errorf("a resource that is not served: %t, %v", found, err)
		}
	})
}

// TestAQuotaCountsItself: the informer that reports quotas also counts them, so a new quota is
// included.
func TestAQuotaCountsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := newQuota(amounts("resourcequotas", "9"), nil)
		other.Name = "other"
		c := controllertest.New(t, newQuota(amounts("resourcequotas", "9"), nil), other)
		ctrl, err := New(Config{
			Informers: c.Informers, Evaluators: evaluators,
			MetadataFor: func(context.Context) (metadata.Interface, error) {
				// it knows of no quota yet
				return fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme()), nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(func(ctx context.Context, client kubernetes.Interface) error {
			return ctrl.Run(ctx, discovering{client, &known{&fakediscovery.FakeDiscovery{Fake: &c.Client.Fake}}})
		})
		expect := func(want int64) {
			t.Helper()
			controllertest.Eventually(t, fmt.Sprintf("%d quotas are used", want), func() bool {
				q, err := c.Client.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
				n, counted := q.Status.Used["resourcequotas"]
				return err == nil && counted && n.Value() == want
			})
		}
		expect(2)
		if err := c.Client.CoreV1().ResourceQuotas("ns").Delete(t.Context(), "other",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // a recent charge is not released
		expect(1)
	})
}

// ofDevices counts the requests of claims of devices, into which it has to look.
type ofDevices struct {
	quotav1.Evaluator
	list quotav1.ListerForResourceFunc
}

func (e ofDevices) Usage(obj kruntime.Object) (corev1.ResourceList, error) {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return nil, fmt.Errorf("a %T is no claim", obj)
	}
	return corev1.ResourceList{
		"gpu.deviceclass.resource.k8s.io/devices": *resource.NewQuantity(int64(len(claim.Spec.Devices.Requests)),
			resource.DecimalSI)}, nil
}

func (e ofDevices) MatchingResources(names []corev1.ResourceName) []corev1.ResourceName {
	return quotav1.Intersection(names, []corev1.ResourceName{"gpu.deviceclass.resource.k8s.io/devices"})
}

func (e ofDevices) MatchingScopes(
	kruntime.Object, []corev1.ScopedResourceSelectorRequirement,
) ([]corev1.ScopedResourceSelectorRequirement, error) {
	return nil, nil
}

func (e ofDevices) UsageStats(o quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return generic.CalculateUsageStats(o, generic.ListResourceUsingListerFunc(e.list, deviceClaims),
		generic.MatchesNoScopeFunc, e.Usage)
}

// ResourceClaims are counted with their requests, and released at their deletion. An API that does
// not serve them has none.
func TestClaimsOfDevices(t *testing.T) {
	for _, served := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
				Spec: resourcev1.ResourceClaimSpec{
					Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "a"}, {Name: "b"}}}}}
			c := controllertest.New(t,
				newQuota(amounts("gpu.deviceclass.resource.k8s.io/devices", "9", "pods", "9"), nil), claim)
			ctrl, err := New(Config{
				Informers: c.Informers, Serves: func(schema.GroupVersionResource) bool { return served },
				Evaluators: func(list quotav1.ListerForResourceFunc) []quotav1.Evaluator {
					return append(evaluators(list),
						ofDevices{generic.NewObjectCountEvaluator(deviceClaims.GroupResource(), nil, ""), list})
				},
				MetadataFor: func(context.Context) (metadata.Interface, error) {
					return fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme()), nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			c.Start(func(ctx context.Context, client kubernetes.Interface) error {
				return ctrl.Run(ctx, discovering{client, &known{&fakediscovery.FakeDiscovery{Fake: &c.Client.Fake}}})
			})
			used := func() string {
				q, err := c.Client.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				devices := q.Status.Used["gpu.deviceclass.resource.k8s.io/devices"]
				return fmt.Sprintf("%d names, %s devices", len(q.Status.Used), devices.String())
			}
			time.Sleep(time.Minute)
			if !served {
				if got := used(); got != "1 names, 0 devices" {
					t.Errorf("not served: %s", got)
				}
				return
			}
			if got := used(); got != "2 names, 2 devices" {
				t.Errorf("a stored claim: %s", got)
			}
			if err := c.Client.ResourceV1().ResourceClaims("ns").Delete(t.Context(), "c",
				metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if got := used(); got != "2 names, 0 devices" {
				t.Errorf("a deleted claim: %s", got)
			}
		})
	}
}

// An object made just before a quota, and shown by its informer later, is counted: no quota was
// charged for it.
func TestCountsWhatComesLateForANewQuota(t *testing.T) {
	at := time.Now()
	var c changes
	a, b := runtime.Key{Namespace: "ns", Name: "a"}, runtime.Key{Namespace: "ns", Name: "b"}
	c.note(a, at)
	c.note(b, at.Add(-settling))
	if keys := c.recent([]runtime.Key{a, b}, at.Add(settling-1)); len(keys) != 1 || keys[0] != a {
		t.Errorf("recent are %v", keys)
	}
	if keys := c.recent([]runtime.Key{a}, at.Add(settling)); len(keys) != 0 || len(c.at) != 0 {
		t.Errorf("later, %v are, and %v is remembered", keys, c.at)
	}
	synctest.Test(t, func(t *testing.T) {
		cluster := controllertest.New(t, newQuota(amounts("pods", "9"), nil))
		ctrl, err := New(Config{Informers: cluster.Informers, Evaluators: evaluators,
			MetadataFor: func(context.Context) (metadata.Interface, error) {
				return fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme()), nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		cluster.Start(func(ctx context.Context, client kubernetes.Interface) error {
			return ctrl.Run(ctx, discovering{client, &known{&fakediscovery.FakeDiscovery{Fake: &cluster.Client.Fake}}})
		})
		time.Sleep(time.Second)
		cluster.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}) // charged to no quota
		time.Sleep(time.Second)
		q, err := cluster.Client.CoreV1().ResourceQuotas("ns").Get(t.Context(), "q", metav1.GetOptions{})
		if used := q.Status.Used["pods"]; err != nil || used.Value() != 1 {
			t.Errorf("%v of pods are used, %v", used.String(), err)
		}
	})
}

// A resource that the API does not serve any more causes no repeated requests, and is found when it
// is back.
func TestDropsAResourceThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "crontabs"}
		client := fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme())
		var lists int
		client.PrependReactor("list", "*", func(clienttesting.Action) (bool, kruntime.Object, error) {
			lists++
			return true, nil, apierrors.NewNotFound(gvr.GroupResource(), "")
		})
		counts := newCounts(ctx, client, known{}.ServerPreferredNamespacedResources,
			func(schema.GroupResource, string, bool) {})
		if _, found, _ := counts.find(gvr.GroupResource()); !found {
			t.Fatal("it is not found")
		}
		if _, err := counts.lister(gvr); err == nil {
			t.Error("it can be listed")
		}
		before := lists
		time.Sleep(time.Hour)
		if lists != before || before == 0 {
			t.Errorf("%d lists, and %d an hour later", before, lists)
		}
		if _, found, _ := counts.find(gvr.GroupResource()); !found {
			t.Error("it is not found again")
		}
		cancel()
		counts.stop()
	})
}
