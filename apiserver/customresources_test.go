package apiserver

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/apiserver/leaderterm"
)

// hangs bounds waits that only a hang exceeds.
const hangs = time.Minute

// boats is a definition that uses most features of definitions.
const boats = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.sea.example.com}
spec:
  group: sea.example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, listKind: BoatList, shortNames: [bt], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Masts, type: integer, jsonPath: .spec.masts}
    - {name: Port, type: string, jsonPath: .spec.port, priority: 1}
    selectableFields:
    - jsonPath: .spec.port
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.crew, statusReplicasPath: .status.aboard, labelSelectorPath: .status.selector}
    schema:
      openAPIV3Schema:
        type: object
        description: Boat floats.
        required: [spec]
        properties:
          spec:
            type: object
            x-kubernetes-validations:
            - {rule: "self.masts <= self.crew", message: more masts than crew}
            properties:
              masts: {type: integer, default: 3, minimum: 1}
              crew: {type: integer, default: 3}
              port: {type: string, enum: [Hamburg, Bremen, Kiel], description: The port of registry.}
              flag: {type: string, x-kubernetes-validations: [{rule: "self == oldSelf", message: the flag stays}]}
              sails:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, area: {type: integer}}}
          status:
            type: object
            properties: {aboard: {type: integer}, selector: {type: string}}
`

var boatsOf = schema.GroupVersionResource{Group: "sea.example.com", Version: "v1", Resource: "boats"}

// definition reads a CustomResourceDefinition from YAML.
func definition(t testing.TB, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// object reads any object from YAML.
func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func (c *cluster) extensions(t testing.TB) extensionsclient.Interface {
	t.Helper()
	return extensionsclient.NewForConfigOrDie(c.ca.client(t, c.host, admin()))
}

func (c *cluster) dynamic(t testing.TB) dynamic.Interface {
	t.Helper()
	return dynamic.NewForConfigOrDie(c.ca.client(t, c.host, admin()))
}

// define makes a definition and waits until it is established.
func (c *cluster) define(t testing.TB, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd, err := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), definition(t, text),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.awaitDefinition(t, crd.Name, apiextensionsv1.Established)
}

func (c *cluster) awaitDefinition(
	t testing.TB, name string, condition apiextensionsv1.CustomResourceDefinitionConditionType,
) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions()
	var crd *apiextensionsv1.CustomResourceDefinition
	await(t, name+" is "+string(condition), func(ctx context.Context) (err error, done bool) {
		crd, err = crds.Get(ctx, name, metav1.GetOptions{})
		return err,
			err == nil &&
				slices.ContainsFunc(crd.Status.Conditions,
					func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
						return c.Type == condition && c.Status == apiextensionsv1.ConditionTrue
					})
	})
	return crd
}

// await waits until holds returns true.
func await(t testing.TB, what string, holds func(context.Context) (error, bool)) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, hangs, true,
		func(ctx context.Context) (done bool, _ error) {
			last, done = holds(ctx)
			return done, nil
		})
	if err != nil {
		t.Fatalf("%s: %v; last: %v", what, err, last)
	}
}

// TestCustomResources drives one server as operators' clients do.
func TestCustomResources(t *testing.T) {
	c := startCluster(t)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	c.define(t, boats)
	for name, test := range map[string]func(*testing.T, *cluster, dynamic.ResourceInterface){
		"Schema":           testCustomSchema,
		"Rules":            testCustomRules,
		"Status":           testCustomStatus,
		"Scale":            testCustomScale,
		"Patches":          testCustomPatches,
		"Apply":            testCustomApply,
		"Tables":           testCustomTables,
		"SelectableFields": testCustomSelectors,
		"NoSchema":         testSelectableFieldsWithoutSchema,
		"Watch":            testCustomWatch,
		"Discovery":        testCustomDiscovery,
		"Documents":        testCustomDocuments,
		"Kubectl":          testCustomKubectl,
		"Ratcheting":       testCustomRatcheting,
		"Conversion":       testCustomConversion,
		"NonStructural":    testCustomNonStructural,
		"LeaderTerm":       testCustomLeaderTerm,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := strings.ToLower(name)
			must(c.client.CoreV1().Namespaces().Create(t.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))(t)
			test(t, c, c.dynamic(t).Resource(boatsOf).Namespace(ns))
		})
	}
}

// boat creates a boat.
func boat(t testing.TB, in dynamic.ResourceInterface, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o, err := in.Create(t.Context(), newBoat(t, name, spec), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func newBoat(t testing.TB, name, spec string) *unstructured.Unstructured {
	t.Helper()
	return object(t, "{apiVersion: sea.example.com/v1, kind: Boat, metadata: {name: "+name+"}, spec: "+spec+"}")
}

func number(t testing.TB, o *unstructured.Unstructured, path ...string) int64 {
	t.Helper()
	n, found, err := unstructured.NestedInt64(o.Object, path...)
	if err != nil || !found {
		t.Fatalf("%v is missing (%v) in %v", path, err, o.Object)
	}
	return n
}

func testCustomSchema(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	o := boat(t, in, "a", "{port: Kiel, rudder: big}")
	if n := number(t, o, "spec", "masts"); n != 3 {
		t.Errorf("masts are %d, not the default", n)
	}
	if _, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "rudder"); found {
		t.Error("an unknown field was not pruned")
	}
	if o.GetUID() == "" || o.GetGeneration() != 1 {
		t.Errorf("uid %q, generation %d", o.GetUID(), o.GetGeneration())
	}
	_, err := in.Create(t.Context(), newBoat(t, "b", "{port: London}"), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `spec.port: Unsupported value: "London"`) {
		t.Errorf("a port that is none: %v", err)
	}
	_, err = in.Create(t.Context(), newBoat(t, "b", "{rudder: big}"),
		metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "spec.rudder"`) {
		t.Errorf("strict validation of an unknown field: %v", err)
	}
	if _, err = in.Create(t.Context(), newBoat(t, "b", "{}"),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("dry run: %v", err)
	}
	if _, err = in.Get(t.Context(), "b", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a dry run: %v", err)
	}
}

