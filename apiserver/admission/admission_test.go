package admission

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/nodeleases"
)

// request describes a write of obj.
type request struct {
	obj, old              runtime.Object
	group                 string
	resource, subresource string
	name                  string
	op                    admission.Operation
	user                  user.Info
}

func (r request) attributes() admission.Attributes {
	if r.op == "" {
		r.op = admission.Create
	}
	if r.resource == "" {
		r.resource = "pods"
	}
	return admission.NewAttributesRecord(r.obj, r.old, schema.GroupVersionKind{}, "ns", r.name,
		schema.GroupVersionResource{Group: r.group, Version: "v1", Resource: r.resource}, r.subresource, r.op, nil,
		false, r.user)
}

func newPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pod-1"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "c"}},
	}}
	if change != nil {
		change(p)
	}
	return p
}

// One manifest may bring a namespace and a pod in it.
func TestDefaultAccountMayComeAMomentLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accounts := cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		s := NewServiceAccounts(listers.NewServiceAccountLister(accounts), fake.NewClientset())
		admit := func(name string) error {
			pod := newPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = name })
			return s.Admit(t.Context(), request{obj: pod}.attributes(), nil)
		}
		began := time.Now()
		if err := admit("other"); !apierrors.IsForbidden(err) || time.Since(began) > 0 {
			t.Errorf("an account that nobody makes: %v after %v", err, time.Since(began))
		}
		if err := admit(""); !apierrors.IsForbidden(err) {
			t.Errorf("a default account that does not come: %v", err)
		}
		time.AfterFunc(300*time.Millisecond, func() {
			if err := accounts.Add(
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default"}}); err != nil {
				t.Error(err)
			}
		})
		if err := admit(""); err != nil {
			t.Errorf("a default account that comes a moment later: %v", err)
		}
	})
}

func TestServiceAccounts(t *testing.T) {
	account := func(name string, automount *bool) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			AutomountServiceAccountToken: automount,
			ImagePullSecrets:             []corev1.LocalObjectReference{{Name: "pull"}}}
	}
	client := fake.NewClientset(account("default", nil), account("silent", ptr.To(false)))
	lister := informers.NewSharedInformerFactory(client, 0).Core().V1().ServiceAccounts().Lister() // knows nothing
	s := NewServiceAccounts(lister, client)
	for _, c := range []struct {
		name    string
		change  func(*corev1.Pod)
		account string
		mounts  int // containers with a token
		volumes int
	}{
		{"default", nil, "default", 2, 1},
		{"the account says no", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "silent" }, "silent", 0, 0},
		{"the pod says no", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(false) }, "default", 0,
			0},
		{"the pod overrules the account", func(p *corev1.Pod) {
			p.Spec.ServiceAccountName, p.Spec.AutomountServiceAccountToken = "silent", ptr.To(true)
		}, "silent", 2, 1},
		{"a container has its own", func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: tokenMountPath}}
		}, "default", 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := newPod(c.change)
			a := request{obj: pod}.attributes()
			if err := s.Admit(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			mounts := 0
			for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
				for _, container := range list {
					if slices.ContainsFunc(container.VolumeMounts,
						func(m corev1.VolumeMount) bool { return strings.HasPrefix(m.Name, tokenVolume) }) {
						mounts++
					}
				}
			}
			if pod.Spec.ServiceAccountName != c.account || mounts != c.mounts || len(pod.Spec.Volumes) != c.volumes {
				t.Errorf("account %q, %d mounts, %d volumes", pod.Spec.ServiceAccountName, mounts,
					len(pod.Spec.Volumes))
			}
			if len(pod.Spec.ImagePullSecrets) != 1 {
				t.Errorf("pull secrets %v", pod.Spec.ImagePullSecrets)
			}
			before := pod.DeepCopy()
			if err := s.Admit(t.Context(), a, nil); err != nil || len(pod.Spec.Volumes) != len(before.Spec.Volumes) {
				t.Errorf("a second time: %v, volumes %v", err, pod.Spec.Volumes)
			}
		})
	}
	missing := newPod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "nobody" })
	if err := s.Admit(t.Context(), request{obj: missing}.attributes(), nil); !apierrors.IsForbidden(err) {
		t.Errorf("an account that is not there: %v", err)
	}
}

