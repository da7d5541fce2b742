package admissionregistration

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const validatingText = `
metadata: {name: p}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules: [{resourceNames: [x], operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  matchConditions: [{name: c, expression: params.data.x == 'y'}]
  variables: [{name: v, expression: object.spec.x}]
  validations: [{expression: variables.v == 1, messageExpression: "string(variables.v)", message: no, reason: Forbidden}]
  auditAnnotations: [{key: k, valueExpression: string(variables.v)}]
`

func TestValidatingPolicies(t *testing.T) {
	k := kindOf[admissionv1.ValidatingAdmissionPolicy]()
	for name, c := range map[string]struct {
		pairs []string
		want  []string
	}{
		"good": {nil, nil},
		"static name": {[]string{"name: p", "name: p.static.k8s.io"},
			[]string{grouptest.Invalid + "metadata.name"}},
		"failure policy": {[]string{"spec:", "spec:\n  failurePolicy: Maybe"},
			[]string{grouptest.Unknown + "spec.failurePolicy"}},
		"kind without version": {[]string{"apiVersion: v1, kind", "kind"},
			[]string{grouptest.Missing + "spec.paramKind.apiVersion"}},
		"version of three parts": {[]string{"apiVersion: v1, kind", "apiVersion: a/b/c, kind"},
			[]string{grouptest.Invalid + "spec.paramKind.apiVersion"}},
		"group": {[]string{"apiVersion: v1, kind", "apiVersion: A/v1, kind"},
			[]string{grouptest.Invalid + "spec.paramKind.apiVersion"}},
		"version": {[]string{"apiVersion: v1, kind", "apiVersion: a/V1, kind"},
			[]string{grouptest.Invalid + "spec.paramKind.apiVersion"}},
		"no kind": {[]string{", kind: ConfigMap", ""},
			[]string{grouptest.Missing + "spec.paramKind.kind"}},
		"kind": {[]string{"ConfigMap", "Config_Map"},
			[]string{grouptest.Invalid + "spec.paramKind.kind"}},
		"no rules": {[]string{"resourceRules: [", "excludeResourceRules: ["},
			[]string{grouptest.Missing + "spec.matchConstraints.resourceRules"}},
		"rule": {[]string{"[CREATE]", "[]"},
			[]string{grouptest.Missing + "spec.matchConstraints.resourceRules[0].operations"}},
		"excluded rule": {
			[]string{"resourceRules:",
				"excludeResourceRules: [{operations: [X], apiGroups: [a], apiVersions: [a], resources: [a]}]\n    resourceRules:"}, []string{grouptest.Unknown + "spec.matchConstraints.excludeResourceRules[0].operations[0]"}},
		"resource name": {[]string{"[x]", "[a/b]"},
			[]string{grouptest.Invalid + "spec.matchConstraints.resourceRules[0].resourceNames[0]"}},
		"resource name twice": {[]string{"[x]", "[x, x]"},
			[]string{grouptest.Duplicate + "spec.matchConstraints.resourceRules[0].resourceNames[1]"}},
		"match policy": {[]string{"resourceRules:", "matchPolicy: Near\n    resourceRules:"},
			[]string{grouptest.Unknown + "spec.matchConstraints.matchPolicy"}},
		"selector": {
			[]string{"resourceRules:", "objectSelector: {matchLabels: {'-': a}}\n    resourceRules:"},
			[]string{grouptest.Invalid + "spec.matchConstraints.objectSelector.matchLabels"}},
		"condition": {[]string{"params.data.x == 'y'", "params.data.x +"},
			[]string{grouptest.Invalid + "spec.matchConditions[0].expression"}},
		"condition with variable": {[]string{"params.data.x == 'y'", "variables.v == 1"},
			[]string{grouptest.Invalid + "spec.matchConditions[0].expression"}},
		"no params": {[]string{"  paramKind: {apiVersion: v1, kind: ConfigMap}\n", ""},
			[]string{grouptest.Invalid + "spec.matchConditions[0].expression"}},
		"variable without a name": {
			[]string{"variables: [{name: v", "variables: [{name: a, expression: '1'}, {name: ''"}, []string{
				grouptest.Missing + "spec.variables[1].name", grouptest.Invalid + "spec.validations[0].expression",
				grouptest.Invalid + "spec.validations[0].messageExpression",
				grouptest.Invalid + "spec.auditAnnotations[0].valueExpression"}},
		"reserved variable": {
			[]string{"variables: [{name: v", "variables: [{name: loop, expression: '1'}, {name: v"},
			[]string{grouptest.Invalid + "spec.variables[0].name"}},
		"variable": {
			[]string{"variables: [{name: v", "variables: [{name: a, expression: '1 +'}, {name: v"},
			[]string{grouptest.Invalid + "spec.variables[0].expression"}},
		"empty variable": {[]string{"variables: [{name: v", "variables: [{name: a}, {name: v"},
			[]string{grouptest.Missing + "spec.variables[0].expression"}},
		"no validation": {[]string{"expression: variables.v == 1", "expression: ' '"},
			[]string{grouptest.Missing + "spec.validations[0].expression"}},
		"no boolean": {[]string{"variables.v == 1", "'1'"},
			[]string{grouptest.Invalid + "spec.validations[0].expression"}},
		"unknown variable": {[]string{"variables.v == 1", "variables.w == 1"},
			[]string{grouptest.Invalid + "spec.validations[0].expression"}},
		"message expression": {[]string{`"string(variables.v)"`, "'1'"},
			[]string{grouptest.Invalid + "spec.validations[0].messageExpression"}},
		"blank": {[]string{`"string(variables.v)"`, "' '"},
			[]string{grouptest.Invalid + "spec.validations[0].messageExpression"}},
		"authorizer in message": {[]string{`"string(variables.v)"`, `"authorizer.path('/').check('get').reason()"`},
			[]string{grouptest.Invalid + "spec.validations[0].messageExpression"}},
		"message of two lines": {[]string{"message: no", `message: "a\nb"`},
			[]string{grouptest.Invalid + "spec.validations[0].message"}},
		"blank message": {[]string{"message: no", "message: ' '"},
			[]string{grouptest.Invalid + "spec.validations[0].message"}},
		"reason": {[]string{"reason: Forbidden", "reason: Gone"},
			[]string{grouptest.Unknown + "spec.validations[0].reason"}},
		"annotation's key": {[]string{"key: k", "key: a b"},
			[]string{grouptest.Invalid + "spec.auditAnnotations[0].key"}},
		"annotation twice": {
			[]string{"auditAnnotations: [", "auditAnnotations: [{key: k, valueExpression: \"'a'\"}, "},
			[]string{grouptest.Duplicate + "spec.auditAnnotations[1].key"}},
		"no annotation": {[]string{"valueExpression: string(variables.v)", "valueExpression: ''"},
			[]string{grouptest.Missing + "spec.auditAnnotations[0].valueExpression"}},
		"long annotation": {
			[]string{"valueExpression: string(variables.v)",
				"valueExpression: \"'" + strings.Repeat("a", 5<<10) + "'\""},
			[]string{grouptest.Missing + "spec.auditAnnotations[0].valueExpression"}},
		"number as annotation": {[]string{"valueExpression: string(variables.v)", "valueExpression: '1'"},
			[]string{grouptest.Invalid + "spec.auditAnnotations[0].valueExpression"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse(t, k, change(t, validatingText, c.pairs...))
			grouptest.WantErrors(t, k.Validate(context.Background(), p, nil), c.want...)
		})
	}
	empty := parse(t, k, "metadata: {name: p}")
	grouptest.WantErrors(t, k.Validate(context.Background(), empty, nil),
		grouptest.Missing+"spec.matchConstraints", grouptest.Missing+"spec.validations",
		grouptest.Missing+"spec.auditAnnotations")
	many := parse(t, k, validatingText)
	for range 20 {
		many.Spec.AuditAnnotations = append(many.Spec.AuditAnnotations,
			admissionv1.AuditAnnotation{Key: strings.Repeat("a", len(many.Spec.AuditAnnotations)),
				ValueExpression: "'a'"})
	}
	grouptest.WantErrors(t, k.Validate(context.Background(), many, nil), grouptest.Invalid+"spec.auditAnnotations")
}