// testSelectableFieldsWithoutSchema: the library's validation panics over these, and the client
// gets no answer.
func testSelectableFieldsWithoutSchema(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	crds := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions()
	crd := definition(t, strings.ReplaceAll(boats, "sea.example.com", "bare.example.com"))
	crd.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.port"}}
	crd.Spec.Versions[0].Schema = &apiextensionsv1.CustomResourceValidation{}
	_, err := crds.Create(t.Context(), crd, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "openAPIV3Schema: Required value: schemas are required") {
		t.Errorf("create: %v", err)
	}
	patch := `[{"op": "replace", "path": "/spec/versions/0/schema", "value": {}},
		{"op": "add", "path": "/spec/versions/0/selectableFields", "value": [{"jsonPath": ".spec.port"}]}]`
	_, err = crds.Patch(t.Context(), "boats.sea.example.com", types.JSONPatchType, []byte(patch),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	if !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "openAPIV3Schema: Required value: schemas are required") {
		t.Errorf("patch: %v", err)
	}
}

func testCustomRules(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	_, err := in.Create(t.Context(), newBoat(t, "a", "{masts: 4}"), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "more masts than crew") {
		t.Errorf("a rule that does not hold: %v", err)
	}
	o := boat(t, in, "a", "{flag: red}")
	o.Object["spec"].(map[string]any)["flag"] = "blue"
	if _, err := in.Update(t.Context(), o, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "the flag stays") {
		t.Errorf("a transition rule that does not hold: %v", err)
	}
}

