package devices

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const (
	missing   = grouptest.Missing
	invalid   = grouptest.Invalid
	duplicate = grouptest.Duplicate
	forbidden = grouptest.Forbidden
	unknown   = grouptest.Unknown
	tooLong   = grouptest.TooLong
	tooMany   = grouptest.TooMany

	meta       = "metadata: {name: x, resourceVersion: '1'}\n"
	namespaced = "metadata: {name: x, namespace: default, resourceVersion: '1'}\n"
)

// parse reads an object as a server does.
func parse[T any](t *testing.T, r resource.Resource, text string) (*resource.Kind[T], *T) {
	t.Helper()
	kind := r.(*resource.Kind[T])
	obj := grouptest.Parse[T](t, text)
	if kind.Default != nil {
		kind.Default(obj)
	}
	if kind.Prepare != nil {
		kind.Prepare(context.Background(), obj, nil)
	}
	return kind, obj
}

// check validates a new object.
func check[T any](t *testing.T, r resource.Resource, text string, want []string) {
	t.Helper()
	kind, obj := parse[T](t, r, text)
	t.Run("", func(t *testing.T) {
		t.Helper()
		t.Log(text)
		grouptest.WantErrors(t, kind.Validate(context.Background(), obj, nil), want...)
	})
}

// change validates an update.
func change[T any](t *testing.T, r resource.Resource, old, text string, want ...string) {
	t.Helper()
	kind, was := parse[T](t, r, old)
	_, is := parse[T](t, r, text)
	grouptest.WantErrors(t, kind.Validate(context.Background(), is, was), want...)
}

// repeated is a YAML list of n items.
func repeated(n int, item string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(item, "#", fmt.Sprint(i))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// selector is a list of one selector.
func selector(expression string) string { return "[{cel: {expression: '" + expression + "'}}]" }

// costly is an expression that takes a million steps.
func costly() string {
	expression := "device.driver == \"x\""
	for _, v := range "abcdef" {
		expression = fmt.Sprintf("[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all(%c, %s)", v, expression)
	}
	return expression
}

func TestDeviceClass(t *testing.T) {
	const at = "spec.config[0].opaque"
	for text, want := range map[string][]string{
		"{selectors: " + selector(`device.driver == "d" && device.allowMultipleAllocations`) +
			", config: [{opaque: {driver: Example.com, parameters: {a: b}}}], extendedResourceName: example.com/gpu}": nil,
		"{selectors: [{}]}":                        {missing + "spec.selectors[0].cel"},
		"{selectors: " + selector("device.") + "}": {invalid + "spec.selectors[0].cel.expression"},
		"{selectors: " + selector("1 + 1") + "}":   {invalid + "spec.selectors[0].cel.expression"},
		"{selectors: " + selector("other") + "}":   {invalid + "spec.selectors[0].cel.expression"},
		"{selectors: " + repeated(33, "{}") + "}":  {tooMany + "spec.selectors"},
		"{config: " + repeated(33, "{}") + "}":     {tooMany + "spec.config"},
		"{config: [{}]}":                           {missing + at},
		"{config: [{opaque: {}}]}": {missing + at + ".driver",
			missing + at + ".parameters"},
		"{config: [{opaque: {driver: 'a b', parameters: [a]}}]}": {invalid + at + ".driver",
			invalid + at + ".parameters"},
		"{config: [{opaque: {driver: d, parameters: null}}]}": {missing + at + ".parameters"},
		"{config: [{opaque: {driver: d, parameters: {a: " + strings.Repeat("x", resourcev1.OpaqueParametersMaxLength) +
			"}}}]}": {tooLong + at + ".parameters"},
		"{selectors: " +
			selector(`device.driver == "`+strings.Repeat("x", resourcev1.CELSelectorExpressionMaxLength)+`"`) +
			"}": {tooLong + "spec.selectors[0].cel.expression"},
		"{selectors: " + selector(costly()) + "}":        {forbidden + "spec.selectors[0].cel.expression"},
		"{extendedResourceName: gpu}":                    {invalid + "spec.extendedResourceName"},
		"{extendedResourceName: requests.example.com/a}": {invalid + "spec.extendedResourceName"},
	} {
		check[resourcev1.DeviceClass](t, deviceClasses(), meta+"spec: "+text, want)
	}
	// Stored values are not validated again.
	large := meta + "spec: {selectors: " + selector("other") + ", config: [{opaque: {driver: d, parameters: {a: " +
		strings.Repeat("x", resourcev1.OpaqueParametersMaxLength) + "}}}]"
	change[resourcev1.DeviceClass](t, deviceClasses(), large+"}", large+", extendedResourceName: example.com/gpu}")
	change[resourcev1.DeviceClass](t, deviceClasses(), meta, large+"}", invalid+"spec.selectors[0].cel.expression",
		tooLong+at+".parameters")

	kind, class := parse[resourcev1.DeviceClass](t, deviceClasses(), meta)
	class.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, kind, class, "x", "60s")
}

