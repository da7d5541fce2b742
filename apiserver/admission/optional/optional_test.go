package optional

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// request describes a write of obj.
type request struct {
	obj, old              runtime.Object
	resource, subresource string
	namespace             string
	user                  string
	dry                   bool
}

func (r request) attributes() admission.Attributes {
	op := admission.Create
	if r.old != nil {
		op = admission.Update
	}
	if r.resource == "" {
		r.resource = "pods"
	}
	if r.namespace == "" {
		r.namespace = "ns"
	}
	return admission.NewAttributesRecord(r.obj, r.old, schema.GroupVersionKind{}, r.namespace, "o",
		schema.GroupVersionResource{Version: "v1", Resource: r.resource}, r.subresource, op, nil, r.dry,
		&user.DefaultInfo{Name: r.user})
}

// run sends a request through a step, both halves.
func run(t *testing.T, step admission.Interface, r request) error {
	t.Helper()
	a := r.attributes()
	if m, ok := step.(admission.MutationInterface); ok && step.Handles(a.GetOperation()) {
		if err := m.Admit(t.Context(), a, nil); err != nil {
			return err
		}
	}
	if v, ok := step.(admission.ValidationInterface); ok && step.Handles(a.GetOperation()) {
		return v.Validate(t.Context(), a, nil)
	}
	return nil
}

func check(t *testing.T, name string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%s: %v, want %q", name, err, want)
	}
}

func newPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i", Image: "i"}},
		Containers:     []corev1.Container{{Name: "c", Image: "c"}},
	}}
	if change != nil {
		change(p)
	}
	return p
}

// namespaces has some that the lister knows, and some that only the API does.
func namespaces(t *testing.T, known []*corev1.Namespace, fresh ...runtime.Object) Namespaces {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, ns := range known {
		if err := index.Add(ns); err != nil {
			t.Fatal(err)
		}
	}
	return Namespaces{listers.NewNamespaceLister(index), fake.NewClientset(fresh...)}
}

func namespace(name string, annotations ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	for i := 0; i < len(annotations); i += 2 {
		ns.Annotations[annotations[i]] = annotations[i+1]
	}
	return ns
}

func TestAlways(t *testing.T) {
	check(t, "admit", run(t, AlwaysAdmit{}, request{obj: newPod(nil)}), "")
	check(t, "deny", run(t, AlwaysDeny{}, request{obj: newPod(nil)}), "admission control is denying all modifications")
	if err := (AlwaysDeny{}).Validate(t.Context(), request{obj: newPod(nil)}.attributes(),
		nil); !apierrors.IsForbidden(err) {
		t.Errorf("the validating half: %v", err)
	}
}

func TestNamespaces(t *testing.T) {
	n := namespaces(t, []*corev1.Namespace{namespace("known")}, namespace("fresh"))
	for _, c := range []struct{ namespace, resource, want string }{
		{"known", "pods", ""}, {"fresh", "pods", ""}, {"gone", "pods", `namespaces "gone" not found`},
		{"gone", "namespaces", ""},
	} {
		check(t, c.namespace,
			run(t, NewNamespaceExists(n), request{obj: newPod(nil), namespace: c.namespace, resource: c.resource}),
			c.want)
	}
	has := func(name string) bool {
		_, err := n.Client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	}
	check(t, "dry run", run(t, NewNamespaceProvision(n), request{obj: newPod(nil), namespace: "gone", dry: true}), "")
	if has("gone") {
		t.Error("a dry run made a namespace")
	}
	for _, name := range []string{"gone", "fresh", "known"} {
		check(t, name, run(t, NewNamespaceProvision(n), request{obj: newPod(nil), namespace: name}), "")
	}
	if !has("gone") || has("known") {
		t.Error("the missing namespace was not made, or another one was")
	}
}