func testCustomStatus(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	o := boat(t, in, "a", "{crew: 5}")
	o.Object["status"] = map[string]any{"aboard": int64(2)}
	o.Object["spec"].(map[string]any)["crew"] = int64(6)
	o, err := in.UpdateStatus(t.Context(), o, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if crew, aboard := number(t, o, "spec", "crew"), number(t, o, "status", "aboard"); crew != 5 || aboard != 2 ||
		o.GetGeneration() != 1 {
		t.Errorf("after an update of status: crew %d, aboard %d, generation %d", crew, aboard, o.GetGeneration())
	}
	o.Object["status"] = map[string]any{"aboard": int64(9)}
	o.Object["spec"].(map[string]any)["crew"] = int64(7)
	if o, err = in.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if crew, aboard := number(t, o, "spec", "crew"), number(t, o, "status", "aboard"); crew != 7 || aboard != 2 ||
		o.GetGeneration() != 2 {
		t.Errorf("after an update: crew %d, aboard %d, generation %d", crew, aboard, o.GetGeneration())
	}
}

func testCustomScale(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	o := boat(t, in, "a", "{crew: 5}")
	o.Object["status"] = map[string]any{"aboard": int64(4), "selector": "on=a"}
	if _, err := in.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale, err := in.Get(t.Context(), "a", metav1.GetOptions{}, "scale")
	if err != nil {
		t.Fatal(err)
	}
	if want, is := number(t, scale, "spec", "replicas"),
		number(t, scale, "status", "replicas"); scale.GetKind() != "Scale" || want != 5 || is != 4 {
		t.Errorf("%s: %d wanted, %d there", scale.GetKind(), want, is)
	}
	scale.Object["spec"] = map[string]any{"replicas": int64(8)}
	if _, err := in.Update(t.Context(), scale, metav1.UpdateOptions{}, "scale"); err != nil {
		t.Fatal(err)
	}
	if o, err = in.Get(t.Context(), "a", metav1.GetOptions{}); err != nil || number(t, o, "spec", "crew") != 8 {
		t.Errorf("after scaling: %v, %v", o, err)
	}
}

func testCustomPatches(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	boat(t, in, "a", "{}")
	for _, p := range []struct {
		kind types.PatchType
		data string
		crew int64
	}{
		{types.MergePatchType, `{"spec":{"crew":10}}`, 10},
		{types.JSONPatchType, `[{"op":"replace","path":"/spec/crew","value":11}]`, 11},
	} {
		o, err := in.Patch(t.Context(), "a", p.kind, []byte(p.data), metav1.PatchOptions{})
		if err != nil || number(t, o, "spec", "crew") != p.crew {
			t.Errorf("%s: %v, %v", p.kind, o, err)
		}
	}
	_, err := in.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	if !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("a strategic merge patch: %v", err)
	}
}

func testCustomApply(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	apply := func(manager, spec string) (*unstructured.Unstructured, error) {
		return in.Apply(t.Context(), "a", newBoat(t, "a", spec), metav1.ApplyOptions{FieldManager: manager})
	}
	if _, err := apply("one", "{sails: [{name: fore, area: 5}]}"); err != nil {
		t.Fatal(err)
	}
	o, err := apply("two", "{sails: [{name: main, area: 9}]}")
	if err != nil {
		t.Fatal(err)
	}
	if sails, _, _ := unstructured.NestedSlice(o.Object, "spec", "sails"); len(sails) != 2 {
		t.Errorf("two managers' items did not merge by their key: %v", sails)
	}
	if _, err := apply("two", "{sails: [{name: fore, area: 1}]}"); !apierrors.IsConflict(err) {
		t.Errorf("another manager's field: %v", err)
	}
	if o, err = apply("one", "{}"); err != nil {
		t.Fatal(err)
	}
	if sails, _, _ := unstructured.NestedSlice(o.Object, "spec", "sails"); len(sails) != 1 {
		t.Errorf("what its manager applies no more is still there: %v", sails)
	}
}

