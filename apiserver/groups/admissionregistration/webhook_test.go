package admissionregistration

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

func kindOf[T any]() *resource.Kind[T] { return resource.Find[T](Resources()) }

// parse reads an object and gives it its defaults, as a decoder does.
func parse[T any](t *testing.T, k *resource.Kind[T], text string) *T {
	t.Helper()
	obj := grouptest.Parse[T](t, text)
	k.Default(obj)
	return obj
}

// change replaces parts of a text, each of which must be there.
func change(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("test data: no %q", pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

const hookText = `
metadata: {name: hooks}
webhooks:
- name: a.example.com
  clientConfig: {service: {namespace: ns, name: svc, path: /x}}
  rules:
  - {operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}
  sideEffects: None
  admissionReviewVersions: [v1]
  matchConditions: [{name: c, expression: object.spec.x == 1}]
`

// hookBreaks are faults of a webhook configuration, with their messages.
var hookBreaks = map[string]struct {
	pairs []string
	want  []string
}{
	"good": {nil, nil},
	"static name": {[]string{"name: hooks", "name: hooks.static.k8s.io"},
		[]string{grouptest.Invalid + "metadata.name"}},
	"bad name":    {[]string{"name: hooks", "name: Hooks"}, []string{grouptest.Invalid + "metadata.name"}},
	"unqualified": {[]string{"a.example.com", "a"}, []string{grouptest.Invalid + "webhooks[0].name"}},
	"no client": {[]string{"{service: {namespace: ns, name: svc, path: /x}}", "{}"},
		[]string{grouptest.Missing + "webhooks[0].clientConfig"}},
	"both clients": {[]string{"{service:", "{url: 'https://a', service:"},
		[]string{grouptest.Missing + "webhooks[0].clientConfig"}},
	"http": {[]string{"{service: {namespace: ns, name: svc, path: /x}}", "{url: 'http://a'}"},
		[]string{grouptest.Invalid + "webhooks[0].clientConfig.url"}},
	"no service name": {[]string{"name: svc, ", ""},
		[]string{grouptest.Missing + "webhooks[0].clientConfig.service.name"}},
	"no service namespace": {[]string{"namespace: ns, ", ""},
		[]string{grouptest.Missing + "webhooks[0].clientConfig.service.namespace"}},
	"path": {[]string{"path: /x", "path: /A"},
		[]string{grouptest.Invalid + "webhooks[0].clientConfig.service.path"}},
	"port": {[]string{"path: /x", "port: 70000"},
		[]string{grouptest.Invalid + "webhooks[0].clientConfig.service.port"}},
	"no operations": {[]string{"[CREATE]", "[]"},
		[]string{grouptest.Missing + "webhooks[0].rules[0].operations"}},
	"unknown operation": {[]string{"[CREATE]", "[create]"},
		[]string{grouptest.Unknown + "webhooks[0].rules[0].operations[0]"}},
	"operations and all": {[]string{"[CREATE]", "['*', CREATE]"},
		[]string{grouptest.Invalid + "webhooks[0].rules[0].operations"}},
	"no groups": {[]string{`apiGroups: [""]`, "apiGroups: []"},
		[]string{grouptest.Missing + "webhooks[0].rules[0].apiGroups"}},
	"groups and all": {[]string{`apiGroups: [""]`, "apiGroups: ['*', a]"},
		[]string{grouptest.Invalid + "webhooks[0].rules[0].apiGroups"}},
	"no versions": {[]string{"apiVersions: [v1]", "apiVersions: []"},
		[]string{grouptest.Missing + "webhooks[0].rules[0].apiVersions"}},
	"empty version": {[]string{"apiVersions: [v1]", "apiVersions: ['']"},
		[]string{grouptest.Missing + "webhooks[0].rules[0].apiVersions[0]"}},
	"versions and all": {[]string{"apiVersions: [v1]", "apiVersions: ['*', v1]"},
		[]string{grouptest.Invalid + "webhooks[0].rules[0].apiVersions"}},
	"no resources": {[]string{"[pods]", "[]"}, []string{grouptest.Missing + "webhooks[0].rules[0].resources"}},
	"empty resource": {[]string{"[pods]", "['']"},
		[]string{grouptest.Missing + "webhooks[0].rules[0].resources[0]"}},
	"resources and all": {[]string{"[pods]", "['*', pods]"},
		[]string{grouptest.Invalid + "webhooks[0].rules[0].resources"}},
	"all and a subresource": {[]string{"[pods]", "['*', pods/exec]"}, nil},
	"really all": {[]string{"[pods]", "['*/*', nodes]"},
		[]string{grouptest.Invalid + "webhooks[0].rules[0].resources"}},
	"subresources twice": {[]string{"[pods]", "['pods/*', pods/exec]"},
		[]string{grouptest.Invalid + "webhooks[0].rules[0].resources[1]"}},
	"of all, and of one": {[]string{"[pods]", "['*/scale', a/scale]"},
		[]string{grouptest.Invalid + "webhooks[0].rules[0].resources[1]"}},
	"scope": {[]string{"[pods]", "[pods], scope: World"},
		[]string{grouptest.Unknown + "webhooks[0].rules[0].scope"}},
	"failure policy": {[]string{"sideEffects", "failurePolicy: Maybe\n  sideEffects"},
		[]string{grouptest.Unknown + "webhooks[0].failurePolicy"}},
	"match policy": {[]string{"sideEffects", "matchPolicy: Maybe\n  sideEffects"},
		[]string{grouptest.Unknown + "webhooks[0].matchPolicy"}},
	"no side effects": {[]string{"  sideEffects: None\n", ""},
		[]string{grouptest.Missing + "webhooks[0].sideEffects"}},
	"some side effects": {[]string{"None", "Some"}, []string{grouptest.Unknown + "webhooks[0].sideEffects"}},
	"too brief": {[]string{"sideEffects", "timeoutSeconds: 0\n  sideEffects"},
		[]string{grouptest.Invalid + "webhooks[0].timeoutSeconds"}},
	"too long": {[]string{"sideEffects", "timeoutSeconds: 31\n  sideEffects"},
		[]string{grouptest.Invalid + "webhooks[0].timeoutSeconds"}},
	"namespaces": {[]string{"sideEffects", "namespaceSelector: {matchLabels: {a: '-'}}\n  sideEffects"},
		[]string{grouptest.Invalid + "webhooks[0].namespaceSelector.matchLabels"}},
	"objects": {
		[]string{"sideEffects", "objectSelector: {matchExpressions: [{key: a, operator: Near}]}\n  sideEffects"},
		[]string{grouptest.Invalid + "webhooks[0].objectSelector.matchExpressions[0].operator"}},
	"no review version": {[]string{"  admissionReviewVersions: [v1]\n", ""},
		[]string{grouptest.Missing + "webhooks[0].admissionReviewVersions"}},
	"unknown versions": {[]string{"admissionReviewVersions: [v1]", "admissionReviewVersions: [v9]"},
		[]string{grouptest.Invalid + "webhooks[0].admissionReviewVersions"}},
	"version twice": {[]string{"admissionReviewVersions: [v1]", "admissionReviewVersions: [v1, v1]"},
		[]string{grouptest.Invalid + "webhooks[0].admissionReviewVersions[1]"}},
	"condition's name": {[]string{"name: c,", "name: '',"},
		[]string{grouptest.Missing + "webhooks[0].matchConditions[0].name"}},
	"no condition": {[]string{"object.spec.x == 1", "' '"},
		[]string{grouptest.Missing + "webhooks[0].matchConditions[0].expression"}},
	"no boolean": {[]string{"object.spec.x == 1", "'1'"},
		[]string{grouptest.Invalid + "webhooks[0].matchConditions[0].expression"}},
	"parameters": {[]string{"object.spec.x == 1", "params.x == 1"},
		[]string{grouptest.Invalid + "webhooks[0].matchConditions[0].expression"}},
	"condition twice": {[]string{"== 1}", "== 1}, {name: c, expression: 'true'}"},
		[]string{grouptest.Duplicate + "webhooks[0].matchConditions[1].name"}},
	"too many conditions": {
		[]string{"[{name: c, expression: object.spec.x == 1}]",
			"[" + strings.Repeat("{name: c, expression: 'true'},", 65) + "]"},
		append([]string{grouptest.TooMany + "webhooks[0].matchConditions"}, duplicates(64)...)},
	"webhook twice": {
		[]string{"webhooks:\n",
			"webhooks:\n- {name: a.example.com, clientConfig: {url: 'https://a'}, sideEffects: None, admissionReviewVersions: [v1]}\n"},
		[]string{grouptest.Duplicate + "webhooks[1].name"}},
}

func duplicates(n int) []string {
	var all []string
	for i := range n {
		all = append(all,
			grouptest.Duplicate+
				field.NewPath("webhooks").Index(0).Child("matchConditions").Index(i+1).Child("name").String())
	}
	return all
}

func TestWebhookConfigurations(t *testing.T) {
	validating, mutating := kindOf[admissionv1.ValidatingWebhookConfiguration](),
		kindOf[admissionv1.MutatingWebhookConfiguration]()
	for name, c := range hookBreaks {
		t.Run(name, func(t *testing.T) {
			text := change(t, hookText, c.pairs...)
			grouptest.WantErrors(t, validating.Validate(context.Background(), parse(t, validating, text), nil),
				c.want...)
			grouptest.WantErrors(t, mutating.Validate(context.Background(), parse(t, mutating, text), nil), c.want...)
		})
	}
	grouptest.WantErrors(t, mutating.Validate(context.Background(), parse(t, mutating,
		change(t, hookText, "sideEffects", "reinvocationPolicy: Always\n  sideEffects")), nil),
		grouptest.Unknown+"webhooks[0].reinvocationPolicy")
}

// A stored value that was valid once may stay; a new one must be valid today.
func TestWebhookConfigurationUpdate(t *testing.T) {
	k := kindOf[admissionv1.ValidatingWebhookConfiguration]()
	for name, pairs := range map[string][]string{
		"side effects":    {"None", "Some"},
		"review versions": {"admissionReviewVersions: [v1]", "admissionReviewVersions: [v9]"},
		"selector": {"sideEffects",
			"objectSelector: {matchExpressions: [{key: a, operator: In, values: ['-']}]}\n  sideEffects"},
		"names": {"webhooks:\n",
			"webhooks:\n- {name: a.example.com, clientConfig: {url: 'https://a'}, sideEffects: None, admissionReviewVersions: [v1]}\n"},
		"match conditions ": {"object.spec.x == 1", "unknown(object)"},
	} {
		t.Run(name, func(t *testing.T) {
			text := change(t, hookText, append(pairs, "name: hooks", "name: hooks, resourceVersion: '1'")...)
			old, now := parse(t, k, text), parse(t, k, text)
			now.Labels = map[string]string{"a": "b"}
			grouptest.WantErrors(t, k.Validate(context.Background(), now, old))
			good := parse(t, k, change(t, hookText, "name: hooks", "name: hooks, resourceVersion: '1'"))
			if errs := k.Validate(context.Background(), now, good); len(errs) == 0 {
				t.Error("an update brings in what is wrong")
			}
		})
	}
}

func TestWebhookDefaults(t *testing.T) {
	k := kindOf[admissionv1.MutatingWebhookConfiguration]()
	got, err := yaml.Marshal(
		parse(t, k,
			`webhooks: [{name: a, clientConfig: {service: {namespace: ns, name: s}}, rules: [{}]}]`).Webhooks[0])
	if err != nil {
		t.Fatal(err)
	}
	const want = `admissionReviewVersions: null
clientConfig:
  service:
    name: s
    namespace: ns
    port: 443
failurePolicy: Fail
matchPolicy: Equivalent
name: a
namespaceSelector: {}
objectSelector: {}
reinvocationPolicy: Never
rules:
- scope: '*'
sideEffects: null
timeoutSeconds: 10
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("defaults differ (-want +got):\n%s", diff)
	}
}

func TestWebhookRowsAndWarnings(t *testing.T) {
	validating, mutating := kindOf[admissionv1.ValidatingWebhookConfiguration](),
		kindOf[admissionv1.MutatingWebhookConfiguration]()
	v, m := parse(t, validating, hookText), parse(t, mutating, hookText)
	v.CreationTimestamp, m.CreationTimestamp = grouptest.Ago(time.Minute), grouptest.Ago(time.Hour)
	grouptest.WantRow(t, validating, v, "hooks", int64(1), "60s")
	grouptest.WantRow(t, mutating, m, "hooks", int64(1), "60m")
	review := change(t, hookText, `apiGroups: [""]`, "apiGroups: [authentication.k8s.io]", "[pods]", "[tokenreviews]")
	want := []string{
		"webhooks[0].rules[0]: tokenreviews.authentication.k8s.io is excluded from admission webhooks; this rule will have no effect"}
	if got := validating.Warnings(context.Background(), parse(t, validating, review), nil); !slices.Equal(got, want) {
		t.Errorf("warnings %q", got)
	}
	if got := mutating.Warnings(context.Background(), m, nil); len(got) > 0 {
		t.Errorf("warnings %q", got)
	}
}
