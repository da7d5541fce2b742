package helmcharts

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/controllers/helmcharts/release"
)

// parsed reads a HelmChart as it comes from the API.
func parsed[T any](t *testing.T, text string) *T {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		t.Fatal(err)
	}
	o, err := read[T](u)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDecide(t *testing.T) {
	state := func(status string, edit ...func(*release.State)) release.State {
		s := release.State{Exists: true, Revision: 2, Status: status, Digest: "d",
			Pending: strings.HasPrefix(status, "pending-")}
		for _, e := range edit {
			e(&s)
		}
		return s
	}
	has := func(s *release.State) { s.HasDeployed = true }
	interrupted := func(s *release.State) { s.Interrupted = true }
	for name, c := range map[string]struct {
		state   release.State
		wanted  string
		policy  string
		deleted bool
		want    step
	}{
		"nothing is there":                    {release.State{}, "d", reinstall, false, install},
		"it is as it should be":               {state("deployed"), "d", reinstall, false, nothing},
		"something has changed":               {state("deployed", has), "e", reinstall, false, upgrade},
		"an install was interrupted":          {state("pending-install"), "d", reinstall, false, interrupt},
		"an upgrade was interrupted":          {state("pending-upgrade", has), "d", abort, false, interrupt},
		"a rollback was interrupted":          {state("pending-rollback", has), "d", retry, false, interrupt},
		"an interrupted install goes on":      {state("failed", interrupted), "d", reinstall, false, install},
		"an interrupted upgrade goes on":      {state("failed", has, interrupted), "d", reinstall, false, upgrade},
		"and for abort, too":                  {state("failed", has, interrupted), "d", abort, false, upgrade},
		"a failure is uninstalled":            {state("failed", has), "d", reinstall, false, uninstall},
		"a failed upgrade is tried again":     {state("failed", has), "d", retry, false, upgrade},
		"a failed install is tried again":     {state("failed"), "d", retry, false, install},
		"a failure stays":                     {state("failed", has), "d", abort, false, wait},
		"a change of what has failed":         {state("failed", has), "e", abort, false, upgrade},
		"a change of an install that failed":  {state("failed"), "e", abort, false, install},
		"a reinstallation was interrupted":    {state("uninstalling"), "d", reinstall, false, uninstall},
		"its history was kept by a user":      {state("uninstalled"), "d", reinstall, false, install},
		"a deletion":                          {state("deployed"), "", reinstall, true, uninstall},
		"a deletion in the middle of another": {state("pending-upgrade", has), "", reinstall, true, uninstall},
		"a deletion was interrupted":          {state("uninstalling"), "", reinstall, true, uninstall},
		"a deletion has ended":                {release.State{}, "", reinstall, true, forget},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide(c.state, c.wanted, c.policy, c.deleted); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestNothingStaysPending: from any record, steps that succeed lead to what is asked for.
func TestNothingStaysPending(t *testing.T) {
	for _, status := range []string{"", "unknown", "deployed", "uninstalled", "superseded", "failed", "uninstalling",
		"pending-install", "pending-upgrade", "pending-rollback"} {
		for _, deployedBefore := range []bool{false, true} {
			for _, policy := range []string{reinstall, retry} {
				s := release.State{Exists: status != "", Status: status, Digest: "old", HasDeployed: deployedBefore,
					Pending: strings.HasPrefix(status, "pending-")}
				last := step("")
				for range 10 {
					switch last = decide(s, "new", policy, false); last {
					case interrupt:
						s.Status, s.Pending, s.Interrupted = "failed", false, true
					case install, upgrade:
						s = release.State{Exists: true, Status: "deployed", Digest: "new", HasDeployed: true}
					case uninstall:
						s = release.State{}
					}
				}
				if last != nothing {
					t.Errorf("from %q with %s, the step is still %s", status, policy, last)
				}
			}
		}
	}
}

func TestValuesWinInOrder(t *testing.T) {
	o := parsed[Object](t, `
metadata: {name: c, namespace: ns}
spec:
  chart: c
  valuesContent: "a: content\nb: content\nlist: [1]"
  values: {b: values, c: values}
  valuesSecrets: [{name: s, keys: [k]}, {name: later, keys: [k], ignoreUpdates: true}, {name: unused}]
  set: {e: "1,2", f: 5, g.h: "true", i: "007"}
`)
	config := parsed[Config](t, `{spec: {valuesContent: "d: config", values: {list: [2]}}}`)
	secrets := func(name string) (*corev1.Secret, error) {
		return map[string]*corev1.Secret{
			"s":     {Data: map[string][]byte{"k": []byte("c: secret\nd: secret")}},
			"later": {Data: map[string][]byte{"k": []byte("z: ignored")}},
		}[name], nil
	}
	all, counted, err := valuesOf(o, config, secrets)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": "content", "b": "values", "c": "secret", "d": "config", "list": []any{2},
		"e": "1,2", "f": int64(5), "g": map[string]any{"h": true}, "i": "007", "z": "ignored"}
	got, wanted := asJSON(t, all), asJSON(t, want)
	if got != wanted {
		t.Errorf("got  %s\nwant %s", got, wanted)
	}
	if _, has := counted["z"]; has {
		t.Error("a Secret whose updates are ignored counts")
	}
	if all["i"] != "007" || counted["e"] != "1,2" {
		t.Errorf("set gives %#v, %#v", all["i"], counted["e"])
	}
	missing := func(string) (*corev1.Secret, error) { return nil, nil }
	if _, _, err := valuesOf(o, nil, missing); err == nil || !strings.Contains(err.Error(), "no Secret s") {
		t.Errorf("without its Secret: %v", err)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestDigest: what only says how a chart is fetched, or what follows a failure, upgrades nothing.
func TestDigest(t *testing.T) {
	base := parsed[Object](t, `{spec: {chart: c, repo: r, version: "1"}}`)
	of := func(o *Object, config *Config, values map[string]any) string {
		t.Helper()
		d, err := digest(o, config, values)
		if err != nil || len(d) != 40 {
			t.Fatalf("got %q, %v", d, err)
		}
		return d
	}
	first := of(base, nil, nil)
	for name, c := range map[string]struct {
		edit    func(*Object)
		changes bool
	}{
		"version":       {func(o *Object) { o.Spec.Version = "2" }, true},
		"content":       {func(o *Object) { o.Spec.ChartContent = "x" }, true},
		"conflicts":     {func(o *Object) { o.Spec.ForceConflicts = true }, true},
		"timeout":       {func(o *Object) { o.Spec.Timeout = &metav1.Duration{Duration: 1} }, false},
		"policy":        {func(o *Object) { o.Spec.FailurePolicy = abort }, false},
		"credentials":   {func(o *Object) { o.Spec.AuthSecret.Name = "s" }, false},
		"a job's image": {func(o *Object) { o.Spec.JobImage = "s" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := *base
			c.edit(&o)
			if changed := of(&o, nil, nil) != first; changed != c.changes {
				t.Errorf("changed is %v", changed)
			}
		})
	}
	if of(base, nil, map[string]any{"a": 1}) == first {
		t.Error("values count for nothing")
	}
}

func TestWhoseObjectItIs(t *testing.T) {
	const note = `{metadata: {name: a, annotations: {%s}}, spec: {chart: c}}`
	for text, want := range map[string]bool{
		`{metadata: {name: a}, spec: {chart: c}}`:                                           true,
		`{metadata: {name: a}, spec: {chartContent: c}}`:                                    true,
		`{metadata: {name: a}, spec: {}}`:                                                   false,
		`{metadata: {name: a}, spec: {chart: c, podSecurityContext: {runAsNonRoot: true}}}`: true,
		fmt.Sprintf(note, `helmcharts.helm.cattle.io/unmanaged: ""`):                        false,
		fmt.Sprintf(note, `helmcharts.cattle.io/managed-by: helm-controller`):               true,
		fmt.Sprintf(note, `helmcharts.cattle.io/managed-by: another-controller`):            false,
	} {
		if got := parsed[Object](t, text).managed(); got != want {
			t.Errorf("%s: got %v", text, got)
		}
	}
}

func TestConditionsChangeOnce(t *testing.T) {
	var s Status
	c := condition(Deployed, true, "Deployed", "m")
	if !put(&s, c) || put(&s, c) || !put(&s, condition(Deployed, false, "Upgrading", "m")) {
		t.Error("a condition that is the same is written, or one that is another is not")
	}
	if want := []Condition{{Deployed, "False", "Upgrading", "m"}}; !reflect.DeepEqual(s.Conditions, want) {
		t.Errorf("got %v", s.Conditions)
	}
}
