package apiserver

import (
	"crypto/x509/pkix"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/nodeauth"
)

func admin() pkix.Name { return subject("admin", "system:masters") }

func subject(name string, groups ...string) pkix.Name {
	return pkix.Name{CommonName: name, Organization: groups}
}

func testPods(t *testing.T, c *cluster) {
	ctx, pods := t.Context(), c.admin.CoreV1().Pods("pods")
	must(
		c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "pods"}},
			metav1.CreateOptions{}))(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a service account: %v", err)
	}
	must(
		c.admin.CoreV1().ServiceAccounts("pods").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	created := must(pods.Create(ctx, pod, metav1.CreateOptions{}))(t)
	if created.Spec.ServiceAccountName != "default" || len(created.Spec.Volumes) != 1 ||
		len(created.Spec.Containers[0].VolumeMounts) != 1 {
		t.Errorf("service account %q, volumes %v", created.Spec.ServiceAccountName, created.Spec.Volumes)
	}
	if len(created.Spec.Tolerations) != 2 {
		t.Errorf("tolerations %v", created.Spec.Tolerations)
	}
	if created.Status.Phase != corev1.PodPending {
		t.Errorf("phase %q", created.Status.Phase)
	}

	bind := func(node string) error {
		return pods.Bind(ctx,
			&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: created.UID},
				Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{})
	}
	earlier := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "earlier"},
		Target: corev1.ObjectReference{Kind: "Node", Name: "node-1"}}
	if err := pods.Bind(ctx, earlier, metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("binding an earlier pod of the name: %v", err)
	}
	if err := bind("node-1"); err != nil {
		t.Fatal(err)
	}
	if err := bind("node-2"); !apierrors.IsConflict(err) {
		t.Errorf("binding twice: %v", err)
	}
	bound := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	if bound.Spec.NodeName != "node-1" {
		t.Errorf("bound to %q", bound.Spec.NodeName)
	}
	testKubelet(t, c, bound)

	running := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	running.Spec.EphemeralContainers = []corev1.EphemeralContainer{
		{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox"}}}
	running.Spec.NodeName = "elsewhere"
	debugged := must(pods.UpdateEphemeralContainers(ctx, "p", running, metav1.UpdateOptions{}))(t)
	if len(debugged.Spec.EphemeralContainers) != 1 || debugged.Spec.NodeName != "node-1" {
		t.Errorf("after adding a debug container: %+v on %q", debugged.Spec.EphemeralContainers, debugged.Spec.NodeName)
	}
	debugged.Spec.EphemeralContainers = nil
	if _, err := pods.UpdateEphemeralContainers(ctx, "p", debugged, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("taking a debug container away: %v", err)
	}

	testBudget(t, c)
	if err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	evicted := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	if evicted.DeletionTimestamp == nil {
		t.Error("an evicted pod on a node is not being deleted gracefully")
	}
	if spent := must(c.admin.PolicyV1().PodDisruptionBudgets("pods").Get(ctx, "b", metav1.GetOptions{}))(
		t); spent.Status.DisruptionsAllowed != 0 || len(spent.Status.DisruptedPods) != 1 {
		t.Errorf("the budget after an eviction is %+v", spent.Status)
	}
	zero := int64(0)
	if err := pods.Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the kubelet's delete: %v", err)
	}
}

// testBudget runs the pod and gives it a budget, which refuses its eviction until its status is
// computed and allows one disruption.
func testBudget(t *testing.T, c *cluster) {
	ctx, pods, budgets := t.Context(), c.admin.CoreV1().Pods("pods"), c.admin.PolicyV1().PodDisruptionBudgets("pods")
	running := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t)
	running.Status.Phase = corev1.PodRunning
	running.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	must(pods.UpdateStatus(ctx, running, metav1.UpdateOptions{}))(t)
	one := intstr.FromInt32(1)
	budget := must(budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{}}},
		metav1.CreateOptions{}))(t)
	// EvictV1 would obey Retry-After, and come again every ten seconds.
	evict := c.admin.CoreV1().RESTClient().Post().MaxRetries(0).Namespace("pods").Resource("pods").Name(
		"p").SubResource("eviction")
	if err := evict.Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "p"}}).Do(
		ctx).Error(); !apierrors.IsTooManyRequests(err) {
		t.Errorf("eviction with a budget that nobody has looked at: %v", err)
	}
	if err := evict.Body(&policyv1.Eviction{}).Do(ctx).Error(); !apierrors.IsBadRequest(err) {
		t.Errorf("an eviction without a name: %v", err)
	}
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1}
	must(budgets.UpdateStatus(ctx, budget, metav1.UpdateOptions{}))(t)
	// kubectl before 1.22, and programs that drain nodes with its code, evict by policy/v1beta1.
	old := `{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"p"},"deleteOptions":{"dryRun":["All"]}}`
	if err := evict.SetHeader("Content-Type", runtime.ContentTypeJSON).Body([]byte(old)).Do(ctx).Error(); err != nil {
		t.Errorf("an eviction of policy/v1beta1: %v", err)
	}
	if pod := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t); pod.DeletionTimestamp != nil {
		t.Error("an eviction of policy/v1beta1 has lost its options: the pod is being deleted")
	}
}