func TestValidatingPolicyStatusAndRow(t *testing.T) {
	k := kindOf[admissionv1.ValidatingAdmissionPolicy]()
	p := parse(t, k, validatingText)
	p.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, k, p, "p", int64(1), "v1/ConfigMap", "60s")
	p.Spec.ParamKind = nil
	grouptest.WantRow(t, k, p, "p", int64(1), "<unset>", "60s")
	p.Status = grouptest.Parse[admissionv1.ValidatingAdmissionPolicy](t, `{status: {
		typeChecking: {expressionWarnings: [{fieldRef: 'spec.validations[0].expression', warning: x}, {fieldRef: 'a[', warning: ''}, {warning: x}]},
		conditions: [{type: a, status: Maybe, reason: R, lastTransitionTime: 2030-01-01T00:00:00Z}]}}`).Status
	grouptest.WantErrors(t, k.Status.Validate(context.Background(), p, p),
		grouptest.Invalid+"status.typeChecking.expressionWarnings[1].fieldRef",
		grouptest.Missing+"status.typeChecking.expressionWarnings[1].warning",
		grouptest.Missing+"status.typeChecking.expressionWarnings[2].fieldRef",
		grouptest.Unknown+"status.conditions[0].status")
}

const mutatingText = `
metadata: {name: p}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  variables: [{name: v, expression: "'x'"}]
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: '[JSONPatch{op: "add", path: "/a", value: variables.v}]'}
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: 'Object{spec: Object.spec{a: variables.v}}'}
`

