package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/openapi/schemas"
)

// TestAPI drives one server as clients do. Subtests use names of their own.
func TestAPI(t *testing.T) {
	port, trust := newKubelet(t)
	c := startCluster(t, trust)
	c.kubelet = port
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatalf("creating the default objects: %v", err)
	}
	for name, test := range map[string]func(*testing.T, *cluster){
		"Objects":         testObjects,
		"Watch":           testWatch,
		"Patches":         testPatches,
		"Apply":           testApply,
		"DryRun":          testDryRun,
		"FieldValidation": testFieldValidation,
		"Validation":      testValidation,
		"Tables":          testTables,
		"Scale":           testScale,
		"Apps":            testApps,
		"Resize":          testResize,
		"Components":      testComponents,
		"Status":          testStatus,
		"DeleteMany":      testDeleteCollection,
		"Access":          testAccess,
		"Certificates":    testCertificates,
		"Tokens":          testTokens,
		"Discovery":       testDiscovery,
		"Coverage":        testCoverage,
		"CoveragePage":    testCoveragePage,
		"Devices":         testDevices,
		"Documents":       testOpenAPI,
		"Version":         testVersion,
		"Namespaces":      testNamespaces,
		"Pods":            testPods,
		"LeaderTerm":      testLeaderTerm,
		"Events":          testEvents,
		"Services":        testServices,
		"Logs":            testLogs,
		"Jobs":            testJobs,
		"CronJobs":        testCronJobs,
		"Autoscalers":     testAutoscalers,
		"Limits":          testLimits,
		"Quota":           testQuota,
		"Defaults":        testDefaults,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func testObjects(t *testing.T, c *cluster) {
	ctx, maps := t.Context(), c.admin.CoreV1().ConfigMaps("default")
	created := must(maps.Create(ctx, configMap("objects", map[string]string{"a": "1"}), metav1.CreateOptions{}))(t)
	if created.UID == "" || created.ResourceVersion == "" || created.CreationTimestamp.IsZero() {
		t.Errorf("system metadata is missing: %+v", created.ObjectMeta)
	}
	if _, err := maps.Create(ctx, configMap("objects", nil), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("creating it again: %v", err)
	}
	created.Data["a"] = "2"
	updated := must(maps.Update(ctx, created, metav1.UpdateOptions{}))(t)
	if updated.ResourceVersion == created.ResourceVersion {
		t.Error("an update did not change the resourceVersion")
	}
	same := must(maps.Update(ctx, updated, metav1.UpdateOptions{}))(t)
	if same.ResourceVersion != updated.ResourceVersion {
		t.Error("an update that changes nothing made a new revision")
	}
	if _, err := maps.Update(ctx, created, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of an old version: %v", err)
	}
	if err := maps.Delete(ctx, "objects", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := maps.Get(ctx, "objects", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the delete: %v", err)
	}
	generated := must(
		maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}},
			metav1.CreateOptions{}))(t)
	if !strings.HasPrefix(generated.Name, "gen-") || len(generated.Name) == len("gen-") {
		t.Errorf("generated name %q", generated.Name)
	}
}

func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		return e
	case <-time.After(time.Minute): // of a busy machine
		t.Fatal("no event")
	}
	return watch.Event{}
}

func testWatch(t *testing.T, c *cluster) {
	ctx, maps := t.Context(), c.admin.CoreV1().ConfigMaps("default")
	list := must(maps.List(ctx, metav1.ListOptions{LabelSelector: "watched=yes"}))(t)
	w := must(maps.Watch(ctx, metav1.ListOptions{LabelSelector: "watched=yes", ResourceVersion: list.ResourceVersion}))(
		t)
	defer w.Stop()
	m := configMap("watched", nil)
	m.Labels = map[string]string{"watched": "yes"}
	created := must(maps.Create(ctx, m, metav1.CreateOptions{}))(t)
	if e := next(t, w); e.Type != watch.Added ||
		e.Object.(*corev1.ConfigMap).ResourceVersion != created.ResourceVersion {
		t.Errorf("first event: %+v", e)
	}
	created.Labels["watched"] = "no"
	must(maps.Update(ctx, created, metav1.UpdateOptions{}))(t)
	if e := next(t, w); e.Type != watch.Deleted {
		t.Errorf("leaving the selector gave %s", e.Type)
	}
}