func TestAlwaysPullImages(t *testing.T) {
	step := NewAlwaysPullImages()
	full := newPod(func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Image: "e", ImagePullPolicy: corev1.PullNever}}}
		p.Spec.Volumes = []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{PullPolicy: corev1.PullNever}}}, {}}
	})
	lazy := full.DeepCopy()
	check(t, "a pod", run(t, step, request{obj: full}), "")
	for _, i := range imagesOf(full) {
		if *i.policy != corev1.PullAlways {
			t.Errorf("%s: %s", i.at, *i.policy)
		}
	}
	err := step.Validate(t.Context(), request{obj: lazy}.attributes(), nil)
	for _, at := range []string{"spec.initContainers[0].imagePullPolicy", "spec.containers[0].imagePullPolicy",
		"spec.ephemeralContainers[0].imagePullPolicy",
		`spec.volumes[0].image.pullPolicy: Unsupported value: "Never": supported values: "Always"`} {
		if err == nil || !strings.Contains(err.Error(), at) {
			t.Errorf("a later step changed it back: %v, want %s", err, at)
		}
	}
	old, changed := lazy.DeepCopy(), lazy.DeepCopy()
	check(t, "an update without a new image", run(t, step, request{obj: changed, old: old}), "")
	if changed.Spec.Containers[0].ImagePullPolicy == corev1.PullAlways {
		t.Error("an update without a new image changed the pod")
	}
	changed.Spec.Containers[0].Image = "new"
	check(t, "an update with one", run(t, step, request{obj: changed, old: old}), "")
	if changed.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Error("an update with a new image did not change the pod")
	}
}

func TestHardAntiAffinity(t *testing.T) {
	apart := func(key string) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{
				PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key}}}}
		})
	}
	for key, want := range map[string]string{
		"kubernetes.io/hostname": "",
		"zone":                   "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed",
	} {
		check(t, key, run(t, NewHardAntiAffinity(), request{obj: apart(key)}), want)
		check(t, key+" of a status", run(t, NewHardAntiAffinity(), request{obj: apart(key), subresource: "status"}), "")
	}
	check(t, "none", run(t, NewHardAntiAffinity(), request{obj: newPod(nil)}), "")
}

func TestExtendedResources(t *testing.T) {
	pod := newPod(func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{
			{Key: "example.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1"),
			"cpu": resource.MustParse("1")}
		p.Spec.InitContainers[0].Resources.Requests = corev1.ResourceList{"example.com/fpga": resource.MustParse("1"),
			"example.com/gpu": resource.MustParse("1")}
	})
	check(t, "a pod", run(t, NewExtendedResources(), request{obj: pod}), "")
	var got []string
	for _, tl := range pod.Spec.Tolerations {
		got = append(got, tl.Key+" "+string(tl.Operator)+" "+string(tl.Effect))
	}
	if !slices.Equal(got, []string{"example.com/gpu Exists NoSchedule", "example.com/fpga Exists NoSchedule"}) {
		t.Errorf("tolerates %q", got)
	}
}

func TestExternalIPs(t *testing.T) {
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	const denied = "Use of external IPs is denied by admission control"
	for _, c := range []struct {
		name    string
		is, was runtime.Object
		want    string
	}{
		{"none", service(), nil, ""}, {"one", service("1.2.3.4"), nil, denied},
		{"it had", service("1.2.3.4"), service("1.2.3.4", "5.6.7.8"), ""},
		{"one more", service("1.2.3.4", "5.6.7.8"), service("1.2.3.4"), denied},
		{"another one", service("5.6.7.8"), service("1.2.3.4"), denied},
		{"none any more", service(), service("1.2.3.4"), ""},
	} {
		check(t, c.name, run(t, NewExternalIPs(), request{obj: c.is, old: c.was, resource: "services"}), c.want)
	}
}

// rights are the permissions of a user: verb, resource, subresource, namespace and name.
type rights []string

func (r rights) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(r,
		strings.Join([]string{a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName()}, " ")) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no", nil
}

