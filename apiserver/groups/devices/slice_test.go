package devices

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const pool = "driver: d.example.com, pool: {name: p, resourceSliceCount: 1}"

func TestSlice(t *testing.T) {
	devices := func(list string) string { return "{" + pool + ", nodeName: node1, devices: " + list + "}" }
	for text, want := range map[string][]string{
		devices(
			"[{name: a, attributes: {model: {string: m}, d/version: {version: 1.2.3-a.1+b}, d/count: {int: 1}, big: {bool: true}}, capacity: {memory: {value: 1Gi}}, taints: [{key: k, effect: None}], consumesCounters: [{counterSet: s, counters: {c: {value: 1}}}], bindingConditions: [a], bindingFailureConditions: [b]}]"): nil,
		"{" + pool +
			", allNodes: true, sharedCounters: [{name: s, counters: {c: {value: 1}}}]}": nil,
		"{" + pool +
			", nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}": nil,
		"{" + pool +
			", perDeviceNodeSelection: true, devices: [{name: a, nodeName: node1}, {name: b, allNodes: true}]}": nil,
		"{nodeName: node1}": {missing + "spec.driver", missing + "spec.pool.name",
			invalid + "spec.pool.resourceSliceCount"},
		"{driver: 'a b', pool: {name: P, generation: -1, resourceSliceCount: 1}, nodeName: node1}": {
			invalid + "spec.driver", invalid + "spec.pool.name", invalid + "spec.pool.generation"},
		"{driver: " + strings.Repeat("a", 64) +
			", pool: {name: p, resourceSliceCount: 1}, nodeName: node1}": {tooLong + "spec.driver"},
		"{" + pool +
			"}": {missing + "spec"},
		"{" + pool +
			", nodeName: ''}": {invalid + "spec.nodeName", missing + "spec"},
		"{" + pool +
			", nodeName: Node}": {invalid + "spec.nodeName"},
		"{" + pool +
			", nodeName: node1, allNodes: true}": {invalid + "spec"},
		"{" + pool +
			", allNodes: false, perDeviceNodeSelection: false}": {invalid + "spec.allNodes",
			invalid + "spec.perDeviceNodeSelection", missing + "spec"},
		"{" + pool +
			", nodeSelector: {}}": {missing + "spec.nodeSelector.nodeSelectorTerms",
			invalid + "spec.nodeSelector.nodeSelectorTerms"},
		"{" + pool +
			", nodeName: node1, devices: [], sharedCounters: []}": {invalid + "spec"},
		"{" + pool +
			", nodeName: node1, sharedCounters: [{}, {name: S, counters: {C: {value: 1}}}]}": {
			missing + "spec.sharedCounters[0].name", missing + "spec.sharedCounters[0].counters",
			invalid + "spec.sharedCounters[1].name", invalid + "spec.sharedCounters[1].counters"},
		"{" + pool + ", nodeName: node1, sharedCounters: " + repeated(2, "{name: s, counters: {c: {value: 1}}}") +
			"}": {duplicate + "spec.sharedCounters[1]"},
		"{" + pool + ", nodeName: node1, sharedCounters: " + repeated(9, "{name: s#, counters: {c: {value: 1}}}") +
			"}": {tooMany + "spec.sharedCounters"},
		"{" + pool + ", nodeName: node1, sharedCounters: [{name: s, counters: {" + counters(33) +
			"}}]}": {tooMany + "spec.sharedCounters[0].counters"},
		devices(
			repeated(128, "{name: a#}")): nil,
		devices(
			repeated(129, "{name: a#}")): {tooMany + "spec.devices"},
		devices(
			repeated(64, "{name: a#, taints: [{key: k, effect: None}]}")): nil,
		devices(
			repeated(65, "{name: a#, taints: [{key: k, effect: None}]}")): {tooMany + "spec.devices"},
		devices(
			repeated(65, "{name: a#, consumesCounters: [{counterSet: s, counters: {c: {value: 1}}}]}")): {
			tooMany + "spec.devices"},
		devices(
			repeated(2, "{name: a}")): {duplicate + "spec.devices[1]"},
		devices(
			"[{name: A}]"): {invalid + "spec.devices[0].name"},
		devices(
			"[{name: a, nodeName: node1}]"): {invalid + "spec.devices[0]"},
		devices(
			"[{name: a, bindingConditions: [a]}]"): {invalid + "spec.devices[0].bindingFailureConditions"},
		devices(
			"[{name: a, taints: [{key: k}]}]"): {missing + "spec.devices[0].taints[0].effect"},
		devices(
			"[{name: a, taints: " + repeated(17, "{key: k, effect: None}") + "}]"): {
			tooMany + "spec.devices[0].taints"},
		devices(
			"[{name: a, consumesCounters: [{counterSet: S, counters: {}}]}]"): {
			invalid + "spec.devices[0].consumesCounters[0].counterSet",
			missing + "spec.devices[0].consumesCounters[0].counters"},
		devices(
			"[{name: a, consumesCounters: " + repeated(2, "{counterSet: s, counters: {c: {value: 1}}}") + "}]"): {
			duplicate + "spec.devices[0].consumesCounters[1]"},
		devices(
			"[{name: a, consumesCounters: " + repeated(3, "{counterSet: s#, counters: {c: {value: 1}}}") + "}]"): {
			tooMany + "spec.devices[0].consumesCounters"},
		devices(
			"[{name: a, attributes: {" + attributes(33) + "}}]"): {invalid + "spec.devices[0]"},
		devices(
			"[{name: a, attributes: {" + attributes(49) + "}}]"): {invalid + "spec.devices[0]",
			invalid + "spec.devices[0]"},
		devices(
			"[{name: a, attributes: {a: {}}}]"): {invalid + "spec.devices[0].attributes[a]"},
		devices(
			"[{name: a, attributes: {a: {ints: [1]}}}]"): {invalid + "spec.devices[0].attributes[a]"},
		devices(
			"[{name: a, attributes: {a: {int: 1, bool: true}}}]"): {invalid + "spec.devices[0].attributes[a]"},
		devices(
			"[{name: a, attributes: {a: {string: " + strings.Repeat("x", 65) + "}}}]"): {
			tooLong + "spec.devices[0].attributes[a].string"},
		devices(
			"[{name: a, attributes: {a: {version: '1.2'}, b: {version: 1.2.3-" + strings.Repeat("x", 64) + "}}}]"): {
			invalid + "spec.devices[0].attributes[a].version", tooLong + "spec.devices[0].attributes[b].version"},
		devices(
			"[{name: a, attributes: {'': {int: 1}, 1a: {int: 1}, /a: {int: 1}, d/: {int: 1}}}]"): {
			invalid + "spec.devices[0].attributes", invalid + "spec.devices[0].attributes",
			invalid + "spec.devices[0].attributes", invalid + "spec.devices[0].attributes"},
		devices(
			"[{name: a, attributes: {" + strings.Repeat("x", 33) + ": {int: 1}}}]"): {
			tooLong + "spec.devices[0].attributes"},
		devices(
			"[{name: a, capacity: {m: {value: 1, requestPolicy: {default: 1}}}}]"): {
			forbidden + "spec.devices[0].capacity[m].requestPolicy"},
		"{" + pool +
			", perDeviceNodeSelection: true, devices: [{name: a}, {name: b, nodeName: '', allNodes: false}, {name: c, nodeName: node1, allNodes: true}, {name: d, nodeSelector: {}}]}": {
			missing + "spec.devices[0]", invalid + "spec.devices[1].nodeName", invalid + "spec.devices[1].allNodes",
			missing + "spec.devices[1]", invalid + "spec.devices[2]",
			missing + "spec.devices[3].nodeSelector.nodeSelectorTerms"},
	} {
		check[resourcev1.ResourceSlice](t, resourceSlices(), meta+"spec: "+text, want)
	}
	old := meta + "spec: " + devices("[{name: a}]")
	change[resourcev1.ResourceSlice](t, resourceSlices(), old, meta+"spec: "+devices("[{name: b}]"))
	change[resourcev1.ResourceSlice](t, resourceSlices(), old,
		meta+"spec: {driver: e, pool: {name: q, resourceSliceCount: 2}, nodeName: node2}",
		invalid+"spec.driver", invalid+"spec.pool.name", invalid+"spec.nodeName")
	// Capacity and taints that were accepted once stay valid.
	strange := meta + "spec: " + devices("[{name: a, capacity: {'1': {value: 1}}, taints: [{key: k}]}]")
	change[resourcev1.ResourceSlice](t, resourceSlices(), old, strange, invalid+"spec.devices[0].capacity",
		missing+"spec.devices[0].taints[0].effect")
	kind, s := parse[resourcev1.ResourceSlice](t, resourceSlices(), strange)
	grouptest.WantErrors(t, kind.Validate(context.Background(), s, s))
}