func testPatches(t *testing.T, c *cluster) {
	ctx, maps := t.Context(), c.admin.CoreV1().ConfigMaps("default")
	must(maps.Create(ctx, configMap("patched", map[string]string{"a": "1", "b": "1"}), metav1.CreateOptions{}))(t)
	for _, p := range []struct {
		kind types.PatchType
		body string
		want string
	}{
		{types.JSONPatchType, `[{"op":"replace","path":"/data/a","value":"json"}]`, "json"},
		{types.MergePatchType, `{"data":{"a":"merge"}}`, "merge"},
		{types.StrategicMergePatchType, `{"data":{"a":"strategic"}}`, "strategic"},
	} {
		got := must(maps.Patch(ctx, "patched", p.kind, []byte(p.body), metav1.PatchOptions{}))(t)
		if got.Data["a"] != p.want || got.Data["b"] != "1" {
			t.Errorf("%s: %v", p.kind, got.Data)
		}
	}
}

func testApply(t *testing.T, c *cluster) {
	ctx, maps := t.Context(), c.admin.CoreV1().ConfigMaps("default")
	one := corev1ac.ConfigMap("applied", "default").WithData(map[string]string{"a": "one", "b": "one"})
	must(maps.Apply(ctx, one, metav1.ApplyOptions{FieldManager: "one"}))(t)
	two := corev1ac.ConfigMap("applied", "default").WithData(map[string]string{"a": "two"})
	if _, err := maps.Apply(ctx, two, metav1.ApplyOptions{FieldManager: "two"}); !apierrors.IsConflict(err) {
		t.Errorf("taking a field of another manager: %v", err)
	}
	forced := must(maps.Apply(ctx, two, metav1.ApplyOptions{FieldManager: "two", Force: true}))(t)
	if forced.Data["a"] != "two" || forced.Data["b"] != "one" || len(forced.ManagedFields) != 2 {
		t.Errorf("after force: %v, %d managers", forced.Data, len(forced.ManagedFields))
	}
	less := corev1ac.ConfigMap("applied", "default").WithData(map[string]string{})
	removed := must(maps.Apply(ctx, less, metav1.ApplyOptions{FieldManager: "one"}))(t)
	if _, ok := removed.Data["b"]; ok {
		t.Errorf("a field that its manager left out is still there: %v", removed.Data)
	}

	// Ports of a Service merge by key, which needs the schema.
	service := func(port int32) *corev1ac.ServiceApplyConfiguration {
		return corev1ac.Service("applied", "default").WithSpec(corev1ac.ServiceSpec().WithClusterIP("None").
			WithPorts(
				corev1ac.ServicePort().WithName("p" + string(rune('0'+port))).WithPort(port).WithProtocol(
					corev1.ProtocolTCP)))
	}
	services := c.admin.CoreV1().Services("default")
	must(services.Apply(ctx, service(1), metav1.ApplyOptions{FieldManager: "one"}))(t)
	both := must(services.Apply(ctx, service(2), metav1.ApplyOptions{FieldManager: "two", Force: true}))(t)
	if len(both.Spec.Ports) != 2 {
		t.Errorf("ports of two managers: %+v", both.Spec.Ports)
	}
}