func TestOwners(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, meta.RESTScopeRoot)
	owned := func(kind string, blocks bool) *corev1.Pod {
		api := "apps/v1"
		if kind == "Node" {
			api = "v1"
		}
		return newPod(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: api, Kind: kind, Name: "r", UID: "u", BlockOwnerDeletion: ptr.To(blocks)}}
		})
	}
	const remove, finalize = "delete pods  ns o", "update replicasets finalizers ns r"
	const cannotDelete = "cannot set an ownerRef on a resource you can't delete: no, <nil>"
	const cannotBlock = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: no, <nil>"
	for _, c := range []struct {
		name        string
		rights      rights
		is, was     runtime.Object
		subresource string
		want        string
	}{
		{"no owner", nil, newPod(nil), nil, "", ""},
		{"a new pod", nil, owned("ReplicaSet", false), nil, "", ""},
		{"a new pod that blocks", nil, owned("ReplicaSet", true), nil, "", cannotBlock},
		{"a new pod that may block", rights{finalize}, owned("ReplicaSet", true), nil, "", ""},
		{"may block everything", rights{"update * finalizers  *"}, owned("ReplicaSet", true), nil, "", ""},
		{"blocks a node", rights{"update nodes finalizers  r"}, owned("Node", true), nil, "", ""},
		{"blocks what is not there", nil, owned("Ship", true), nil, "",
			`no matches for kind "Ship" in version "apps/v1"`},
		{"an owner more", nil, owned("ReplicaSet", false), newPod(nil), "", cannotDelete},
		{"an owner more, may delete", rights{remove}, owned("ReplicaSet", false), newPod(nil), "", ""},
		{"an owner less", nil, newPod(nil), owned("ReplicaSet", false), "", cannotDelete},
		{"begins to block", rights{remove}, owned("ReplicaSet", true), owned("ReplicaSet", false), "", cannotBlock},
		{"stops to block", rights{remove}, owned("ReplicaSet", false), owned("ReplicaSet", true), "", ""},
		{"as it was", nil, owned("ReplicaSet", true), owned("ReplicaSet", true), "", ""},
		{"the status", nil, owned("ReplicaSet", true), newPod(nil), "status", ""},
	} {
		check(t, c.name,
			run(t, NewOwners(c.rights, mapper), request{obj: c.is, old: c.was, subresource: c.subresource}), c.want)
	}
}

func TestNodeSelectors(t *testing.T) {
	const annotation = "scheduler.alpha.kubernetes.io/node-selector"
	n := namespaces(t,
		[]*corev1.Namespace{namespace("silent"), namespace("own", annotation, "env=prod,a=b"),
			namespace("bad", annotation, "env")}, namespace("fresh"))
	step, err := NewNodeSelectors(
		strings.NewReader(
			"podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: env=test, own: 'env=prod,a=b,c=d'}"), n)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace string
		has, gets map[string]string
		want      string
	}{
		{"silent", nil, map[string]string{"env": "test"}, ""},
		{"fresh", map[string]string{"x": "y"}, map[string]string{"env": "test", "x": "y"}, ""},
		{"own", map[string]string{"c": "d"}, map[string]string{"env": "prod", "a": "b", "c": "d"}, ""},
		{"silent", map[string]string{"env": "prod"}, nil,
			"pod node label selector conflicts with its namespace node label selector"},
		{"own", map[string]string{"x": "y"}, nil,
			"pod node label selector labels conflict with its namespace whitelist"},
		{"bad", nil, nil, "invalid selector: [env]"},
		{"gone", nil, nil, `namespaces "gone" not found`},
	} {
		pod := newPod(func(p *corev1.Pod) { p.Spec.NodeSelector = maps.Clone(c.has) })
		check(t, c.namespace, run(t, step, request{obj: pod, namespace: c.namespace}), c.want)
		if c.want == "" && !maps.Equal(pod.Spec.NodeSelector, c.gets) {
			t.Errorf("%s: %v", c.namespace, pod.Spec.NodeSelector)
		}
	}
	for _, config := range []string{"x", "selectors: {}", "podNodeSelectorPluginConfig: {a: b}"} {
		if _, err := NewNodeSelectors(strings.NewReader(config), n); err == nil {
			t.Errorf("%q is accepted", config)
		}
	}
}