func testCustomTables(t *testing.T, c *cluster, in dynamic.ResourceInterface) {
	boat(t, in, "a", "{port: Kiel}")
	_, body := c.raw(t, "/apis/sea.example.com/v1/namespaces/tables/boats",
		http.Header{"Accept": {"application/json;as=Table;v=v1;g=meta.k8s.io"}})
	var table metav1.Table
	if err := json.Unmarshal(body, &table); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, column := range table.ColumnDefinitions {
		names = append(names, column.Name)
	}
	if !slices.Equal(names, []string{"Name", "Masts", "Port"}) || len(table.Rows) != 1 ||
		table.Rows[0].Cells[2] != "Kiel" {
		t.Errorf("columns %v, rows %v", names, table.Rows)
	}
}

func testCustomSelectors(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	boat(t, in, "a", "{port: Kiel}")
	boat(t, in, "b", "{port: Bremen}")
	list, err := in.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.port=Bremen"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "b" {
		t.Errorf("%v, %v", list, err)
	}
	if _, err = in.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.masts=3"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a field that is not selectable: %v", err)
	}
}

func testCustomWatch(t *testing.T, _ *cluster, in dynamic.ResourceInterface) {
	boat(t, in, "before", "{}")
	w, err := in.Watch(t.Context(),
		metav1.ListOptions{SendInitialEvents: new(bool), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	o := boat(t, in, "a", "{}")
	o.SetLabels(map[string]string{"old": "yes"})
	if _, err := in.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := in.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(hangs)
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		select {
		case e := <-w.ResultChan():
			if o, ok := e.Object.(*unstructured.Unstructured); e.Type != want || !ok || o.GetName() != "a" {
				t.Fatalf("%s %v, want %s", e.Type, e.Object, want)
			}
		case <-deadline:
			t.Fatalf("%s did not come", want)
		}
	}
}

func testCustomDiscovery(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	await(t, "discovery lists boats", func(context.Context) (error, bool) {
		list, err := c.admin.Discovery().ServerResourcesForGroupVersion("sea.example.com/v1")
		return err,
			err == nil &&
				slices.ContainsFunc(list.APIResources,
					func(r metav1.APIResource) bool { return r.Name == "boats/scale" })
	})
	await(t, "aggregated discovery lists boats", func(context.Context) (error, bool) {
		_, lists, err := c.admin.Discovery().ServerGroupsAndResources() // asks for the aggregated form
		return err,
			slices.ContainsFunc(lists,
				func(l *metav1.APIResourceList) bool { return l.GroupVersion == "sea.example.com/v1" })
	})
	for _, group := range []string{"apps", "apiextensions.k8s.io", "apiregistration.k8s.io"} {
		if code, body := c.raw(t, "/apis/"+group, nil); code != http.StatusOK {
			t.Errorf("/apis/%s: %d %s", group, code, body)
		}
	}
	if code, _ := c.raw(t, "/apis/nowhere.example.com/v1/things", nil); code != http.StatusNotFound {
		t.Errorf("a group that nobody defines: %d", code)
	}
}

// A value that breaks a rule that came later may stay while it is not touched.
func testCustomRatcheting(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	const text = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ropes.sea.example.org}
spec:
  group: sea.example.org
  scope: Cluster
  names: {plural: ropes, singular: rope, kind: Rope, listKind: RopeList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {length: {type: integer, maximum: 100}, colour: {type: string}}}}
