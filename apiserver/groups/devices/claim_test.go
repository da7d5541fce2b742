package devices

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

func TestClaimDefaults(t *testing.T) {
	_, got := parse[resourcev1.ResourceClaim](t, resourceClaims(), namespaced+`
spec: {devices: {requests: [
  {name: a, exactly: {deviceClassName: c, tolerations: [{key: k}], derivedAttributes: [{name: a/b, expression: "1"}]}},
  {name: b, firstAvailable: [{name: s, deviceClassName: c, allocationMode: All, tolerations: [{operator: Exists}]}, {name: u, deviceClassName: c, count: 3}]}]}}
status: {allocation: {devices: {results: [{request: a, driver: d, pool: p, device: e, tolerations: [{key: k}]}]}}}`)
	want := grouptest.Parse[resourcev1.ResourceClaim](t, namespaced+`
spec: {devices: {requests: [
  {name: a, exactly: {deviceClassName: c, allocationMode: ExactCount, count: 1, tolerations: [{key: k, operator: Equal}]}},
  {name: b, firstAvailable: [{name: s, deviceClassName: c, allocationMode: All, tolerations: [{operator: Exists}]}, {name: u, deviceClassName: c, allocationMode: ExactCount, count: 3}]}]}}
status: {allocation: {devices: {results: [{request: a, driver: d, pool: p, device: e, tolerations: [{key: k, operator: Equal}]}]}}}`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	_, template := parse[resourcev1.ResourceClaimTemplate](t, resourceClaimTemplates(),
		namespaced+"spec: {spec: {devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}}}")
	if e := template.Spec.Spec.Devices.Requests[0].Exactly; e.Count != 1 ||
		e.AllocationMode != resourcev1.DeviceAllocationModeExactCount {
		t.Errorf("defaults of a template: %+v", e)
	}
}

// deviceClaims are requests for devices, with their faults below the field "devices".
var deviceClaims = map[string][]string{
	"{}": nil,
	`{requests: [{name: a, exactly: {deviceClassName: c, selectors: [{cel: {expression: 'device.capacity["d"].m.isGreaterThan(quantity("1Gi"))'}}], adminAccess: true, capacity: {requests: {m: 1}}}},
	  {name: b, firstAvailable: [{name: s, deviceClassName: c}]}],
	  constraints: [{requests: [a, b/s], matchAttribute: d/n}, {distinctAttribute: d/n}], config: [{requests: [b], opaque: {driver: d, parameters: {}}}]}`: nil,
	"{requests: [{name: A, exactly: {deviceClassName: c}}]}": {invalid + "requests[0].name"},
	"{requests: [{name: a}]}":                                {missing + "requests[0]"},
	"{requests: [{name: a, exactly: {deviceClassName: c}, firstAvailable: [{name: s, deviceClassName: c}]}]}": {
		invalid + "requests[0]"},
	"{requests: " + repeated(2, "{name: a, exactly: {deviceClassName: c}}") +
		"}": {duplicate + "requests[1]"},
	"{requests: " + repeated(33, "{name: a#}") +
		"}": {tooMany + "requests"},
	"{requests: [{name: a, exactly: {}}]}": {
		missing + "requests[0].exactly.deviceClassName"},
	"{requests: [{name: a, exactly: {deviceClassName: C}}]}": {
		invalid + "requests[0].exactly.deviceClassName"},
	"{requests: [{name: a, exactly: {deviceClassName: c, allocationMode: All, count: 1}}]}": {
		invalid + "requests[0].exactly.count"},
	"{requests: [{name: a, exactly: {deviceClassName: c, count: -1}}]}": {
		invalid + "requests[0].exactly.count"},
	"{requests: [{name: a, exactly: {deviceClassName: c, allocationMode: Some}}]}": {
		unknown + "requests[0].exactly.allocationMode"},
	"{requests: [{name: a, exactly: {deviceClassName: c, selectors: " + selector("x") +
		"}}]}": {invalid + "requests[0].exactly.selectors[0].cel.expression"},
	"{requests: [{name: a, exactly: {deviceClassName: c, tolerations: [{operator: Exists, value: v}, {key: 'a b', value: 'a b', effect: Often}, {operator: Like}]}}]}": {
		invalid + "requests[0].exactly.tolerations[0].value", invalid + "requests[0].exactly.tolerations[1].key",
		invalid + "requests[0].exactly.tolerations[1].value",
		unknown + "requests[0].exactly.tolerations[1].effect", unknown + "requests[0].exactly.tolerations[2].operator"},
	"{requests: [{name: a, firstAvailable: [{name: S}]}]}": {
		invalid + "requests[0].firstAvailable[0].name", missing + "requests[0].firstAvailable[0].deviceClassName"},
	"{requests: [{name: a, firstAvailable: " + repeated(2, "{name: s, deviceClassName: c}") +
		"}]}": {duplicate + "requests[0].firstAvailable[1]"},
	"{requests: [{name: a, firstAvailable: " + repeated(9, "{name: s#, deviceClassName: c}") +
		"}]}": {tooMany + "requests[0].firstAvailable"},
	"{constraints: [{}]}":                                   {missing + "constraints[0]"},
	"{constraints: [{matchAttribute: n}]}":                  {invalid + "constraints[0].matchAttribute"},
	"{constraints: [{distinctAttribute: d/1}]}":             {invalid + "constraints[0].distinctAttribute"},
	"{constraints: [{requests: [z], matchAttribute: d/n}]}": {invalid + "constraints[0].requests[0]"},
	"{requests: [{name: a, exactly: {deviceClassName: c}}], constraints: [{requests: [a, a], matchAttribute: d/n}, {requests: [a/s], matchAttribute: d/n}, {requests: [a/s/t], matchAttribute: d/n}]}": {
		duplicate + "constraints[0].requests[1]", invalid + "constraints[1].requests[0]",
		invalid + "constraints[2].requests[0]"},
	"{constraints: " + repeated(33, "{matchAttribute: d/n}") + "}": {tooMany + "constraints"},
	"{config: [{requests: [z]}]}": {invalid + "config[0].requests[0]",
		missing + "config[0].opaque"},
	"{config: " + repeated(33, "{}") + "}": {tooMany + "config"},
}

// below adds a path to those of errors.
func below(path string, errors []string) []string {
	out := make([]string, len(errors))
	for i, e := range errors {
		j := strings.LastIndex(e, " ") + 1
		out[i] = e[:j] + path + e[j:]
	}
	return out
}

func TestClaim(t *testing.T) {
	for text, want := range deviceClaims {
		check[resourcev1.ResourceClaim](t, resourceClaims(), namespaced+"spec: {devices: "+text+"}",
			below("spec.devices.", want))
		check[resourcev1.ResourceClaimTemplate](t, resourceClaimTemplates(),
			namespaced+"spec: {spec: {devices: "+text+"}}", below("spec.spec.devices.", want))
	}
	const one, two = "devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}",
		"devices: {requests: [{name: b, exactly: {deviceClassName: c}}]}"
	change[resourcev1.ResourceClaim](t, resourceClaims(), namespaced+"spec: {"+one+"}", namespaced+"spec: {"+two+"}",
		invalid+"spec")
	change[resourcev1.ResourceClaim](t, resourceClaims(), namespaced+"spec: {"+one+"}", namespaced+"spec: {"+one+"}")
	change[resourcev1.ResourceClaimTemplate](t, resourceClaimTemplates(), namespaced+"spec: {spec: {"+one+"}}",
		namespaced+"spec: {spec: {"+two+"}}", invalid+"spec")
	check[resourcev1.ResourceClaimTemplate](t, resourceClaimTemplates(),
		namespaced+"spec: {metadata: {labels: {a: b}, annotations: {a: b}}}", nil)
	check[resourcev1.ResourceClaimTemplate](t, resourceClaimTemplates(),
		namespaced+"spec: {metadata: {name: a, generateName: b, labels: {a: 'b c'}, annotations: {'a b': c}}}",
		[]string{forbidden + "spec.metadata.name", forbidden + "spec.metadata.generateName",
			invalid + "spec.metadata.labels", invalid + "spec.metadata.annotations"})

	kind, template := parse[resourcev1.ResourceClaimTemplate](t, resourceClaimTemplates(), namespaced)
	grouptest.WantRow(t, kind, template, "x", "<unknown>")
}

func TestClaimState(t *testing.T) {
	kind, c := parse[resourcev1.ResourceClaim](t, resourceClaims(), namespaced)
	grouptest.WantRow(t, kind, c, "x", "pending", "<unknown>")
	c.Status.Allocation = &resourcev1.AllocationResult{}
	grouptest.WantRow(t, kind, c, "x", "allocated", "<unknown>")
	c.Status.ReservedFor = make([]resourcev1.ResourceClaimConsumerReference, 1)
	c.DeletionTimestamp = ptr.To(grouptest.Ago(0))
	grouptest.WantRow(t, kind, c, "x", "deleted,allocated,reserved", "<unknown>")
	c.Status = resourcev1.ResourceClaimStatus{}
	grouptest.WantRow(t, kind, c, "x", "deleted", "<unknown>")
}

const (
	claimed = namespaced + "spec: {devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}}\nstatus: "
	share   = "01234567-89ab-cdef-0123-456789abcdef"
	result  = "{request: a, driver: d, pool: p, device: e"
	granted = "allocation: {devices: {results: [" + result + "}]}}"
)

func TestClaimStatus(t *testing.T) {
	results := "status.allocation.devices.results"
	of := func(more string) string { return "{allocation: {devices: {results: [" + result + ", " + more + "}]}}}" }
	for text, want := range map[string][]string{
		"{}": nil,
		"{allocation: {devices: {results: [" + result + ", shareID: " + share +
			", bindingConditions: [a], bindingFailureConditions: [b]}], config: [{source: FromClass, requests: [a], opaque: {driver: d, parameters: {}}}]}, nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [node1]}]}]}}, reservedFor: [{resource: pods, name: p, uid: u}], devices: [{driver: d, pool: p, device: e, shareID: " + share + ", data: {a: b}, networkData: {interfaceName: eth0, ips: [10.0.0.1/24]}}]}": nil,
		"{reservedFor: [{resource: pods, name: p, uid: u}]}": {
			forbidden + "status.reservedFor"},
		"{" + granted +
			", reservedFor: [{}]}": {missing + "status.reservedFor[0].resource", missing + "status.reservedFor[0].name",
			missing + "status.reservedFor[0].uid"},
		"{" + granted + ", reservedFor: " + repeated(2, "{resource: pods, name: p, uid: u}") +
			"}": {duplicate + "status.reservedFor[1]"},
		"{" + granted + ", reservedFor: " + repeated(257, "{resource: pods, name: p, uid: u#}") +
			"}": {tooMany + "status.reservedFor"},
		"{allocation: {devices: {results: [{}]}}}": {
			invalid + results + "[0].request", invalid + results + "[0].request", missing + results + "[0].driver",
			missing + results + "[0].pool", invalid + results + "[0].device"},
		"{allocation: {devices: {results: " + repeated(33, result+"}") +
			"}}}": {tooMany + results},
		of("shareID: " + strings.ToUpper(share)): {
			invalid + results + "[0].shareID"},
		of("bindingConditions: [a]"): {
			invalid + results + "[0].bindingFailureConditions"},
		of("bindingFailureConditions: [a]"): {
			invalid + results + "[0].bindingConditions"},
		of("bindingConditions: [a, a], bindingFailureConditions: [b, b]"): {
			duplicate + results + "[0].bindingConditions[1]", duplicate + results + "[0].bindingFailureConditions[1]"},
		of("bindingConditions: [a], bindingFailureConditions: [a]"): {
			invalid + results + "[0].bindingFailureConditions[0]"},
		of("bindingConditions: ['a b'], bindingFailureConditions: [a, b, c, d, e]"): {
			invalid + results + "[0].bindingConditions[0]", tooMany + results + "[0].bindingFailureConditions"},
		of("tolerations: [{effect: Often}]"): {
			unknown + results + "[0].tolerations[0].effect"},
		"{allocation: {nodeSelector: {}}}": {
			missing + "status.allocation.nodeSelector.nodeSelectorTerms"},
		"{allocation: {devices: {config: [{opaque: {driver: d, parameters: {}}}, {source: Me, requests: [z]}]}}}": {
			missing + "status.allocation.devices.config[0].source",
			unknown + "status.allocation.devices.config[1].source",
			invalid + "status.allocation.devices.config[1].requests[0]",
			missing + "status.allocation.devices.config[1].opaque"},
		"{" + granted +
			", devices: [{driver: d, pool: p, device: f}]}": {invalid + "status.devices[0]"},
		"{" + granted +
			", devices: [{}]}": {missing + "status.devices[0].driver", missing + "status.devices[0].pool",
			invalid + "status.devices[0].device", invalid + "status.devices[0]"},
		"{" + granted + ", devices: " + repeated(2, "{driver: d, pool: p, device: e}") +
			"}": {duplicate + "status.devices[1]"},
		"{" + granted +
			", devices: [{driver: d, pool: p, device: e, data: [a], conditions: [{type: T}], networkData: {interfaceName: " + strings.Repeat("x", 257) + ", hardwareAddress: " + strings.Repeat("x", 129) + ", ips: [10.0.0.1, 10.0.0.1/24, 10.0.0.1/24]}}]}": {
			invalid + "status.devices[0].data", missing + "status.devices[0].conditions[0].status",
			missing + "status.devices[0].conditions[0].lastTransitionTime",
			missing + "status.devices[0].conditions[0].reason",
			tooLong + "status.devices[0].networkData.interfaceName",
			tooLong + "status.devices[0].networkData.hardwareAddress", invalid + "status.devices[0].networkData.ips[0]",
			duplicate + "status.devices[0].networkData.ips[2]"},
	} {
		kind, old := parse[resourcev1.ResourceClaim](t, resourceClaims(), claimed+"{}")
		_, c := parse[resourcev1.ResourceClaim](t, resourceClaims(), claimed+text)
		t.Run("", func(t *testing.T) {
			t.Log(text)
			grouptest.WantErrors(t, kind.Status.Validate(context.Background(), c, old), want...)
		})
	}
	kind, old := parse[resourcev1.ResourceClaim](t, resourceClaims(), claimed+"{"+granted+"}")
	_, other := parse[resourcev1.ResourceClaim](t, resourceClaims(),
		claimed+"{allocation: {devices: {results: [{request: a, driver: d, pool: p, device: f}]}}}")
	grouptest.WantErrors(t, kind.Status.Validate(context.Background(), other, old), invalid+"status.allocation")
	reserved := old.DeepCopy()
	reserved.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}}
	reserved.DeletionTimestamp = ptr.To(grouptest.Ago(0))
	old.DeletionTimestamp = reserved.DeletionTimestamp
	grouptest.WantErrors(t, kind.Status.Validate(context.Background(), reserved, reserved))
	grouptest.WantErrors(t, kind.Status.Validate(context.Background(), reserved, old), forbidden+"status.reservedFor")
}