func TestMutatingPolicies(t *testing.T) {
	k := kindOf[admissionv1.MutatingAdmissionPolicy]()
	for name, c := range map[string]struct {
		pairs []string
		want  []string
	}{
		"good": {nil, nil},
		"static name": {[]string{"name: p", "name: p.static.k8s.io"},
			[]string{grouptest.Invalid + "metadata.name"}},
		"deletion": {[]string{"[CREATE]", "[DELETE]"},
			[]string{grouptest.Unknown + "spec.matchConstraints.resourceRules.operations"}},
		"no reinvocation": {[]string{"reinvocationPolicy: Never", "failurePolicy: Fail"},
			[]string{grouptest.Missing + "spec.reinvocationPolicy"}},
		"reinvocation": {[]string{"reinvocationPolicy: Never", "reinvocationPolicy: Twice"},
			[]string{grouptest.Unknown + "spec.reinvocationPolicy"}},
		"no patch type": {[]string{"patchType: JSONPatch", "patchType: ''"},
			[]string{grouptest.Missing + "spec.mutations[0].patchType"}},
		"patch type": {[]string{"patchType: JSONPatch", "patchType: Merge"},
			[]string{grouptest.Unknown + "spec.mutations[0].patchType"}},
		"the other": {[]string{"patchType: JSONPatch", "patchType: ApplyConfiguration"},
			[]string{grouptest.Missing + "spec.mutations[0].applyConfiguration",
				grouptest.Invalid + "spec.mutations[0].jsonPatch"}},
		"the one": {[]string{"patchType: ApplyConfiguration", "patchType: JSONPatch"},
			[]string{grouptest.Missing + "spec.mutations[1].jsonPatch",
				grouptest.Invalid + "spec.mutations[1].applyConfiguration"}},
		"empty patch": {[]string{`'[JSONPatch{op: "add", path: "/a", value: variables.v}]'`, "''"},
			[]string{grouptest.Missing + "spec.mutations[0].jsonPatch.expression"}},
		"no patch": {[]string{`'[JSONPatch{op: "add", path: "/a", value: variables.v}]'`, "'1'"},
			[]string{grouptest.Invalid + "spec.mutations[0].jsonPatch.expression"}},
		"no object": {[]string{"'Object{spec: Object.spec{a: variables.v}}'", "'1'"},
			[]string{grouptest.Invalid + "spec.mutations[1].applyConfiguration.expression"}},
		"condition": {[]string{"  variables:", "  matchConditions: [{name: c, expression: '1'}]\n  variables:"},
			[]string{grouptest.Invalid + "spec.matchConditions[0].expression"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse(t, k, change(t, mutatingText, c.pairs...))
			grouptest.WantErrors(t, k.Validate(context.Background(), p, nil), c.want...)
		})
	}
	empty := parse(t, k, "{metadata: {name: p}, spec: {reinvocationPolicy: Never}}")
	grouptest.WantErrors(t, k.Validate(context.Background(), empty, nil), grouptest.Missing+"spec.matchConstraints",
		grouptest.Missing+"spec.mutations")
	p := parse(t, k, mutatingText)
	p.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, k, p, "p", int64(2), "<unset>", "60s")
	// Stored conditions are not compiled again, new ones are.
	old := parse(t, k,
		change(t, mutatingText, "  variables:", "  matchConditions: [{name: c, expression: '1'}]\n  variables:"))
	old.ResourceVersion = "1"
	grouptest.WantErrors(t, k.Validate(context.Background(), old, old))
}