`
	crd := c.define(t, text)
	in := c.dynamic(t).Resource(schema.GroupVersionResource{Group: "sea.example.org", Version: "v1", Resource: "ropes"})
	o, err := in.Create(t.Context(),
		object(t, "{apiVersion: sea.example.org/v1, kind: Rope, metadata: {name: a}, spec: {length: 50}}"),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	limit := float64(10)
	spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	spec.Properties["length"] = apiextensionsv1.JSONSchemaProps{Type: "integer", Maximum: &limit}
	if _, err := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions().Update(t.Context(), crd,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the new limit holds", func(ctx context.Context) (error, bool) {
		_, err := in.Create(ctx,
			object(t, "{apiVersion: sea.example.org/v1, kind: Rope, metadata: {name: b}, spec: {length: 50}}"),
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err, apierrors.IsInvalid(err)
	})
	o.Object["spec"].(map[string]any)["colour"] = "blue"
	if o, err = in.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Errorf("an update that leaves the old value as it is: %v", err)
	}
	o.Object["spec"].(map[string]any)["length"] = int64(60)
	if _, err = in.Update(t.Context(), o, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an update of the old value: %v", err)
	}
}

func testCustomConversion(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	// The webhook renames a field: length in v1 is metres in v2.
	webhook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review apiextensionsv1.ConversionReview
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &review)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID,
			Result: metav1.Status{Status: metav1.StatusSuccess}}
		for _, raw := range review.Request.Objects {
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON(raw.Raw); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			from, to := "length", "metres"
			if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v1") {
				from, to = to, from
			}
			if v, found := u.Object[from]; found {
				delete(u.Object, from)
				u.Object[to] = v
			}
			u.SetAPIVersion(review.Request.DesiredAPIVersion)
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: u})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer webhook.Close()
	crd := definition(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: chains.sea.example.net}
spec:
  group: sea.example.net
  scope: Cluster
  names: {plural: chains, singular: chain, kind: Chain, listKind: ChainList}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {}}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {length: {type: integer}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {metres: {type: integer}}}}}
`)
	url := webhook.URL
	crd.Spec.Conversion.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{URL: &url,
		CABundle: certificateOf(webhook)}
	if _, err := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitDefinition(t, crd.Name, apiextensionsv1.Established)
	gvr := schema.GroupVersionResource{Group: "sea.example.net", Version: "v1", Resource: "chains"}
	if _, err := c.dynamic(t).Resource(gvr).Create(t.Context(),
		object(t, "{apiVersion: sea.example.net/v1, kind: Chain, metadata: {name: a}, length: 7}"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gvr.Version = "v2"
	o, err := c.dynamic(t).Resource(gvr).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || number(t, o, "metres") != 7 {
		t.Errorf("as v2: %v, %v", o, err)
	}
}

func testCustomNonStructural(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	crds := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions()
	const text = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: NAME.sea.example.com}
spec:
  group: sea.example.com
  scope: Cluster
  names: {plural: NAME, singular: SINGULAR, kind: KIND, listKind: KINDList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {a: {PROPERTIES}}}}}