func TestClaimStatusOfDevicesThatAreGone(t *testing.T) {
	kind := resourceClaims().(*resource.Kind[resourcev1.ResourceClaim])
	old := grouptest.Parse[resourcev1.ResourceClaim](t,
		claimed+"{"+granted+", devices: [{driver: d, pool: p, device: e}]}")
	freed := old.DeepCopy()
	freed.Status.Allocation = nil
	freed.Labels = map[string]string{"a": "b"}
	kind.Status.Prepare(context.Background(), freed, old)
	if freed.Status.Devices != nil || freed.Labels != nil {
		t.Errorf("after the devices were taken away: %+v, labels %v", freed.Status.Devices, freed.Labels)
	}
	kept := old.DeepCopy()
	kept.Status.Devices = append(kept.Status.Devices, resourcev1.AllocatedDeviceStatus{Driver: "never"})
	kind.Status.Prepare(context.Background(), kept, old)
	if len(kept.Status.Devices) != 2 {
		t.Errorf("a report was dropped of a device that the claim has, or never had: %+v", kept.Status.Devices)
	}
}

func TestDeviceID(t *testing.T) {
	if got := deviceID[types.UID]("d", "p", "e", nil); got != "d/p/e" {
		t.Error(got)
	}
	if got := deviceID("d", "p", "e", ptr.To("s")); got != "d/p/e/s" {
		t.Error(got)
	}
}
