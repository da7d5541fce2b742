package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// testApps drives the kinds that keep pods running, except for the steps of testScale and
// testStatus with deployments.
func testApps(t *testing.T, c *cluster) {
	t.Run("Discovery", func(t *testing.T) { testAppsDiscovery(t, c) })
	t.Run("StatefulSet", func(t *testing.T) { testStatefulSet(t, c) })
	t.Run("DaemonSet", func(t *testing.T) { testDaemonSet(t, c) })
	t.Run("ControllerRevision", func(t *testing.T) { testControllerRevision(t, c) })
	t.Run("ReplicationController", func(t *testing.T) { testReplicationController(t, c) })
}

func testAppsDiscovery(t *testing.T, c *cluster) {
	found := map[string]metav1.APIResource{}
	for _, gv := range []string{"v1", "apps/v1"} {
		for _, r := range must(c.admin.Discovery().ServerResourcesForGroupVersion(gv))(t).APIResources {
			found[r.Name] = r
		}
	}
	for name, want := range map[string]struct{ short, category string }{
		"statefulsets": {"sts", "all"}, "daemonsets": {"ds", "all"}, "replicationcontrollers": {"rc", "all"},
		"controllerrevisions": {"", ""},
	} {
		r, ok := found[name]
		if !ok || !r.Namespaced || strings.Join(r.ShortNames, " ") != want.short ||
			strings.Join(r.Categories, " ") != want.category {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for _, name := range []string{"statefulsets/status", "daemonsets/status", "replicationcontrollers/status"} {
		if _, ok := found[name]; !ok {
			t.Errorf("%s is not served", name)
		}
	}
	for _, name := range []string{"statefulsets/scale", "replicationcontrollers/scale"} {
		if r := found[name]; r.Kind != "Scale" || r.Group != "autoscaling" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func template(name string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec: podSpec()}
}

// causes are the fields that an error names, with the reasons.
func causes(err error) []string {
	var out []string
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			out = append(out, string(cause.Type)+" "+cause.Field)
		}
	}
	return out
}

func testStatefulSet(t *testing.T, c *cluster) {
	ctx, sets := t.Context(), c.admin.AppsV1().StatefulSets("default")
	made := must(sets.Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{ServiceName: "db",
			Selector: metav1.SetAsLabelSelector(map[string]string{"app": "db"}), Template: template("db")},
		Status: appsv1.StatefulSetStatus{Replicas: 7}}, metav1.CreateOptions{}))(t)
	if made.Generation != 1 || made.Status.Replicas != 0 || *made.Spec.Replicas != 1 ||
		made.Spec.PodManagementPolicy != appsv1.OrderedReadyPodManagement {
		t.Errorf("created generation %d, status %+v, spec %+v", made.Generation, made.Status, made.Spec)
	}

	scale := must(sets.GetScale(ctx, "db", metav1.GetOptions{}))(t)
	scale.Spec.Replicas = 3
	must(sets.UpdateScale(ctx, "db", scale, metav1.UpdateOptions{}))(t)
	if made = must(sets.Get(ctx, "db", metav1.GetOptions{}))(t); *made.Spec.Replicas != 3 || made.Generation != 2 ||
		scale.Status.Selector != "app=db" {
		t.Errorf("scaled to %d, generation %d, selector %q", *made.Spec.Replicas, made.Generation,
			scale.Status.Selector)
	}
	made.Status.Replicas, made.Status.ReadyReplicas, made.Spec.MinReadySeconds = 3, 2, 9
	if made = must(sets.UpdateStatus(ctx, made, metav1.UpdateOptions{}))(t); made.Status.ReadyReplicas != 2 ||
		made.Spec.MinReadySeconds != 0 || made.Generation != 2 {
		t.Errorf("status %+v, min ready %d, generation %d", made.Status, made.Spec.MinReadySeconds, made.Generation)
	}
	if cells := rowOf(t, c, "/apis/apps/v1/namespaces/default/statefulsets/db"); cells[1] != "2/3" || cells[3] != "c" ||
		cells[4] != "nginx:1.21.6" {
		t.Errorf("cells %v", cells)
	}

	changed := made.DeepCopy()
	changed.Spec.ServiceName = "other"
	_, err := sets.Update(ctx, changed, metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) || !slices.Equal(causes(err), []string{"FieldValueInvalid spec.serviceName"}) ||
		!strings.Contains(err.Error(), "field is immutable") {
		t.Errorf("another service: %v", err)
	}
	made.Status.ReadyReplicas = 4
	if _, err := sets.UpdateStatus(ctx, made, metav1.UpdateOptions{}); !slices.Equal(causes(err),
		[]string{"FieldValueInvalid status.readyReplicas"}) {
		t.Errorf("more ready than there are: %v", err)
	}
}