func TestDeviceTaintRule(t *testing.T) {
	const taint = "taint: {key: example.com/k, value: v, effect: NoSchedule}"
	for text, want := range map[string][]string{
		"{" + taint + ", deviceSelector: {driver: d, pool: a/b.c, device: dev}}": nil,
		"{" + taint +
			", deviceSelector: {driver: '', pool: '', device: ''}}": {missing + "spec.deviceSelector.driver",
			missing + "spec.deviceSelector.pool", invalid + "spec.deviceSelector.device"},
		"{" + taint + ", deviceSelector: {pool: " + strings.Repeat("a", 254) +
			"}}": {tooLong + "spec.deviceSelector.pool", invalid + "spec.deviceSelector.pool"},
		"{" + taint +
			", deviceSelector: {pool: a//b}}": {invalid + "spec.deviceSelector.pool"},
		"{taint: {effect: None}}":                       {invalid + "spec.taint.key", invalid + "spec.taint.key"},
		"{taint: {key: k, value: 'a b', effect: None}}": {invalid + "spec.taint.value"},
		"{taint: {key: k}}":                             {missing + "spec.taint.effect"},
		"{taint: {key: k, effect: Sometimes}}":          {unknown + "spec.taint.effect"},
	} {
		check[resourcev1.DeviceTaintRule](t, deviceTaintRules(), meta+"spec: "+text, want)
	}
	kind, old := parse[resourcev1.DeviceTaintRule](t, deviceTaintRules(), meta+"spec: {"+taint+"}")
	if added := old.Spec.Taint.TimeAdded; added == nil || time.Since(added.Time) > time.Hour ||
		added.Nanosecond() != 0 {
		t.Errorf("a new taint is dated %v", added)
	}
	old.Spec.Taint.TimeAdded = new(grouptest.Ago(time.Hour))
	grouptest.WantRow(t, kind, old, "x", "example.com/k", "v", "NoSchedule", "60m", "<unknown>")

	kept := old.DeepCopy()
	kept.Spec.Taint.Value = "w"
	kind.Prepare(context.Background(), kept, old)
	if !kept.Spec.Taint.TimeAdded.Equal(old.Spec.Taint.TimeAdded) {
		t.Error("another value dated the taint anew")
	}
	stronger := old.DeepCopy()
	stronger.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	chosen := stronger.DeepCopy()
	kind.Prepare(context.Background(), stronger, old)
	if stronger.Spec.Taint.TimeAdded.Equal(old.Spec.Taint.TimeAdded) {
		t.Error("another effect did not date the taint anew")
	}
	chosen.Spec.Taint.TimeAdded = new(grouptest.Ago(time.Minute))
	kind.Prepare(context.Background(), chosen, old)
	if *chosen.Spec.Taint.TimeAdded != grouptest.Ago(time.Minute) {
		t.Error("the date of the client was not kept")
	}
	// An effect that was accepted once stays valid.
	strange := old.DeepCopy()
	strange.Spec.Taint.Effect = "Later"
	grouptest.WantErrors(t, kind.Validate(context.Background(), strange, strange))
	grouptest.WantErrors(t, kind.Validate(context.Background(), strange, old), unknown+"spec.taint.effect")

	reported := old.DeepCopy()
	for i := range resourcev1.DeviceTaintRuleStatusMaxConditions {
		reported.Status.Conditions = append(reported.Status.Conditions,
			metav1.Condition{Type: fmt.Sprint("c", i), Status: metav1.ConditionTrue, Reason: "R",
				LastTransitionTime: grouptest.Ago(0)})
	}
	grouptest.WantErrors(t, kind.Status.Validate(context.Background(), reported, old))
	reported.Status.Conditions = append(reported.Status.Conditions, reported.Status.Conditions[0])
	grouptest.WantErrors(t, kind.Status.Validate(context.Background(), reported, old), tooMany+"status.conditions",
		duplicate+"status.conditions[8]")
}
