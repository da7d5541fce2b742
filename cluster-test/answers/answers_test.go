package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
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
	o := object(t, `{metadata: {uid: u, name: n}, spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1], ports: [{nodePort: 30000}], volumes: [{name: kube-api-access-abcde}]}}`)
	want := object(t, `{metadata: {name: n}, spec: {ports: [{}], volumes: [{name: kube-api-access-*}]}}`)
	if diff := cmp.Diff(any(want), steady(o, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	none := object(t, `{spec: {clusterIP: None, clusterIPs: [None]}}`)
	if diff := cmp.Diff(any(clone(none)), steady(none, nil)); diff != "" {
		t.Errorf("headless (-want +got):\n%s", diff)
	}
}

func TestDifferences(t *testing.T) {
	got := differences("", any(object(t, `{a: 1, b: [1, 2], c: {d: x}}`)), any(object(t, `{a: 1, b: [1, 3], e: z}`)))
	want := []string{`b[1]: upstream 2, Barque 3`, `c: upstream {"d":"x"}, Barque null`, `e: upstream null, Barque "z"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