// rowOf is the row of the table that an object is printed as.
func rowOf(t *testing.T, c *cluster, path string) []any {
	t.Helper()
	_, body := c.raw(t, path, http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}})
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || len(table.Rows) != 1 {
		t.Fatalf("%v: table %s", err, body)
	}
	return table.Rows[0].Cells
}

func testDaemonSet(t *testing.T, c *cluster) {
	ctx, sets := t.Context(), c.admin.AppsV1().DaemonSets("default")
	made := must(sets.Create(ctx, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{Selector: metav1.SetAsLabelSelector(map[string]string{"app": "agent"}),
			Template: template("agent")}}, metav1.CreateOptions{}))(t)
	patched := must(sets.Patch(ctx, "agent", types.StrategicMergePatchType,
		[]byte(
			`{"metadata":{"annotations":null},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"nginx:1.22"}]}}}}`), metav1.PatchOptions{}))(t)
	if was, is := made.Annotations[appsv1.DeprecatedTemplateGeneration],
		patched.Annotations[appsv1.DeprecatedTemplateGeneration]; was != "1" || is != "2" || patched.Generation != 2 {
		t.Errorf("template generation %q, then %q; generation %d", was, is, patched.Generation)
	}
	patched.Status.DesiredNumberScheduled = 2
	patched.Annotations = nil
	if made = must(sets.UpdateStatus(ctx, patched, metav1.UpdateOptions{}))(
		t); made.Status.DesiredNumberScheduled != 2 || made.Annotations[appsv1.DeprecatedTemplateGeneration] != "2" {
		t.Errorf("status %+v, annotations %v", made.Status, made.Annotations)
	}
	if cells := rowOf(t, c, "/apis/apps/v1/namespaces/default/daemonsets/agent"); cells[1] != float64(2) ||
		cells[6] != "<none>" || cells[10] != "app=agent" {
		t.Errorf("cells %v", cells)
	}
	made.Spec.Selector.MatchLabels = map[string]string{"app": "other"}
	made.Spec.Template.Labels = made.Spec.Selector.MatchLabels
	if _, err := sets.Update(ctx, made, metav1.UpdateOptions{}); !slices.Equal(causes(err),
		[]string{"FieldValueInvalid spec.selector"}) {
		t.Errorf("another selector: %v", err)
	}
}

func testControllerRevision(t *testing.T, c *cluster) {
	ctx, revisions := t.Context(), c.admin.AppsV1().ControllerRevisions("default")
	made := must(revisions.Create(ctx, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Revision: 1,
		Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{}}}`)}}, metav1.CreateOptions{}))(t)
	made.Revision = 2
	made = must(revisions.Update(ctx, made, metav1.UpdateOptions{}))(t)
	if made.Revision != 2 || string(made.Data.Raw) != `{"spec":{"template":{}}}` {
		t.Errorf("revision %d of %s", made.Revision, made.Data.Raw)
	}
	made.Data.Raw = []byte(`{"spec":{}}`)
	if _, err := revisions.Update(ctx, made, metav1.UpdateOptions{}); !slices.Equal(causes(err),
		[]string{"FieldValueInvalid data"}) {
		t.Errorf("other data: %v", err)
	}
}

func testReplicationController(t *testing.T, c *cluster) {
	var warnings recorder
	cfg := restclient.CopyConfig(c.ca.client(t, c.host, admin()))
	cfg.WarningHandler = &warnings
	ctx, controllers := t.Context(), kubernetes.NewForConfigOrDie(cfg).CoreV1().ReplicationControllers("default")

	pod := template("old")
	must(controllers.Create(ctx, &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "a.b"},
		Spec: corev1.ReplicationControllerSpec{Template: &pod}}, metav1.CreateOptions{}))(t)
	if len(warnings) != 1 || !strings.HasPrefix(warnings[0], "metadata.name: this is used in Pod names and hostnames") {
		t.Errorf("warnings %q", warnings)
	}
	if scale := must(controllers.GetScale(ctx, "a.b", metav1.GetOptions{}))(t); scale.Spec.Replicas != 1 ||
		scale.Status.Selector != "app=old" {
		t.Errorf("scale %+v %+v", scale.Spec, scale.Status)
	}
	for query, want := range map[string]int{"status.replicas=0": 1, "status.replicas=1": 0} {
		if list := must(controllers.List(ctx, metav1.ListOptions{FieldSelector: query, LabelSelector: "app=old"}))(
			t); len(list.Items) != want {
			t.Errorf("%s: %d", query, len(list.Items))
		}
	}
	if err := controllers.Delete(ctx, "a.b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if left := must(controllers.Get(ctx, "a.b", metav1.GetOptions{}))(t); left.DeletionTimestamp == nil ||
		!slices.Contains(left.Finalizers, metav1.FinalizerOrphanDependents) {
		t.Errorf("deleted without a policy: finalizers %v", left.Finalizers)
	}
}