`
	with := func(name, singular, kind, properties string) *apiextensionsv1.CustomResourceDefinition {
		return definition(t,
			strings.NewReplacer("NAME", name, "SINGULAR", singular, "KIND", kind, "PROPERTIES", properties).Replace(
				text))
	}
	_, err := crds.Create(t.Context(), with("buoys", "buoy", "Buoy", "description: has no type"),
		metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "properties[a].type: Required value") {
		t.Errorf("a schema that is not structural: %v", err)
	}
	// Names that another definition of the group has.
	if _, err := crds.Create(t.Context(), with("ships", "boat", "Boat", "type: string"),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "names that are taken are not accepted", func(ctx context.Context) (error, bool) {
		crd, err := crds.Get(ctx, "ships.sea.example.com", metav1.GetOptions{})
		return err,
			err == nil &&
				slices.ContainsFunc(crd.Status.Conditions,
					func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
						return c.Type == apiextensionsv1.NamesAccepted && c.Status == apiextensionsv1.ConditionFalse
					})
	})
}

// A client of a deposed leader cannot write custom resources either.
func testCustomLeaderTerm(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	cfg := c.LoopbackConfig()
	cfg.WrapTransport = func(rt http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set(leaderterm.Header, "1099511627776")
			return rt.RoundTrip(r)
		})
	}
	_, err := dynamic.NewForConfigOrDie(cfg).Resource(boatsOf).Namespace("leaderterm").Create(t.Context(),
		newBoat(t, "a", "{}"), metav1.CreateOptions{})
	if err == nil {
		t.Error("a write of another term was carried out")
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// certificateOf is the certificate of a test's webhook, which is its own authority.
func certificateOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func testCustomDocuments(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	const path = "apis/sea.example.com/v1"
	var root struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	await(t, "the list of documents has that of boats", func(context.Context) (error, bool) {
		_, body := c.raw(t, "/openapi/v3", nil)
		return json.Unmarshal(body, &root), root.Paths[path].ServerRelativeURL != ""
	})
	for _, own := range []string{"api/v1", "apis/apps/v1", "apis/apiextensions.k8s.io/v1",
		"apis/apiregistration.k8s.io/v1"} {
		if root.Paths[own].ServerRelativeURL == "" {
			t.Errorf("the list of documents lacks %s", own)
		}
	}
	code, body := c.raw(t, root.Paths[path].ServerRelativeURL, nil)
	for _, want := range []string{`"com.example.sea.v1.Boat"`, "The port of registry.",
		`"enum":["Hamburg","Bremen","Kiel"]`, `"default":3`, `"x-kubernetes-list-type":"map"`} {
		if code != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%d: the document lacks %s", code, want)
		}
	}
	if code, body = c.raw(t, root.Paths[path].ServerRelativeURL,
		http.Header{"Accept": {"application/com.github.proto-openapi.spec.v3@v1.0+protobuf"}}); code != http.StatusOK ||
		len(body) == 0 || body[0] == '{' {
		t.Errorf("as protobuf: %d, %.40q", code, body)
	}
	if code, body = c.raw(t, "/openapi/v3/"+path+"?hash=OLD", nil); code != http.StatusOK ||
		!strings.Contains(string(body), "Boat") {
		t.Errorf("with an old hash: %d", code)
	}
	code, body = c.raw(t, "/openapi/v2", nil)
	for _, want := range []string{`"com.example.sea.v1.Boat"`, `"io.k8s.api.core.v1.ConfigMap"`,
		`"io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.APIService"`} {
		if code != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("v2: %d, without %s", code, want)
		}
	}
	if renamed := regexp.MustCompile(`"io\.[^"]*_v\d+"`).Find(body); renamed != nil {
		t.Errorf("v2: servers of the chain define %s differently", renamed)
	}
}

func testCustomKubectl(t *testing.T, c *cluster, _ dynamic.ResourceInterface) {
	run := kubectl(t, c)
	const manifest = `
apiVersion: sea.example.com/v1
kind: Boat
metadata: {name: k, namespace: kubectl}
spec: {crew: 4, port: Kiel}
`
	await(t, "kubectl explains boats", func(context.Context) (error, bool) {
		out, err := run("", "explain", "boats.spec.port")
		return err, strings.Contains(out, "The port of registry.")
	})
	for _, step := range []struct {
		stdin, args string
		want        []string
	}{
		{manifest, "apply -f -", []string{"boat.sea.example.com/k created"}},
		{manifest, "apply -f -", []string{"boat.sea.example.com/k unchanged"}},
		{manifest, "apply --server-side --force-conflicts -f -", []string{"boat.sea.example.com/k serverside-applied"}},
		{"", "get -n kubectl bt", []string{"NAME", "MASTS", "k"}},
		{"", "get -n kubectl boats -o wide", []string{"PORT", "Kiel"}},
		{"", "get -n kubectl all", []string{"boat.sea.example.com/k"}},
		{"", "explain boat.spec", []string{"KIND:", "Boat", "masts", "<integer>"}},
		{"", "scale -n kubectl boat/k --replicas=6", []string{"boat.sea.example.com/k scaled"}},
		{"", `patch -n kubectl boat k --type=merge -p {"spec":{"masts":2}}`, []string{"patched"}},
		{"", "get -n kubectl boat k -o jsonpath={.spec.crew}{.spec.masts}", []string{"62"}},
		{"", "api-resources --api-group=sea.example.com", []string{"boats", "bt", "Boat"}},
		{"", "get crd boats.sea.example.com", []string{"CREATED AT"}},
		{"", "get apiservices v1.apps", []string{"Local", "True"}},
		{"", "delete -n kubectl boat k", []string{`boat.sea.example.com "k" deleted`}},
	} {
		out, err := run(step.stdin, strings.Fields(step.args)...)
		if err != nil {
			t.Errorf("kubectl %s: %v\n%s", step.args, err, out)
		}
		for _, want := range step.want {
			if !strings.Contains(out, want) {
				t.Errorf("kubectl %s: %q is missing in\n%s", step.args, want, out)
			}
		}
	}
	out, err := run(strings.Replace(manifest, "crew", "krew", 1), "apply", "-f", "-")
	if err == nil || !strings.Contains(out, `unknown field "spec.krew"`) {
		t.Errorf("an unknown field: %v\n%s", err, out)
	}
}