func counters(n int) string {
	return strings.Trim(strings.ReplaceAll(repeated(n, "c#: {value: 1}"), "\n", ""), "[]")
}

func attributes(n int) string {
	return strings.Trim(repeated(n, "a#: {int: 1}"), "[]")
}

func TestCapacity(t *testing.T) {
	const at = "spec.devices[0].capacity[m].requestPolicy"
	for text, want := range map[string][]string{
		"{}":                                   nil,
		"{default: 2, validValues: [1, 2, 8]}": nil,
		"{default: 2, validRange: {min: 1, max: 7, step: 1}}":  nil,
		"{default: 2, validRange: {min: 2}}":                   nil,
		"{default: 2, validValues: [2], validRange: {min: 1}}": {forbidden + at},
		"{validValues: [2]}":                                   {missing + at + ".default"},
		"{validRange: {min: 1}}":                               {missing + at + ".default"},
		"{default: 3, validValues: [1, 2]}":                    {invalid + at + ".validValues"},
		"{default: 2, validValues: [2, 1]}":                    {invalid + at + ".validValues[1]"},
		"{default: 2, validValues: [2, 2]}":                    {duplicate + at + ".validValues[1]"},
		"{default: 2, validValues: [2, 9]}":                    {invalid + at + ".validValues[1]"},
		"{default: 0, validValues: " + repeated(11, "#") + "}": {tooMany + at + ".validValues",
			invalid + at + ".validValues"},
		"{default: 2, validRange: {}}":       {missing + at + ".validRange.min"},
		"{default: 9, validRange: {min: 9}}": {invalid + at + ".validRange.min"},
		"{default: 1, validRange: {min: 2}}": {invalid + at + ".validRange.default"},
		"{default: 2, validRange: {min: 3, max: 2}}": {invalid + at + ".validRange.default",
			invalid + at + ".validRange.max"},
		"{default: 2, validRange: {min: 1, max: 9}}":  {invalid + at + ".validRange.max"},
		"{default: 5, validRange: {min: 1, max: 4}}":  {invalid + at + ".validRange.default"},
		"{default: 1, validRange: {min: 1, step: 0}}": {invalid + at + ".validRange.step"},
		"{default: 7, validRange: {min: 7, step: 2}}": {invalid + at + ".validRange.step"},
		"{default: 2, validRange: {min: 1, max: 8, step: 2}}": {invalid + at + ".validRange.step",
			invalid + at + ".validRange.step"},
		"{default: 1, validRange: {min: -1, step: 1}}": {invalid + at + ".validRange.min"},
		"{default: 1, validRange: {min: 1, step: 9223372036854775808}}": {invalid + at + ".validRange.step",
			invalid + at + ".validRange.step"},
	} {
		check[resourcev1.ResourceSlice](t, resourceSlices(),
			meta+"spec: {"+pool+
				", nodeName: node1, devices: [{name: a, allowMultipleAllocations: true, capacity: {m: {value: 8, requestPolicy: "+text+"}}}]}", want)
	}
}