func TestTolerations(t *testing.T) {
	step := NewTolerations(200, 300)
	for name, c := range map[string]struct {
		has  []corev1.Toleration
		want int
	}{
		"none": {nil, 2},
		"one of them": {
			[]corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoExecute}}, 2},
		"everything": {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, 1},
		"other effect": {
			[]corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoSchedule}}, 3},
	} {
		pod := newPod(func(p *corev1.Pod) { p.Spec.Tolerations = c.has })
		for range 2 { // a second run adds nothing
			if err := step.Admit(t.Context(), request{obj: pod}.attributes(), nil); err != nil {
				t.Fatal(err)
			}
		}
		if len(pod.Spec.Tolerations) != c.want {
			t.Errorf("%s: %v", name, pod.Spec.Tolerations)
		}
		want := map[string]int64{corev1.TaintNodeNotReady: 200, corev1.TaintNodeUnreachable: 300}
		for _, added := range pod.Spec.Tolerations[len(c.has):] {
			if added.TolerationSeconds == nil || *added.TolerationSeconds != want[added.Key] {
				t.Errorf("%s: %+v is added", name, added)
			}
		}
	}
}

func TestPriorities(t *testing.T) {
	class := func(name string, value int32, byDefault bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value,
			GlobalDefault: byDefault}
	}
	client := fake.NewClientset()
	informer := informers.NewSharedInformerFactory(client, 0).Scheduling().V1().PriorityClasses()
	for _, c := range []*schedulingv1.PriorityClass{class("high", 1000, false), class("usual", 10, true)} {
		if err := informer.Informer().GetIndexer().Add(c); err != nil {
			t.Fatal(err)
		}
	}
	p := NewPriorities(informer.Lister(), client)
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		class  string
		want   int32
		fails  bool
	}{
		{"the default class", nil, "usual", 10, false},
		{"a named class", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }, "high", 1000, false},
		{"the right number",
			func(p *corev1.Pod) { p.Spec.PriorityClassName, p.Spec.Priority = "high", ptr.To[int32](1000) }, "high",
			1000, false},
		{"a number of one's own", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](7) }, "", 0, true},
		{"no such class", func(p *corev1.Pod) { p.Spec.PriorityClassName = "x" }, "", 0, true},
	} {
		pod := newPod(c.change)
		err := p.Admit(t.Context(), request{obj: pod}.attributes(), nil)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !c.fails &&
			(pod.Spec.PriorityClassName != c.class || *pod.Spec.Priority != c.want ||
				*pod.Spec.PreemptionPolicy != corev1.PreemptLowerPriority) {
			t.Errorf("%s: %q %v", c.name, pod.Spec.PriorityClassName, *pod.Spec.Priority)
		}
	}
}

