package reviews

import (
	"context"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/yaml"
)

func resourceAttributes(t *testing.T, text string) *authorizationv1.ResourceAttributes {
	t.Helper()
	ra := &authorizationv1.ResourceAttributes{}
	if err := yaml.UnmarshalStrict([]byte(text), ra); err != nil {
		t.Fatal(err)
	}
	return ra
}

func TestSelectorsOfReviews(t *testing.T) {
	const in = "spec.resourceAttributes."
	for name, c := range map[string]struct {
		attributes string
		want       []string // type and field
	}{
		"none":      {"{verb: get}", nil},
		"of fields": {"{fieldSelector: {requirements: [{key: metadata.name, operator: In, values: [a]}]}}", nil},
		"of labels": {"{labelSelector: {requirements: [{key: k, operator: Exists}]}}", nil},
		"raw":       {"{fieldSelector: {rawSelector: a=b}, labelSelector: {rawSelector: a=b}}", nil},
		"newer operators": {
			"{fieldSelector: {requirements: [{key: k, operator: Like}]}, labelSelector: {requirements: [{key: k, operator: Like}]}}", nil},
		"empty": {"{fieldSelector: {}, labelSelector: {}}",
			[]string{"FieldValueRequired " + in + "fieldSelector.requirements",
				"FieldValueRequired " + in + "labelSelector.requirements"}},
		"both": {"{fieldSelector: {rawSelector: a=b, requirements: [{key: k, operator: Exists}]}}",
			[]string{"FieldValueInvalid " + in + "fieldSelector.rawSelector"}},
		"no field": {"{fieldSelector: {requirements: [{operator: Exists}]}}",
			[]string{"FieldValueRequired " + in + "fieldSelector.requirements[0].key"}},
		"no values": {"{fieldSelector: {requirements: [{key: k, operator: In}]}}",
			[]string{"FieldValueRequired " + in + "fieldSelector.requirements[0].values"}},
		"no values either": {"{labelSelector: {requirements: [{key: k, operator: In}]}}",
			[]string{"FieldValueRequired " + in + "labelSelector.requirements[0].values"}},
		"no label's value": {"{labelSelector: {requirements: [{key: k, operator: In, values: ['Not valid!']}]}}",
			[]string{"FieldValueInvalid " + in + "labelSelector.requirements[0].values[0]"}},
	} {
		var got []string
		for _, e := range validateAttributes(resourceAttributes(t, c.attributes), nil) {
			got = append(got, string(e.Type)+" "+e.Field)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	neither, both := validateAttributes(nil, nil),
		validateAttributes(&authorizationv1.ResourceAttributes{}, &authorizationv1.NonResourceAttributes{})
	if len(neither) != 1 || len(both) != 1 || neither[0].Field != "spec" || both[0].Field != "spec" {
		t.Errorf("neither: %v, both: %v", neither, both)
	}
}

// The parts of a selector that this server does not know are left out, and the answer reports that.
func TestSelectorsThatAreLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		attributes     string
		fields, labels int // requirements that are taken
		want           string
	}{
		"all known": {
			"{fieldSelector: {requirements: [{key: a, operator: In, values: [b]}]}, labelSelector: {requirements: [{key: a, operator: In, values: [b]}]}}", 1, 1, ""},
		"unknown": {
			"{fieldSelector: {requirements: [{key: a, operator: Like}]}, labelSelector: {requirements: [{key: a, operator: Like}]}}", 0, 0,
			"spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error"},
		"partly": {
			"{fieldSelector: {requirements: [{key: a, operator: NotIn, values: [b]}, {key: a, operator: In, values: [b, c]}]}, labelSelector: {requirements: [{key: a, operator: Exists}, {key: b, operator: Like}]}}", 1, 1,
			"spec.resourceAttributes.fieldSelector partially ignored due to parse error; spec.resourceAttributes.labelSelector partially ignored due to parse error"},
		"raw": {"{labelSelector: {rawSelector: 'a in'}}", 0, 0,
			"spec.resourceAttributes.labelSelector ignored due to parse error"},
	} {
		var asked authorizer.Attributes
		r := reviewer{
			authz: authorizer.AuthorizerFunc(
				func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
					asked = a
					return authorizer.DecisionAllow, "", nil
				})}
		status := r.decide(t.Context(), nil, resourceAttributes(t, c.attributes), nil)
		byField, _ := asked.GetFieldSelector()
		byLabel, _ := asked.GetLabelSelector()
		if status.EvaluationError != c.want || len(byField) != c.fields || len(byLabel) != c.labels {
			t.Errorf("%s: %q, with %v and %v", name, status.EvaluationError, byField, byLabel)
		}
	}
}