func testDryRun(t *testing.T, c *cluster) {
	ctx, maps := t.Context(), c.admin.CoreV1().ConfigMaps("default")
	must(maps.Create(ctx, configMap("dry", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	if _, err := maps.Get(ctx, "dry", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run left something behind: %v", err)
	}
}

func testFieldValidation(t *testing.T, c *cluster) {
	post := func(mode string) (*restclient.Result, []string) {
		var warnings recorder
		cfg := restclient.CopyConfig(c.ca.client(t, c.host, admin()))
		cfg.WarningHandler = &warnings
		client := kubernetes.NewForConfigOrDie(cfg)
		r := client.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/configmaps").
			Param("fieldValidation", mode).Param("dryRun", "All").SetHeader("Content-Type", "application/json").
			Body([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"daata":{}}`)).Do(t.Context())
		return &r, warnings
	}
	if r, _ := post("Strict"); !apierrors.IsBadRequest(r.Error()) ||
		!strings.Contains(r.Error().Error(), `unknown field "daata"`) {
		t.Errorf("strict: %v", r.Error())
	}
	if r, w := post("Warn"); r.Error() != nil || len(w) != 1 || !strings.Contains(w[0], `unknown field "daata"`) {
		t.Errorf("warn: %v, %q", r.Error(), w)
	}
	if r, w := post("Ignore"); r.Error() != nil || len(w) != 0 {
		t.Errorf("ignore: %v, %q", r.Error(), w)
	}
}

type recorder []string

func (r *recorder) HandleWarningHeader(_ int, _ string, text string) { *r = append(*r, text) }

func testValidation(t *testing.T, c *cluster) {
	bad := configMap("Not_A_Name", map[string]string{"no spaces please": "x"})
	_, err := c.admin.CoreV1().ConfigMaps("default").Create(t.Context(), bad, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got %v", err)
	}
	causes := map[string]bool{}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		t.Fatalf("%v has no status", err)
	}
	for _, cause := range status.Status().Details.Causes {
		causes[cause.Field] = true
	}
	if !causes["metadata.name"] {
		t.Errorf("the bad name is not among the causes: %v", causes)
	}
}

func testTables(t *testing.T, c *cluster) {
	must(
		c.admin.CoreV1().ConfigMaps("default").Create(t.Context(),
			configMap("table", map[string]string{"a": "", "b": ""}), metav1.CreateOptions{}))(t)
	_, body := c.raw(t, "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dtable",
		http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}})
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil {
		t.Fatal(err)
	}
	if len(table.ColumnDefinitions) != 3 || table.ColumnDefinitions[1].Name != "Data" || len(table.Rows) != 1 {
		t.Fatalf("table %s", body)
	}
	if cells := table.Rows[0].Cells; cells[0] != "table" || cells[1] != float64(2) {
		t.Errorf("cells %v", cells)
	}
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()},
	}}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1.21.6"}}}
}

func testScale(t *testing.T, c *cluster) {
	ctx, deployments := t.Context(), c.admin.AppsV1().Deployments("default")
	must(deployments.Create(ctx, deployment("scaled"), metav1.CreateOptions{}))(t)
	scale := must(deployments.GetScale(ctx, "scaled", metav1.GetOptions{}))(t)
	if scale.Spec.Replicas != 1 || scale.Status.Selector != "app=scaled" {
		t.Errorf("scale %+v %+v", scale.Spec, scale.Status)
	}
	scale.Spec.Replicas = 5
	must(deployments.UpdateScale(ctx, "scaled", scale, metav1.UpdateOptions{}))(t)
	if d := must(deployments.Get(ctx, "scaled", metav1.GetOptions{}))(t); *d.Spec.Replicas != 5 || d.Generation != 2 {
		t.Errorf("replicas %d, generation %d", *d.Spec.Replicas, d.Generation)
	}
	must(
		deployments.Patch(ctx, "scaled", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{},
			"scale"))(t)
	if d := must(deployments.Get(ctx, "scaled", metav1.GetOptions{}))(t); *d.Spec.Replicas != 2 {
		t.Errorf("after the patch: replicas %d", *d.Spec.Replicas)
	}
	_, body := c.raw(t, "/apis/apps/v1/namespaces/default/deployments/scaled/scale",
		http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}})
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil || len(table.ColumnDefinitions) != 4 || len(table.Rows) != 1 ||
		table.Rows[0].Cells[1] != float64(2) {
		t.Errorf("%v in the table %s", err, body)
	}
	scale = must(deployments.GetScale(ctx, "scaled", metav1.GetOptions{}))(t)
	scale.Spec.Replicas = -1
	if _, err := deployments.UpdateScale(ctx, "scaled", scale, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("minus one replica: %v", err)
	}
}

func testStatus(t *testing.T, c *cluster) {
	ctx, deployments := t.Context(), c.admin.AppsV1().Deployments("default")
	d := must(deployments.Create(ctx, deployment("status"), metav1.CreateOptions{}))(t)
	d.Status.Replicas = 1
	kept := must(deployments.Update(ctx, d, metav1.UpdateOptions{}))(t)
	if kept.Status.Replicas != 0 {
		t.Error("a write to the object changed its status")
	}
	kept.Status.Replicas = 1
	kept.Spec.Paused = true
	written := must(deployments.UpdateStatus(ctx, kept, metav1.UpdateOptions{}))(t)
	if written.Status.Replicas != 1 || written.Spec.Paused || written.Generation != 1 {
		t.Errorf("status write: %+v, paused %v, generation %d", written.Status, written.Spec.Paused, written.Generation)
	}
}

func testDeleteCollection(t *testing.T, c *cluster) {
	ctx, maps := t.Context(), c.admin.CoreV1().ConfigMaps("default")
	for _, name := range []string{"many-a", "many-b"} {
		m := configMap(name, nil)
		m.Labels = map[string]string{"many": "yes"}
		must(maps.Create(ctx, m, metav1.CreateOptions{}))(t)
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "many=yes"}); err != nil {
		t.Fatal(err)
	}
	if left := must(maps.List(ctx, metav1.ListOptions{LabelSelector: "many=yes"}))(t); len(left.Items) != 0 {
		t.Errorf("%d are left", len(left.Items))
	}
}

func testAccess(t *testing.T, c *cluster) {
	ctx := t.Context()
	ann := kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, subject("ann", "devs")))
	if _, err := ann.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	anonymous := kubernetes.NewForConfigOrDie(
		&restclient.Config{Host: c.host, TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
	if _, err := anonymous.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("anonymous: %v", err)
	}
	wrong := kubernetes.NewForConfigOrDie(
		&restclient.Config{Host: c.host, BearerToken: "wrong",
			TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
	if _, err := wrong.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a wrong token: %v", err)
	}
	must(c.admin.RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "devs"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-view"},
		Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "devs"}},
	}, metav1.CreateOptions{}))(t)
	eventually(t, "the binding takes effect", func(ctx context.Context) error {
		_, err := ann.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := ann.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a viewer lists secrets: %v", err)
	}
	review := must(
		ann.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get",
					Resource: "pods"}},
		}, metav1.CreateOptions{}))(t)
	if !review.Status.Allowed {
		t.Errorf("can-i get pods: %+v", review.Status)
	}
	who := must(
		ann.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{}))(t)
	if who.Status.UserInfo.Username != "ann" {
		t.Errorf("whoami: %+v", who.Status)
	}
}

func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			last = try(ctx)
			return last == nil, nil
		})
	if err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

func testTokens(t *testing.T, c *cluster) {
	ctx, accounts := t.Context(), c.admin.CoreV1().ServiceAccounts("default")
	must(
		accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}},
			metav1.CreateOptions{}))(t)
	secret := must(
		c.admin.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bound"}},
			metav1.CreateOptions{}))(t)
	token := must(
		accounts.CreateToken(ctx, "robot", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret.Name,
				UID: secret.UID},
		}}, metav1.CreateOptions{}))(t)
	robot := kubernetes.NewForConfigOrDie(
		&restclient.Config{Host: c.host, BearerToken: token.Status.Token,
			TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
	who := must(
		robot.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{}))(t)
	if who.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("the token is %+v", who.Status.UserInfo)
	}
	review := func() authenticationv1.TokenReviewStatus {
		r := must(c.admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{}))(t)
		return r.Status
	}
	if s := review(); !s.Authenticated || s.User.Username != "system:serviceaccount:default:robot" {
		t.Errorf("review: %+v", s)
	}
	other := must(c.admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token, Audiences: []string{"elsewhere"}}},
		metav1.CreateOptions{}))(t)
	if other.Status.Authenticated {
		t.Error("a token for this API was accepted for another audience")
	}
	if _, err := accounts.CreateToken(ctx, "nobody", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a token of nobody: %v", err)
	}
	short := int64(60)
	if _, err := accounts.CreateToken(ctx, "robot",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &short}},
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a token for a minute: %v", err)
	}
	testTokenOfSecret(t, c)
	_, keys := c.raw(t, "/openid/v1/jwks", nil)
	if !strings.Contains(string(keys), `"ES256"`) {
		t.Errorf("keys: %s", keys)
	}
}

// testTokenOfSecret has a token made for a Secret. It is good when the Secret holds it.
func testTokenOfSecret(t *testing.T, c *cluster) {
	ctx, secrets := t.Context(), c.admin.CoreV1().Secrets("default")
	request := func(name string) (*authenticationv1.TokenRequest, error) {
		return c.admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "robot",
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				Audiences:      []string{"kubernetes/serviceaccount"},
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: name},
			}}, metav1.CreateOptions{})
	}
	if _, err := request("bound"); !apierrors.IsBadRequest(err) {
		t.Errorf("a token for a Secret of another type: %v", err)
	}
	secret := must(secrets.Create(ctx, &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken,
		ObjectMeta: metav1.ObjectMeta{Name: "held",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}}}, metav1.CreateOptions{}))(t)
	token := must(request("held"))(t).Status.Token
	review := func() bool {
		r := must(
			c.admin.AuthenticationV1().TokenReviews().Create(ctx,
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}},
				metav1.CreateOptions{}))(t)
		return r.Status.Authenticated && r.Status.User.Username == "system:serviceaccount:default:robot"
	}
	if review() {
		t.Error("a token is good that no Secret holds")
	}
	secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(token)}
	must(secrets.Update(ctx, secret, metav1.UpdateOptions{}))(t)
	if !review() {
		t.Error("the token of a Secret is refused")
	}
	if used := must(secrets.Get(ctx, "held", metav1.GetOptions{}))(
		t).Labels["kubernetes.io/legacy-token-last-used"]; used == "" {
		t.Error("its use is not noted")
	}
}

func testDiscovery(t *testing.T, c *cluster) {
	lists := must(c.admin.Discovery().ServerPreferredResources())(t)
	found := map[string]metav1.APIResource{}
	for _, l := range lists {
		for _, r := range l.APIResources {
			found[l.GroupVersion+"/"+r.Name] = r
		}
	}
	cm, ok := found["v1/configmaps"]
	if !ok || cm.SingularName != "configmap" || len(cm.ShortNames) != 1 || cm.ShortNames[0] != "cm" || !cm.Namespaced {
		t.Errorf("configmaps: %+v", cm)
	}
	if r := found["authorization.k8s.io/v1/subjectaccessreviews"]; r.Kind != "SubjectAccessReview" || r.Namespaced {
		t.Errorf("reviews: %+v", r)
	}
	_, body := c.raw(t, "/apis",
		http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}})
	if !strings.Contains(string(body), `"kind":"APIGroupDiscoveryList"`) ||
		!strings.Contains(string(body), `"resource":"subjectaccessreviews"`) {
		t.Errorf("aggregated discovery: %.300s", body)
	}
}

func testOpenAPI(t *testing.T, c *cluster) {
	if code, body := c.raw(t, "/openapi/v2", nil); code != 200 || strings.Contains(string(body), "__internal") ||
		!strings.Contains(string(body), `"io.k8s.api.core.v1.ConfigMap"`) {
		t.Errorf("v2: %d, %.300s", code, body)
	}
	code, body := c.raw(t, "/openapi/v3/api/v1", nil)
	if code != 200 {
		t.Fatalf("v3: %d %s", code, body)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Description string                    `json:"description"`
				Properties  map[string]map[string]any `json:"properties"`
				Kinds       []map[string]string       `json:"x-kubernetes-group-version-kind"`
			} `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	cm := doc.Components.Schemas["io.k8s.api.core.v1.ConfigMap"]
	if len(cm.Kinds) != 1 || cm.Kinds[0]["kind"] != "ConfigMap" || cm.Description == "" ||
		cm.Properties["data"]["type"] != "object" {
		t.Errorf("ConfigMap: %+v", cm)
	}
	ports := doc.Components.Schemas["io.k8s.api.core.v1.ServiceSpec"].Properties["ports"]
	if ports["x-kubernetes-list-type"] != "map" || ports["x-kubernetes-patch-merge-key"] != "port" {
		t.Errorf("ports of a Service: %v", ports)
	}
	if !schemas.Built() {
		return // TestKubectl notes it
	}
	protocol := doc.Components.Schemas["io.k8s.api.core.v1.ServicePort"].Properties["protocol"]
	if protocol["default"] != "TCP" || !reflect.DeepEqual(protocol["enum"], []any{"SCTP", "TCP", "UDP"}) {
		t.Errorf("protocol of a Service's port: %v", protocol)
	}
}

func testVersion(t *testing.T, c *cluster) {
	v := must(c.admin.Discovery().ServerVersion())(t)
	if v.Major != "1" || v.Minor != "37" || !strings.HasPrefix(v.GitVersion, "v1.37.") ||
		!strings.Contains(v.GitVersion, "+barque") {
		t.Errorf("version %+v", v)
	}
}

func testNamespaces(t *testing.T, c *cluster) {
	ctx, namespaces := t.Context(), c.admin.CoreV1().Namespaces()
	must(
		namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}},
			metav1.CreateOptions{}))(t)
	if err := namespaces.Delete(ctx, "doomed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns := must(namespaces.Get(ctx, "doomed", metav1.GetOptions{}))(t)
	if ns.Status.Phase != corev1.NamespaceTerminating || ns.DeletionTimestamp == nil || len(ns.Spec.Finalizers) != 1 {
		t.Fatalf("a deleted namespace: %+v %+v", ns.Spec, ns.Status)
	}
	eventually(t, "no new objects in a terminating namespace", func(ctx context.Context) error {
		_, err := c.admin.CoreV1().ConfigMaps("doomed").Create(ctx, configMap("late", nil),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) {
			return nil
		}
		return fmt.Errorf("it is answered with %v", err)
	})
	// The namespace controller reports its progress. That must not end the namespace while it
	// has contents.
	ns.Status.Conditions = []corev1.NamespaceCondition{
		{Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	must(namespaces.UpdateStatus(ctx, ns, metav1.UpdateOptions{}))(t)
	ns = must(namespaces.Get(ctx, "doomed", metav1.GetOptions{}))(t)
	ns.Spec.Finalizers = nil
	must(namespaces.Finalize(ctx, ns, metav1.UpdateOptions{}))(t)
	if _, err := namespaces.Get(ctx, "doomed", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after finalizing: %v", err)
	}
	if _, err := c.admin.CoreV1().ConfigMaps("nowhere").Create(ctx, configMap("x", nil),
		metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("in a namespace that does not exist: %v", err)
	}
	if err := namespaces.Delete(ctx, "kube-system", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("deleting kube-system: %v", err)
	}
}

func testLeaderTerm(t *testing.T, c *cluster) {
	post := func(term string) error {
		return c.admin.CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/configmaps").
			SetHeader("Barque-Leader-Term", term).Body(configMap("fenced", nil)).Do(t.Context()).Error()
	}
	if err := post("99"); !apierrors.IsConflict(err) {
		t.Errorf("a write of a term that is not the current one: %v", err)
	}
	if err := post("1"); err != nil {
		t.Errorf("a write of the current term: %v", err)
	}
}