const bindingText = `
metadata: {name: b}
spec:
  policyName: p
  paramRef: {name: x, namespace: ns, parameterNotFoundAction: Deny}
  validationActions: [Deny, Audit]
`

func TestBindings(t *testing.T) {
	validating, mutating := kindOf[admissionv1.ValidatingAdmissionPolicyBinding](),
		kindOf[admissionv1.MutatingAdmissionPolicyBinding]()
	for name, c := range map[string]struct {
		pairs []string
		want  []string
		only  bool // for validating ones
	}{
		"good": {nil, nil, false},
		"no policy": {[]string{"policyName: p", "policyName: ''"},
			[]string{grouptest.Missing + "spec.policyName"}, false},
		"policy": {[]string{"policyName: p", "policyName: P"},
			[]string{grouptest.Invalid + "spec.policyName"}, false},
		"name": {[]string{"name: x,", "name: a/b,"}, []string{grouptest.Invalid + "spec.paramRef.name"},
			false},
		"name and selector": {[]string{"name: x,", "name: x, selector: {},"},
			[]string{grouptest.Forbidden + "spec.paramRef.name", grouptest.Forbidden + "spec.paramRef.selector"},
			false},
		"neither": {[]string{"name: x,", ""}, []string{grouptest.Missing + "spec.paramRef"}, false},
		"selector": {[]string{"name: x,", "selector: {matchLabels: {'-': a}},"},
			[]string{grouptest.Invalid + "spec.paramRef.selector.matchLabels"}, false},
		"no action": {[]string{", parameterNotFoundAction: Deny", ""},
			[]string{grouptest.Missing + "spec.paramRef.parameterNotFoundAction"}, false},
		"action": {[]string{"parameterNotFoundAction: Deny", "parameterNotFoundAction: Wait"},
			[]string{grouptest.Unknown + "spec.paramRef.parameterNotFoundAction"}, false},
		"match": {[]string{"spec:", "spec:\n  matchResources: {matchPolicy: Near}"},
			[]string{grouptest.Unknown + "spec.matchResources.matchPolicy"}, false},
		"no actions": {[]string{"[Deny, Audit]", "[]"}, []string{grouptest.Missing + "spec.validationActions"},
			true},
		"unknown action": {[]string{"[Deny, Audit]", "[Pray]"},
			[]string{grouptest.Unknown + "spec.validationActions[0]"}, true},
		"action twice": {[]string{"[Deny, Audit]", "[Deny, Deny]"},
			[]string{grouptest.Duplicate + "spec.validationActions[1]"}, true},
		"denied with a warn": {[]string{"[Deny, Audit]", "[Deny, Warn]"},
			[]string{grouptest.Invalid + "spec.validationActions"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			text := change(t, bindingText, c.pairs...)
			grouptest.WantErrors(t, validating.Validate(context.Background(), parse(t, validating, text), nil),
				c.want...)
			if !c.only {
				text = change(t, text, "  validationActions: [Deny, Audit]\n", "")
				grouptest.WantErrors(t, mutating.Validate(context.Background(), parse(t, mutating, text), nil),
					c.want...)
			}
		})
	}
	deletion := parse(t, mutating, `{metadata: {name: b}, spec: {policyName: p, matchResources: {resourceRules: [
		{operations: [DELETE], apiGroups: [a], apiVersions: [a], resources: [a]}]}}}`)
	grouptest.WantErrors(t, mutating.Validate(context.Background(), deletion, nil),
		grouptest.Unknown+"spec.matchResources.resourceRules.operations")

	for ref, cell := range map[string]string{
		"{name: x, namespace: ns}": "ns/x", "{name: x}": "*/x", "null": "<unset>",
		"{selector: {matchLabels: {a: b}}}": "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{},}",
	} {
		text := "{metadata: {name: b}, spec: {policyName: p, paramRef: " + ref + "}}"
		grouptest.WantRow(t, validating, parse(t, validating, text), "b", "p", cell, "<unknown>")
		grouptest.WantRow(t, mutating, parse(t, mutating, text), "b", "p", cell, "<unknown>")
	}
}

