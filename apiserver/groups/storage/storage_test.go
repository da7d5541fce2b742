package storage

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const meta = "metadata: {name: x, resourceVersion: '1'}\n"

// check validates the object in the text, as new and as an update that changes nothing.
func check[T any](t *testing.T, r resource.Resource, text string, want []string) {
	t.Helper()
	kind := r.(*resource.Kind[T])
	obj := grouptest.Parse[T](t, text)
	if kind.Default != nil {
		kind.Default(obj)
	}
	grouptest.WantErrors(t, kind.Validate(context.Background(), obj, nil), want...)
	grouptest.WantErrors(t, kind.Validate(context.Background(), obj, obj), want...)
}

// change validates an update.
func change[T any](t *testing.T, r resource.Resource, old, text string, want ...string) {
	t.Helper()
	kind := r.(*resource.Kind[T])
	was, is := grouptest.Parse[T](t, old), grouptest.Parse[T](t, text)
	if kind.Default != nil {
		kind.Default(was)
		kind.Default(is)
	}
	grouptest.WantErrors(t, kind.Validate(context.Background(), is, was), want...)
}

func TestStorageClass(t *testing.T) {
	for text, want := range map[string][]string{
		"provisioner: Example.com/p\nparameters: {a: b}\nreclaimPolicy: Retain\nvolumeBindingMode: WaitForFirstConsumer\nallowedTopologies: [{matchLabelExpressions: [{key: a, values: [b]}]}]": nil,
		"parameters: {'': b}": {grouptest.Missing + "provisioner",
			grouptest.Invalid + "parameters"},
		"provisioner: a b":                        {grouptest.Invalid + "provisioner"},
		"provisioner: p\nreclaimPolicy: Recycle":  {grouptest.Unknown + "reclaimPolicy"},
		"provisioner: p\nvolumeBindingMode: Soon": {grouptest.Unknown + "volumeBindingMode"},
		"provisioner: p\nparameters: {a: " + strings.Repeat("x", largestParameters) +
			"}": {grouptest.TooLong + "parameters"},
		"provisioner: p\nallowedTopologies: [{matchLabelExpressions: [{key: 'a b'}, {key: c, values: [d, d]}, {key: c, values: [e]}]}]":                 {grouptest.Invalid + "allowedTopologies[0].matchLabelExpressions[0].key", grouptest.Missing + "allowedTopologies[0].matchLabelExpressions[0].values", grouptest.Duplicate + "allowedTopologies[0].matchLabelExpressions[1].values[1]", grouptest.Duplicate + "allowedTopologies[0].matchLabelExpressions[2].key"},
		"provisioner: p\nallowedTopologies: [{matchLabelExpressions: [{key: a, values: [b, c]}]}, {matchLabelExpressions: [{key: a, values: [c, b]}]}]": {grouptest.Duplicate + "allowedTopologies[1].matchLabelExpressions"},
	} {
		check[storagev1.StorageClass](t, storageClasses(), meta+text, want)
	}
	const old = meta + "provisioner: p\nparameters: {a: b}"
	change[storagev1.StorageClass](t, storageClasses(), old, old+"\nallowVolumeExpansion: true")
	change[storagev1.StorageClass](t, storageClasses(), old,
		meta+"provisioner: q\nreclaimPolicy: Retain\nvolumeBindingMode: WaitForFirstConsumer",
		grouptest.Invalid+"provisioner", grouptest.Invalid+"parameters", grouptest.Invalid+"reclaimPolicy",
		grouptest.Invalid+"volumeBindingMode")

	kind := storageClasses().(*resource.Kind[storagev1.StorageClass])
	c := grouptest.Parse[storagev1.StorageClass](t,
		"metadata: {name: x, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}\nprovisioner: p\nallowedTopologies: [{matchLabelExpressions: [{key: beta.kubernetes.io/os, values: [linux]}]}]")
	kind.Default(c)
	c.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, kind, c, "x (default)", "p", "Delete", "Immediate", "false", "60s")
	if w := kind.Warnings(context.Background(), c, nil); len(w) != 1 ||
		!strings.HasPrefix(w[0], "allowedTopologies[0].matchLabelExpressions[0].key: deprecated") {
		t.Errorf("warnings: %q", w)
	}
}

