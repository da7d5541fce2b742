package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return clone(out)
}

func TestKindsAreRead(t *testing.T) {
	kinds, err := readKinds()
	if err != nil {
		t.Fatal(err)
	}
	requests := 0
	for _, k := range kinds {
		if k.name == "Pod" && k.path != "/api/v1/namespaces/answers/pods" {
			t.Errorf("pods are at %s", k.path)
		}
		requests += len(k.requests())
	}
	if requests < 5000 {
		t.Errorf("only %d requests", requests)
	}
	t.Logf("%d requests", requests)
}

// TestEveryKind: each kind that Kubernetes serves and stores has an object, in the right scope, and
// its status is written if it has one.
func TestEveryKind(t *testing.T) {
	kinds, err := readKinds()
	if err != nil {
		t.Fatal(err)
	}
	byPath := map[string]*kind{}
	for _, k := range kinds {
		byPath[k.path] = k
	}
	data, err := os.ReadFile("../../apiserver/testdata/kubernetes-1.37.tsv")
	if err != nil {
		t.Fatal(err)
	}
	statuses := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		// group/version, resource, kind, scope, short names, categories, verbs
		columns := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(columns) < 7 {
			continue
		}
		gv, err := schema.ParseGroupVersion(columns[0])
		if err != nil {
			t.Fatal(err)
		}
		resource, sub, _ := strings.Cut(columns[1], "/")
		path := apiPath(gv) + "/" + resource
		if columns[3] == "namespaced" {
			path = apiPath(gv) + "/namespaces/" + (&kind{name: columns[2]}).namespace() + "/" + resource
		}
		switch {
		case sub == "status":
			statuses[path] = true
		case sub == "" && strings.Contains(columns[6], "stored") && byPath[path] == nil:
			t.Errorf("no object is made at %s", path)
		}
	}
	for path, k := range byPath {
		if k.status != statuses[path] {
			t.Errorf("%s has a status that is written: %v; here: %v", k.name, statuses[path], k.status)
		}
	}
}

func TestMutations(t *testing.T) {
	k := &kind{object: object(t, `{kind: K, spec: {list: [{num: 1}], flag: true}}`)}
	got := map[string]map[string]any{}
	for _, m := range k.mutations() {
		got[m.name] = m.object
	}
	for name, want := range map[string]string{
		"nothing":                   `{kind: K, spec: {list: [{num: 1}], flag: true}}`,
		"spec.flag turned":          `{kind: K, spec: {list: [{num: 1}], flag: false}}`,
		"spec.flag removed":         `{kind: K, spec: {list: [{num: 1}]}}`,
		"spec.list empty":           `{kind: K, spec: {list: [], flag: true}}`,
		"spec.list[0] removed":      `{kind: K, spec: {list: [], flag: true}}`,
		"spec.list first doubled":   `{kind: K, spec: {list: [{num: 1}, {num: 1}], flag: true}}`,
		"spec.list[0].num negative": `{kind: K, spec: {list: [{num: -5}], flag: true}}`,
		"spec removed":              `{kind: K}`,
	} {
		if diff := cmp.Diff(object(t, want), clone(got[name])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestMerge(t *testing.T) {
	o := object(t, `{a: {b: 1, c: 2}, d: [1]}`)
	merge(o, object(t, `{a: {b: null, e: {f: 3, g: null}}, d: [2]}`))
	if diff := cmp.Diff(object(t, `{a: {c: 2, e: {f: 3}}, d: [2]}`), clone(o)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSteady(t *testing.T) {
	o := object(t,
		`{metadata: {uid: u, name: n}, spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{nodePort: 30000}], volumes: [{name: kube-api-access-abcde}]}}`)
	want := object(t, `{metadata: {name: n}, spec: {ports: [{}], volumes: [{name: kube-api-access-*}]}}`)
	if diff := cmp.Diff(any(want), steady(o, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none := object(t, `{spec: {clusterIP: None, clusterIPs: [None]}}`)
	if diff := cmp.Diff(any(clone(none)), steady(none, nil)); diff != "" {
		t.Errorf("headless (-want +got):\n%s", diff)
	}
}

func TestSteadyTable(t *testing.T) {
	o := object(t,
		`{columnDefinitions: [{name: Age, description: d}], rows: [{cells: [s, 10.43.1.2, "80:31000/TCP", 12s], object: {metadata: {name: s, uid: u}}}]}`)
	want := object(t,
		`{columnDefinitions: [{name: Age}], rows: [{cells: [s, "*", "80*/TCP", "*"], object: {metadata: {name: s}}}]}`)
	if diff := cmp.Diff(any(want), steady(o, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOthers(t *testing.T) {
	o := &other{Name: "Deployment scale", Method: "PUT", Path: "apis/apps/v1/deployments/d/scale",
		Object: object(t, `{kind: Scale}`)}
	if got := o.kind().path; got != "/apis/apps/v1/namespaces/answers/deployments/d/scale" {
		t.Error(got)
	}
	o.Path = "api/v1/pods/p/eviction"
	if got := o.kind().path; got != "/api/v1/namespaces/answers/pods/p/eviction" {
		t.Error(got)
	}
}

func TestDifferences(t *testing.T) {
	got := differences("", any(object(t, `{a: 1, b: [1, 2], c: {d: x}}`)), any(object(t, `{a: 1, b: [1, 3], e: z}`)))
	want := []string{`b[1]: upstream 2, Barque 3`, `c: upstream {"d":"x"}, Barque null`, `e: upstream null, Barque "z"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