// The files of a server have the defaults and the rules of the API, and names of their own.
func TestManifests(t *testing.T) {
	loaders, err := ManifestLoaders()
	if err != nil {
		t.Fatal(err)
	}
	dir := func(text string) string {
		d := t.TempDir()
		if err := os.WriteFile(filepath.Join(d, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return d
	}
	head := "apiVersion: admissionregistration.k8s.io/v1\nkind: "
	hook := change(t, hookText, "name: hooks", "name: hooks.static.k8s.io",
		"{service: {namespace: ns, name: svc, path: /x}}", "{url: 'https://localhost/x'}")
	hooks, _, err := loaders.LoadValidatingWebhookManifests(dir(head + "ValidatingWebhookConfiguration" + hook))
	if err != nil || len(hooks) != 1 || hooks[0].Webhooks[0].TimeoutSeconds == nil ||
		hooks[0].Name != "hooks.static.k8s.io" {
		t.Errorf("webhooks %+v, %v", hooks, err)
	}
	mutating, _, err := loaders.LoadMutatingWebhookManifests(dir(head + "MutatingWebhookConfiguration" + hook))
	if err != nil || len(mutating) != 1 {
		t.Errorf("mutating webhooks %+v, %v", mutating, err)
	}
	policy := head + "MutatingAdmissionPolicy" + change(t, mutatingText, "name: p", "name: p.static.k8s.io")
	binding := "\n---\n" + head +
		"MutatingAdmissionPolicyBinding\nmetadata: {name: b.static.k8s.io}\nspec: {policyName: p.static.k8s.io}\n"
	policies, bindings, _, err := loaders.LoadMutatingPolicyManifests(dir(policy + binding))
	if err != nil || len(policies) != 1 || len(bindings) != 1 {
		t.Errorf("policies %+v, bindings %+v, %v", policies, bindings, err)
	}
	for name, text := range map[string]string{
		"wrong":         head + "ValidatingWebhookConfiguration" + change(t, hook, "None", "Some"),
		"other name":    head + "ValidatingWebhookConfiguration" + change(t, hook, ".static.k8s.io", ""),
		"other kind":    head + "MutatingWebhookConfiguration" + hook,
		"unknown field": head + "ValidatingWebhookConfiguration" + change(t, hook, "webhooks:", "hooks:"),
	} {
		if _, _, err := loaders.LoadValidatingWebhookManifests(dir(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Only users that may do everything, and declarations without a server, pass without authorization.
func TestAuthorizeParamsKeepsValidation(t *testing.T) {
	list := Resources()
	AuthorizeParams(list, &Params{})
	k := resource.Find[admissionv1.ValidatingAdmissionPolicy](list)
	bad := parse(t, k, "metadata: {name: p}")
	if errs := k.Validate(context.Background(), bad, nil); len(errs) == 0 {
		t.Error("validation is gone")
	}
	good := parse(t, k, validatingText)
	if errs := k.Validate(context.Background(), good, nil); len(errs) != 1 ||
		errs[0].Type != field.ErrorTypeForbidden || errs[0].Field != "spec.paramKind" {
		t.Errorf("a request without a user: %v", errs)
	}
}