func TestNodeRestriction(t *testing.T) {
	mine := newPod(func(p *corev1.Pod) {
		p.Spec.NodeName, p.Spec.ServiceAccountName = "n1", "robot"
		p.Spec.Volumes = []corev1.Volume{
			{Name: "v",
				VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}}}
	})
	other := newPod(func(p *corev1.Pod) { p.Name, p.UID, p.Spec.NodeName = "other", "pod-2", "n2" })
	client := fake.NewClientset(mine, other, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-1"}})
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	known := core.Pods().Informer().GetIndexer()
	earlier := mine.DeepCopy() // of the same name: the lister has not seen that it was made again
	earlier.UID = "pod-0"
	if err := known.Add(earlier); err != nil {
		t.Fatal(err)
	}
	n := NewNodeRestriction(core, client, grants{}, func(node string) bool { return node == "member" }, nil)
	kubelet := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}
	node := func(change func(*corev1.Node)) *corev1.Node {
		o := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1",
				Labels: map[string]string{corev1.LabelHostname: "n1", "example.com/x": "y"}}}
		if change != nil {
			change(o)
		}
		return o
	}
	labelled := func(key string) *corev1.Node { return node(func(n *corev1.Node) { n.Labels[key] = "v" }) }
	token := func(name string, uid string) *authenticationv1.TokenRequest {
		r := &authenticationv1.TokenRequest{}
		if name != "" {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: name,
				UID: "pod-1"}
			r.Spec.BoundObjectRef.UID = mine.UID
			if uid != "" {
				r.Spec.BoundObjectRef.UID = "pod-9"
			}
		}
		return r
	}
	mirror := newPod(func(p *corev1.Pod) {
		p.Spec.NodeName = "n1"
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "node-1", Controller: new(true)}}
	})
	owned := func(change func(*corev1.Pod)) *corev1.Pod {
		p := mirror.DeepCopy()
		change(p)
		return p
	}
	mirrors := func(change func(*corev1.PodSpec)) *corev1.Pod {
		p := mirror.DeepCopy()
		change(&p.Spec)
		return p
	}
	volume := func(v corev1.VolumeSource) *corev1.Pod {
		return mirrors(func(s *corev1.PodSpec) { s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: v}} })
	}
	projected := func(s corev1.VolumeProjection) *corev1.Pod {
		return volume(
			corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{s}}})
	}
	env := func(from corev1.EnvVarSource) *corev1.Pod {
		return mirrors(func(s *corev1.PodSpec) { s.Containers[0].Env = []corev1.EnvVar{{Name: "E", ValueFrom: &from}} })
	}
	claiming := func(change func(*corev1.PodStatus)) request {
		p := mine.DeepCopy()
		change(&p.Status)
		return request{obj: p, old: mine, subresource: "status", name: "p", op: admission.Update}
	}
	slice := func(node string) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{NodeName: &node}}
	}
	relabelled := mine.DeepCopy()
	relabelled.Labels = map[string]string{"a": "b"}
	for _, c := range []struct {
		name string
		r    request
		ok   bool
	}{
		{"creates its node", request{obj: node(nil), resource: "nodes", name: "n1"}, true},
		{"creates another node", request{obj: node(nil), resource: "nodes", name: "n2"}, false},
		{"deletes its node", request{old: node(nil), resource: "nodes", name: "n1", op: admission.Delete}, false},
		{"writes its status",
			request{obj: node(nil), old: node(nil), resource: "nodes", subresource: "status", name: "n1",
				op: admission.Update}, true},
		{"changes taints",
			request{obj: node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }), old: node(nil),
				resource: "nodes", name: "n1", op: admission.Update}, false},
		{"comes with taints",
			request{obj: node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }), resource: "nodes",
				name: "n1"}, true},
		{"chooses its pods' addresses",
			request{obj: node(func(n *corev1.Node) { n.Spec.PodCIDR = "192.0.2.1/32" }), resource: "nodes", name: "n1"},
			false},
		{"chooses all its pods' addresses",
			request{obj: node(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"192.0.2.1/32"} }), resource: "nodes",
				name: "n1"}, false},
		{"chooses its pods' addresses later",
			request{obj: node(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.42.1.0/24"} }), old: node(nil),
				resource: "nodes", name: "n1", op: admission.Update}, false},
		{"keeps its pods' addresses",
			request{obj: node(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.42.1.0/24"} }),
				old: node(func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.42.1.0/24"} }), resource: "nodes",
				subresource: "status", name: "n1", op: admission.Update}, true},
		{"sets a zone",
			request{obj: labelled(corev1.LabelTopologyZone), old: node(nil), resource: "nodes", name: "n1",
				op: admission.Update}, true},
		{"sets a free label",
			request{obj: labelled("example.org/z"), old: node(nil), resource: "nodes", name: "n1",
				op: admission.Update}, true},
		{"sets a role",
			request{obj: labelled("node-role.kubernetes.io/control-plane"), old: node(nil), resource: "nodes",
				name: "n1", op: admission.Update}, false},
		{"sets a restricted label",
			request{obj: labelled("node-restriction.kubernetes.io/x"), resource: "nodes", name: "n1"}, false},
		{"drops a restricted label",
			request{obj: node(nil), old: labelled("node-restriction.kubernetes.io/x"), resource: "nodes", name: "n1",
				op: admission.Update}, false},
		{"says that it is a member", request{obj: labelled(nodeleases.MemberLabel), resource: "nodes", name: "n1"},
			false},
		{"says later that it is a member",
			request{obj: labelled(nodeleases.MemberLabel), old: node(nil), resource: "nodes", name: "n1",
				op: admission.Update}, false},
		{"says by its status that it is a member",
			request{obj: labelled(nodeleases.MemberLabel), old: node(nil), resource: "nodes", subresource: "status",
				name: "n1", op: admission.Update}, false},
		{"says that it is a member no more",
			request{obj: node(nil), old: labelled(nodeleases.MemberLabel), resource: "nodes", name: "n1",
				op: admission.Update}, false},
		{"is a member as before",
			request{obj: labelled(nodeleases.MemberLabel), old: labelled(nodeleases.MemberLabel), resource: "nodes",
				name: "n1", op: admission.Update}, true},
		{"mirrors a static pod", request{obj: mirror, name: "p"}, true},
		{"mirrors without an owner", request{obj: owned(func(p *corev1.Pod) { p.OwnerReferences = nil }), name: "p"},
			false},
		{"mirrors with two owners",
			request{
				obj: owned(
					func(p *corev1.Pod) { p.OwnerReferences = append(p.OwnerReferences, p.OwnerReferences[0]) }),
				name: "p"}, false},
		{"mirrors as another node's",
			request{obj: owned(func(p *corev1.Pod) { p.OwnerReferences[0].Name = "n2" }), name: "p"}, false},
		{"mirrors as an earlier node's",
			request{obj: owned(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "node-0" }), name: "p"}, false},
		{"mirrors without a controller",
			request{obj: owned(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }), name: "p"}, false},
		{"mirrors and blocks the node's deletion",
			request{obj: owned(func(p *corev1.Pod) { p.OwnerReferences[0].BlockOwnerDeletion = new(true) }), name: "p"},
			false},
		{"mirrors files of the node",
			request{obj: volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), name: "p"}, true},
		{"mirrors with its labels",
			request{obj: projected(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{}}), name: "p"},
			true},
		{"mirrors the pod's name",
			request{obj: env(corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{}}), name: "p"}, true},
		{"mirrors with an account",
			request{obj: mirrors(func(s *corev1.PodSpec) { s.ServiceAccountName = "admin" }), name: "p"}, false},
		{"mirrors with a pull secret",
			request{
				obj: mirrors(
					func(s *corev1.PodSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "s"}} }),
				name: "p"}, false},
		{"mirrors with devices",
			request{obj: mirrors(func(s *corev1.PodSpec) { s.ResourceClaims = []corev1.PodResourceClaim{{Name: "d"}} }),
				name: "p"}, false},
		{"mirrors with a secret in the environment",
			request{obj: env(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}), name: "p"}, false},
		{"mirrors with all of a secret", request{obj: mirrors(func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}
		}), name: "p"}, false},
		{"mirrors with a config map in the environment",
			request{obj: env(corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{}}), name: "p"}, false},
		{"mirrors with all of a config map", request{obj: mirrors(func(s *corev1.PodSpec) {
			s.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{}}}
		}), name: "p"}, false},
		{"mirrors with a debugger's secret", request{obj: mirrors(func(s *corev1.PodSpec) {
			s.EphemeralContainers = []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
					EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}}}}
		}), name: "p"}, false},
		{"mirrors with a secret",
			request{obj: volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}), name: "p"}, false},
		{"mirrors with a config map",
			request{obj: volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}), name: "p"}, false},
		{"mirrors with a driver", request{obj: volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}), name: "p"},
			false},
		{"mirrors with a claim",
			request{
				obj:  volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}),
				name: "p"}, false},
		{"mirrors with a claim of its own",
			request{obj: volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}), name: "p"}, false},
		{"mirrors with a disk's secret",
			request{
				obj: volume(
					corev1.VolumeSource{
						ISCSI: &corev1.ISCSIVolumeSource{SecretRef: &corev1.LocalObjectReference{Name: "s"}}}),
				name: "p"}, false},
		{"mirrors with a projected secret",
			request{obj: projected(corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}), name: "p"}, false},
		{"mirrors with a projected config map",
			request{obj: projected(corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}), name: "p"},
			false},
		{"mirrors with a token",
			request{
				obj:  projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}),
				name: "p"}, false},
		{"mirrors with a bundle",
			request{obj: projected(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}),
				name: "p"}, false},
		{"says which claim was made", claiming(func(s *corev1.PodStatus) {
			s.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "d", ResourceClaimName: new(string)}}
		}), false},
		{"says which claim was made for a resource", claiming(func(s *corev1.PodStatus) {
			s.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "d"}
		}), false},
		{"says which claim has a part of the node", claiming(func(s *corev1.PodStatus) {
			s.NodeAllocatableResourceClaimStatuses = []corev1.NodeAllocatableResourceClaimStatus{
				{ResourceClaimName: "d"}}
		}), false},
		{"says which phase it is in", claiming(func(s *corev1.PodStatus) { s.Phase = corev1.PodRunning }), true},
		{"creates a pod", request{obj: mine, name: "p"}, false},
		{"deletes its pod", request{old: mine, name: "p", op: admission.Delete}, true},
		{"deletes another's pod", request{old: other, name: "other", op: admission.Delete}, false},
		{"writes its pod's status",
			request{obj: mine, old: mine, subresource: "status", name: "p", op: admission.Update}, true},
		{"labels a pod by its status",
			request{obj: relabelled, old: mine, subresource: "status", name: "p", op: admission.Update}, false},
		{"writes another's status",
			request{obj: other, old: other, subresource: "status", name: "other", op: admission.Update}, false},
		{"updates a pod", request{obj: mine, old: mine, name: "p", op: admission.Update}, false},
		{"evicts its pod", request{obj: &policyv1.Eviction{}, subresource: "eviction", name: "p"}, true},
		{"evicts another's pod", request{obj: &policyv1.Eviction{}, subresource: "eviction", name: "other"}, false},
		{"token for its pod",
			request{obj: token("p", ""), resource: "serviceaccounts", subresource: "token", name: "robot"}, true},
		{"token of another account",
			request{obj: token("p", ""), resource: "serviceaccounts", subresource: "token", name: "admin"}, false},
		{"token for an earlier pod",
			request{obj: token("p", "old"), resource: "serviceaccounts", subresource: "token", name: "robot"}, false},
		{"offers its devices",
			request{obj: slice("n1"), group: resourcev1.GroupName, resource: "resourceslices", name: "s"}, true},
		{"offers another's devices",
			request{obj: slice("n2"), group: resourcev1.GroupName, resource: "resourceslices", name: "s"}, false},
		{"offers devices of all nodes",
			request{obj: &resourcev1.ResourceSlice{}, group: resourcev1.GroupName, resource: "resourceslices",
				name: "s"}, false},
		{"takes its devices away",
			request{old: slice("n1"), group: resourcev1.GroupName, resource: "resourceslices", name: "s",
				op: admission.Delete}, true},
		{"takes another's devices away",
			request{old: slice("n2"), group: resourcev1.GroupName, resource: "resourceslices", name: "s",
				op: admission.Delete}, false},
		{"token for nothing",
			request{obj: token("", ""), resource: "serviceaccounts", subresource: "token", name: "robot"}, false},
	} {
		c.r.user = kubelet
		err := n.Validate(t.Context(), c.r.attributes(), nil)
		if (err == nil) != c.ok || (err != nil && !apierrors.IsForbidden(err)) {
			t.Errorf("%s: %v", c.name, err)
		}
		c.r.user = &user.DefaultInfo{Name: "ann"}
		if err := n.Validate(t.Context(), c.r.attributes(), nil); err != nil {
			t.Errorf("%s, by somebody who is no node: %v", c.name, err)
		}
	}
	member := node(func(n *corev1.Node) { n.Name, n.Labels[nodeleases.MemberLabel] = "member", "" })
	r := request{obj: member, resource: "nodes", name: "member",
		user: &user.DefaultInfo{Name: "system:node:member", Groups: []string{user.NodesGroup}}}
	if err := n.Validate(t.Context(), r.attributes(), nil); err != nil {
		t.Errorf("a member registers with the label: %v", err)
	}
}