func TestVolumeAttributesClass(t *testing.T) {
	for text, want := range map[string][]string{
		"driverName: d\nparameters: {a: b}": nil,
		"driverName: a b":                   {grouptest.Invalid + "driverName", grouptest.Missing + "parameters"},
	} {
		check[storagev1.VolumeAttributesClass](t, volumeAttributesClasses(), meta+text, want)
	}
	change[storagev1.VolumeAttributesClass](t, volumeAttributesClasses(), meta+"driverName: d\nparameters: {a: b}",
		meta+"driverName: e\nparameters: {a: c}",
		grouptest.Forbidden+"driverName", grouptest.Forbidden+"parameters")
	grouptest.WantRow(t, volumeAttributesClasses(),
		grouptest.Parse[storagev1.VolumeAttributesClass](t, meta+"driverName: d"), "x", "d", "<unknown>")
}

func TestDriver(t *testing.T) {
	got := grouptest.Parse[storagev1.CSIDriver](t, meta+"spec: {}")
	defaultDriver(got)
	want := grouptest.Parse[storagev1.CSIDriver](t,
		meta+
			"spec: {attachRequired: true, podInfoOnMount: false, storageCapacity: false, fsGroupPolicy: ReadWriteOnceWithFSType, volumeLifecycleModes: [Persistent], requiresRepublish: false, seLinuxMount: false, preventPodSchedulingIfMissing: false}")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	grouptest.WantRow(t, drivers(), got, "x", true, false, false, "<unset>", false, "Persistent", "<unknown>")
	for text, want := range map[string][]string{
		"{}": nil,
		"{tokenRequests: [{audience: ''}, {audience: a, expirationSeconds: 600}], serviceAccountTokenInSecrets: true, volumeLifecycleModes: [Ephemeral]}": nil,
		"{fsGroupPolicy: Often, volumeLifecycleModes: [Always], nodeAllocatableUpdatePeriodSeconds: 9, serviceAccountTokenInSecrets: true}":               {grouptest.Unknown + "spec.fsGroupPolicy", grouptest.Unknown + "spec.volumeLifecycleModes", grouptest.Invalid + "spec.nodeAllocatableUpdatePeriodSeconds", grouptest.Invalid + "spec.serviceAccountTokenInSecrets"},
		"{tokenRequests: [{audience: a, expirationSeconds: 599}, {audience: a}, {audience: b, expirationSeconds: 4294967297}]}":                           {grouptest.Invalid + "spec.tokenRequests[0].expirationSeconds", grouptest.Duplicate + "spec.tokenRequests[1].audience", grouptest.Invalid + "spec.tokenRequests[2].expirationSeconds"},
	} {
		check[storagev1.CSIDriver](t, drivers(), meta+"spec: "+text, want)
	}
	change[storagev1.CSIDriver](t, drivers(), meta,
		meta+"spec: {attachRequired: false, volumeLifecycleModes: [Ephemeral]}",
		grouptest.Invalid+"spec.attachedRequired", grouptest.Invalid+"spec.volumeLifecycleModes")
	kind := drivers().(*resource.Kind[storagev1.CSIDriver])
	d := grouptest.Parse[storagev1.CSIDriver](t, meta+"spec: {tokenRequests: [{audience: a}]}")
	if w := kind.Warnings(context.Background(), d, nil); len(w) != 1 {
		t.Errorf("warnings: %q", w)
	}
	if w := kind.Warnings(context.Background(), d, d); len(w) != 0 {
		t.Errorf("warnings of an update: %q", w)
	}
	kind.Prepare(context.Background(), d, got)
	if d.Generation != 1 {
		t.Errorf("generation is %d after a change", d.Generation)
	}
}

func TestDriversOfNode(t *testing.T) {
	for text, want := range map[string][]string{
		"[{name: d, nodeID: a, topologyKeys: [a, example.com/b], allocatable: {count: 5}}]": nil,
		"[{nodeID: ''}]": {grouptest.Missing + "spec.drivers[0].name", grouptest.Missing + "spec.drivers[0].nodeID"},
		"[{name: d, nodeID: a, allocatable: {count: -1}, topologyKeys: [a, a, '']}, {name: d, nodeID: " +
			strings.Repeat("a", 257) + "}]": {grouptest.Invalid + "spec.drivers[0].allocatable.count",
			grouptest.Duplicate + "spec.drivers[0]", grouptest.Missing + "spec.drivers[0]",
			grouptest.Invalid + "spec.drivers[0]", grouptest.Invalid + "spec.drivers[0]",
			grouptest.Invalid + "spec.drivers[1].nodeID", grouptest.Duplicate + "spec.drivers[1].name"},
	} {
		kind := driversOfNodes().(*resource.Kind[storagev1.CSINode])
		grouptest.WantErrors(t,
			kind.Validate(context.Background(), grouptest.Parse[storagev1.CSINode](t, meta+"spec: {drivers: "+text+"}"),
				nil), want...)
	}
	const old = meta + "spec: {drivers: [{name: d, nodeID: a, allocatable: {count: 1}}]}"
	change[storagev1.CSINode](t, driversOfNodes(), old,
		meta+"spec: {drivers: [{name: d, nodeID: a, allocatable: {count: 2}}, {name: e, nodeID: a}]}")
	change[storagev1.CSINode](t, driversOfNodes(), old, meta+"spec: {drivers: [{name: d, nodeID: b}]}",
		grouptest.Invalid+"spec.drivers")
	grouptest.WantRow(t, driversOfNodes(), grouptest.Parse[storagev1.CSINode](t, old), "x", int64(1), "<unknown>")
}