func TestSliceView(t *testing.T) {
	kind, s := parse[resourcev1.ResourceSlice](t, resourceSlices(),
		meta+"spec: {"+pool+", nodeName: node1, devices: [{name: a, taints: [{key: k, effect: None}]}]}")
	if s.Spec.Devices[0].Taints[0].TimeAdded == nil {
		t.Error("a taint has no date")
	}
	grouptest.WantRow(t, kind, s, "x", "node1", "d.example.com", "p", "<unknown>")
	want := fields.Set{"spec.nodeName": "node1", "spec.driver": "d.example.com", "spec.pool.name": "p"}
	if diff := cmp.Diff(want, kind.Fields(s)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	if w := kind.Warnings(context.Background(), s, nil); len(w) != 0 {
		t.Errorf("warnings: %q", w)
	}
	s.Spec.Driver = "D.example.com"
	if w := kind.Warnings(context.Background(), s, nil); len(w) != 1 || !strings.HasPrefix(w[0], "spec.driver: ") {
		t.Errorf("warnings: %q", w)
	}
}

// TestOffByDefault checks that fields behind gates that are off are dropped.
func TestOffByDefault(t *testing.T) {
	kind := resourceSlices().(*resource.Kind[resourcev1.ResourceSlice])
	s := grouptest.Parse[resourcev1.ResourceSlice](t,
		meta+"spec: {"+pool+`, nodeName: node1, partitionTypeAttribute: d/t, skipNodeOperations: ['*'],
  devices: [{name: a, attributes: {a: {int: 1}, b: {strings: [x]}}, nodeAllocatableResources: {cpu: {}}, consumesCounters: [{counterSet: s, counters: {c: {value: 1}}, compatibilityGroups: [g]}]}]}`)
	kind.Prepare(context.Background(), s, nil)
	want := grouptest.Parse[resourcev1.ResourceSlice](t, meta+"spec: {"+pool+`, nodeName: node1,
  devices: [{name: a, attributes: {a: {int: 1}, b: {}}, consumesCounters: [{counterSet: s, counters: {c: {value: 1}}}]}]}`)
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
}

func TestShortened(t *testing.T) {
	if got := shortened("abc"); got != "abc" {
		t.Error(got)
	}
	long := strings.Repeat("a", longestKey) + strings.Repeat("b", longestKey)
	if got := shortened(long); len(got) != longestKey || !strings.HasPrefix(got, "aa") ||
		!strings.Contains(got, "a...b") {
		t.Errorf("%d: %s", len(got), got)
	}
}