func TestTolerationLimits(t *testing.T) {
	const defaults, whitelist = "scheduler.alpha.kubernetes.io/defaultTolerations",
		"scheduler.alpha.kubernetes.io/tolerationsWhitelist"
	n := namespaces(t, []*corev1.Namespace{
		namespace("silent"), namespace("empty", defaults, "", whitelist, ""), namespace("bad", defaults, "x"),
		namespace("own", defaults, `[{"key":"own","operator":"Exists"}]`, whitelist,
			`[{"key":"own","operator":"Exists"},{"key":"more","operator":"Exists"}]`),
	})
	step, err := NewTolerationLimits(strings.NewReader(`
apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1
kind: Configuration
default: [{key: cluster, operator: Exists}]
whitelist: [{key: cluster, operator: Exists}, {key: node.kubernetes.io/memory-pressure, operator: Exists}]`), n)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, namespace string
		has             []string
		asks            bool
		gets            []string
		want            string
	}{
		{"of the cluster", "silent", nil, false, []string{"cluster"}, ""},
		{"of one that wants memory", "silent", nil, true, []string{"cluster", "node.kubernetes.io/memory-pressure"},
			""},
		{"of the namespace", "own", []string{"more"}, false, []string{"more", "own"}, ""},
		{"nothing", "empty", []string{"x"}, false, []string{"x"}, ""},
		{"not of the cluster", "silent", []string{"x"}, false, nil,
			"pod tolerations (possibly merged with namespace default tolerations) conflict with its cluster whitelist"},
		{"not of the namespace", "own", []string{"cluster"}, false, nil, "conflict with its namespace whitelist"},
		{"not readable", "bad", nil, false, nil, "invalid character 'x' looking for beginning of value"},
	} {
		pod := newPod(func(p *corev1.Pod) {
			for _, key := range c.has {
				p.Spec.Tolerations = append(p.Spec.Tolerations,
					corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
			}
			if c.asks {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("1Mi")}
			}
		})
		check(t, c.name, run(t, step, request{obj: pod, namespace: c.namespace}), c.want)
		var got []string
		for _, tl := range pod.Spec.Tolerations {
			got = append(got, tl.Key)
		}
		if c.want == "" && !slices.Equal(got, c.gets) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
	if _, err := NewTolerationLimits(strings.NewReader("whitelst: []"), n); err == nil {
		t.Error("an unknown field is accepted")
	}
}

func TestEventRate(t *testing.T) {
	clock := testclock.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	event := func(namespace, who, object string) request {
		return request{obj: &corev1.Event{InvolvedObject: corev1.ObjectReference{Name: object}}, resource: "events",
			namespace: namespace, user: who}
	}
	for _, c := range []struct {
		kind         string
		other        request // has a bucket of its own
		same         request // has the same
		exhausted    string
		everyoneElse bool
	}{
		{"Server", request{}, event("b", "bob", "y"), "limit reached on type Server for key ", false},
		{"Namespace", event("b", "ann", "x"), event("a", "bob", "y"), "limit reached on type Namespace for key a",
			true},
		{"User", event("a", "bob", "x"), event("b", "ann", "y"), "limit reached on type User for key ann", true},
		{"SourceAndObject", event("a", "ann", "y"), event("b", "bob", "x"),
			"limit reached on type SourceAndObject for key x", true},
	} {
		step, err := NewEventRate(strings.NewReader("limits: [{type: "+c.kind+", qps: 1, burst: 2}]"), clock)
		if err != nil {
			t.Fatal(err)
		}
		one := event("a", "ann", "x")
		check(t, c.kind, run(t, step, one), "")
		check(t, c.kind, run(t, step, c.same), "")
		err = run(t, step, one)
		check(t, c.kind+", the third one", err, c.exhausted)
		if !apierrors.IsTooManyRequests(err) {
			t.Errorf("%s: %v", c.kind, err)
		}
		if c.everyoneElse {
			check(t, c.kind+", another one", run(t, step, c.other), "")
		}
		dry := one
		dry.dry = true
		check(t, c.kind+", a dry run", run(t, step, dry), "")
		check(t, c.kind+", another kind", run(t, step, request{obj: newPod(nil)}), "")
		clock.SetTime(clock.Now().Add(time.Second))
		check(t, c.kind+", a second later", run(t, step, one), "")
	}
	for _, config := range []string{"", "limits: []", "limits: [{type: Ship, qps: 1, burst: 1}]",
		"limits: [{type: User, burst: 1}]", "limits: [{type: User, qps: 1}]",
		"limits: [{type: User, qps: 1, burst: 1, cacheSize: -1}]", "limit: []"} {
		if _, err := NewEventRate(strings.NewReader(config), clock); err == nil {
			t.Errorf("%q is accepted", config)
		}
	}
}