func TestCapacity(t *testing.T) {
	const meta = "metadata: {name: x, namespace: default, resourceVersion: '1'}\n"
	for text, want := range map[string][]string{
		"storageClassName: a\ncapacity: 1Gi\nnodeTopology: {matchLabels: {a: b}}": nil,
		"storageClassName: A\ncapacity: -1\nnodeTopology: {matchLabels: {a: 'b c'}}": {
			grouptest.Invalid + "storageClassName", grouptest.Invalid + "capacity",
			grouptest.Invalid + "nodeTopology.matchLabels"},
	} {
		check[storagev1.CSIStorageCapacity](t, capacities(), meta+text, want)
	}
	change[storagev1.CSIStorageCapacity](t, capacities(), meta+"storageClassName: a",
		meta+"storageClassName: b\nnodeTopology: {}", grouptest.Invalid+"storageClassName",
		grouptest.Invalid+"nodeTopology")
	c := grouptest.Parse[storagev1.CSIStorageCapacity](t,
		meta+"storageClassName: a\ncapacity: 1Gi\nnodeTopology: {matchLabels: {beta.kubernetes.io/os: linux}}")
	grouptest.WantRow(t, capacities(), c, "x", "a", "1Gi")
	if w := capacities().(*resource.Kind[storagev1.CSIStorageCapacity]).Warnings(context.Background(), c,
		nil); len(w) != 1 {
		t.Errorf("warnings: %q", w)
	}
}

func TestAttachment(t *testing.T) {
	for text, want := range map[string][]string{
		"spec: {attacher: d, nodeName: a, source: {persistentVolumeName: v}}":                                                             nil,
		"spec: {attacher: d, nodeName: a, source: {inlineVolumeSpec: {accessModes: [ReadWriteOnce], csi: {driver: d, volumeHandle: h}}}}": nil,
		"spec: {nodeName: A, source: {}}": {
			grouptest.Missing + "spec.attacher", grouptest.Invalid + "spec.nodeName",
			grouptest.Missing + "spec.source"},
		"spec: {attacher: d, nodeName: a, source: {persistentVolumeName: ''}}": {
			grouptest.Missing + "spec.source.persistentVolumeName"},
		"spec: {attacher: d, nodeName: a, source: {persistentVolumeName: A}}": {
			grouptest.Invalid + "spec.source.persistentVolumeName"},
		"spec: {attacher: d, nodeName: a, source: {persistentVolumeName: v, inlineVolumeSpec: {}}}": {
			grouptest.Forbidden + "spec.source"},
		"spec: {attacher: d, nodeName: a, source: {persistentVolumeName: v}}\nstatus: {attachError: {errorCode: -1}, detachError: {message: " + strings.Repeat("x", 1025) + "}}": {grouptest.Invalid + "status.attachError.errorCode", grouptest.TooLong + "status.detachError.message"},
	} {
		check[storagev1.VolumeAttachment](t, attachments(), meta+text, want)
	}
	const old = meta + "spec: {attacher: d, nodeName: a, source: {persistentVolumeName: v}}\n"
	change[storagev1.VolumeAttachment](t, attachments(), old, old+"status: {attached: true}")
	change[storagev1.VolumeAttachment](t, attachments(), old,
		meta+"spec: {attacher: d, nodeName: b, source: {persistentVolumeName: v}}", grouptest.Invalid+"spec")
	grouptest.WantRow(t, attachments(), grouptest.Parse[storagev1.VolumeAttachment](t, old), "x", "d", "v", "a", false,
		"<unknown>")
}