// The deletion of a definition deletes its objects first. A new definition of its name does not
// bring them back.
func TestCustomResourceDefinitionDeleted(t *testing.T) {
	c := startCluster(t)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	crds := c.extensions(t).ApiextensionsV1().CustomResourceDefinitions()
	first := c.define(t, boats)
	in := c.dynamic(t).Resource(boatsOf).Namespace(metav1.NamespaceDefault)
	boat(t, in, "a", "{}")
	w, err := in.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := crds.Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the definition goes", func(ctx context.Context) (error, bool) {
		_, err := crds.Get(ctx, first.Name, metav1.GetOptions{})
		return err, apierrors.IsNotFound(err)
	})
	await(t, "boats are not served any more", func(ctx context.Context) (error, bool) {
		_, err := in.List(ctx, metav1.ListOptions{})
		return err, apierrors.IsNotFound(err)
	})
	deadline := time.After(hangs)
	for open := true; open; {
		select {
		case _, open = <-w.ResultChan():
		case <-deadline:
			t.Fatal("a watch of what is not served any more goes on")
		}
	}
	c.define(t, boats)
	await(t, "boats are served again", func(ctx context.Context) (error, bool) {
		list, err := in.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) != 0 {
			t.Errorf("objects of a deleted definition came back: %v", list.Items)
		}
		return err, err == nil
	})
}

// A definition counts on every server once it is established on one.
func TestCustomResourcesOnAllServers(t *testing.T) {
	a := startCluster(t)
	b := startCluster(t, func(cfg *Config) { cfg.Store = a.cfg.Store })
	if err := a.ensure(t.Context(), a.client); err != nil {
		t.Fatal(err)
	}
	a.define(t, boats)
	established := time.Now()
	in := b.dynamic(t).Resource(boatsOf).Namespace(metav1.NamespaceDefault)
	if _, err := in.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatalf("%s after a definition is established, another server: %v", time.Since(established), err)
	}
	t.Logf("another server lists after %s", time.Since(established))
	await(t, "another server discovers boats", func(context.Context) (error, bool) {
		_, err := b.admin.Discovery().ServerResourcesForGroupVersion("sea.example.com/v1")
		return err, err == nil
	})
	t.Logf("another server discovers after %s", time.Since(established))
	boat(t, in, "a", "{}")
	t.Logf("another server creates after %s", time.Since(established)) // the API machinery waits two seconds here
	await(t, "another server explains boats", func(context.Context) (error, bool) {
		code, _ := b.raw(t, "/openapi/v3/apis/sea.example.com/v1", nil)
		return nil, code == http.StatusOK
	})
	t.Logf("another server has the document after %s", time.Since(established))
	if _, err := a.dynamic(t).Resource(boatsOf).Namespace(metav1.NamespaceDefault).Get(t.Context(), "a",
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