// testKubelet checks which writes of kubelets to a pod on node-1 are allowed.
func testKubelet(t *testing.T, c *cluster, pod *corev1.Pod) {
	ctx := t.Context()
	kubelet := func(node string) kubernetes.Interface {
		return kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, subject("system:node:"+node, "system:nodes")))
	}
	own, other := kubelet("node-1"), kubelet("node-2")
	must(
		own.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
			metav1.CreateOptions{}))(t)
	if _, err := other.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}},
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet made another's node: %v", err)
	}
	list := must(own.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=node-1"}))(t)
	if len(list.Items) != 1 {
		t.Errorf("the kubelet sees %d pods", len(list.Items))
	}
	testPolicyView(t, own, other, pod)
	status := pod.DeepCopy()
	status.Status.Phase = corev1.PodRunning
	must(own.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, status, metav1.UpdateOptions{}))(t)
	status.ResourceVersion = ""
	if _, err := other.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, status,
		metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another kubelet wrote the status: %v", err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
			UID: pod.UID},
	}}
	token := must(
		own.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, "default", request, metav1.CreateOptions{}))(t)
	running := kubernetes.NewForConfigOrDie(
		&restclient.Config{Host: c.host, BearerToken: token.Status.Token,
			TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
	who := must(
		running.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{}))(t)
	if u := who.Status.UserInfo; u.Extra["authentication.kubernetes.io/pod-name"][0] != pod.Name ||
		u.Extra["authentication.kubernetes.io/node-name"][0] != "node-1" {
		t.Errorf("the pod's token is %+v", u)
	}
	request.Spec.Audiences = []string{"vault"}
	if _, err := own.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, "default", request,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet got a token for an audience that the pod does not have: %v", err)
	}
	request.Spec.Audiences, request.Spec.BoundObjectRef = nil, nil
	if _, err := own.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, "default", request,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet got a token that is bound to nothing: %v", err)
	}
	if _, err := own.CoreV1().Secrets(pod.Namespace).Get(ctx, "unrelated",
		metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet read a secret that no pod refers to: %v", err)
	}
}

// testPolicyView: of the pods of all nodes a node sees the fields that network policies use.
func testPolicyView(t *testing.T, own, other kubernetes.Interface, pod *corev1.Pod) {
	ctx := t.Context()
	whole := must(own.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=node-1"}))(
		t).Items[0]
	if whole.Spec.Containers[0].Image == "" || len(whole.ManagedFields) == 0 {
		t.Errorf("of its own pods a node sees %+v", whole)
	}
	if _, err := other.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=node-1"}); !apierrors.IsForbidden(err) {
		t.Errorf("a node lists the pods of another one: %v", err)
	}
	shown := func(how string, p *corev1.Pod) {
		want := nodeauth.PolicyView(&whole)
		want.TypeMeta = p.TypeMeta
		if p.Name != pod.Name || len(p.Spec.Containers) != len(want.Spec.Containers) ||
			!apiequality.Semantic.DeepEqual(p, want) {
			t.Errorf("%s: %+v\nwant %+v", how, p, want)
		}
		for _, c := range p.Spec.Containers {
			if c.Image != "" || len(c.Env) > 0 || len(c.Command) > 0 {
				t.Errorf("%s shows %+v", how, c)
			}
		}
	}
	for node, client := range map[string]kubernetes.Interface{"node-1": own, "node-2": other} {
		list := must(client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{}))(t)
		if len(list.Items) != 1 {
			t.Fatalf("%s sees %d pods", node, len(list.Items))
		}
		shown(node+" lists", &list.Items[0])
		w := must(client.CoreV1().Pods(pod.Namespace).Watch(ctx, metav1.ListOptions{}))(t)
		event := <-w.ResultChan()
		w.Stop()
		if seen, ok := event.Object.(*corev1.Pod); ok {
			shown(node+" watches", seen)
		} else {
			t.Errorf("%s: an event of a %T", node, event.Object)
		}
		named := must(
			client.CoreV1().Pods(pod.Namespace).List(ctx,
				metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name}))(t)
		shown(node+" lists by name", &named.Items[0])
	}
}

func testEvents(t *testing.T, c *cluster) {
	ctx := t.Context()
	must(c.admin.EventsV1().Events("default").Create(ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e1"}, EventTime: metav1.NowMicro(), ReportingController: "test.io/test",
		ReportingInstance: "i",
		Action:            "Testing", Reason: "Tested", Type: corev1.EventTypeNormal, Note: "note",
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"},
	}, metav1.CreateOptions{}))(t)
	core := must(c.admin.CoreV1().Events("default").Get(ctx, "e1", metav1.GetOptions{}))(t)
	if core.Message != "note" || core.InvolvedObject.Name != "p" {
		t.Errorf("as core/v1: %+v", core)
	}
	list := must(c.admin.EventsV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "regarding.name=p"}))(
		t)
	if len(list.Items) != 1 || list.Items[0].Note != "note" {
		t.Errorf("as events.k8s.io/v1: %+v", list.Items)
	}
}
