package core

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/google/go-cmp/cmp"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestNamespace(t *testing.T) {
	ctx := context.Background()
	ns := grouptest.Parse[corev1.Namespace](t, `{metadata: {name: a}}`)
	defaultNamespace(ns)
	prepareNamespace(ctx, ns, nil)
	want := grouptest.Parse[corev1.Namespace](t,
		`{metadata: {name: a, labels: {kubernetes.io/metadata.name: a}}, spec: {finalizers: [kubernetes]}, status: {phase: Active}}`)
	if diff := cmp.Diff(want, ns); diff != "" {
		t.Errorf("new namespace (-want +got):\n%s", diff)
	}
	grouptest.WantErrors(t, validateNamespace(ctx, ns, nil))
	grouptest.WantErrors(t,
		validateNamespace(ctx, grouptest.Parse[corev1.Namespace](t, `{metadata: {name: a.b}}`), nil),
		grouptest.Invalid+"metadata.name")

	plain := grouptest.Parse[corev1.Namespace](t,
		`{metadata: {name: a, finalizers: [plain, a.b/c]}, spec: {finalizers: [kubernetes, plain]}}`)
	grouptest.WantErrors(t, validateNamespace(ctx, plain, nil), grouptest.Invalid+"metadata.finalizers[0]",
		grouptest.Invalid+"spec.finalizers")

	// The finalizers of the spec are not for ordinary updates.
	update := ns.DeepCopy()
	update.Spec.Finalizers = nil
	prepareNamespace(ctx, update, ns)
	if len(update.Spec.Finalizers) != 1 {
		t.Error("an update took the finalizer away")
	}

	ns.Status.Phase = corev1.NamespaceTerminating
	grouptest.WantErrors(t, validateNamespaceStatus(ctx, ns, nil), grouptest.Invalid+"status.Phase")
	now := metav1.Now()
	ns.DeletionTimestamp = &now
	grouptest.WantErrors(t, validateNamespaceStatus(ctx, ns, nil))
}

func TestConfigMap(t *testing.T) {
	ctx := context.Background()
	const meta = "metadata: {name: a, namespace: b, resourceVersion: '1'}\n"
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"good": {`data: {a.b-c_D: x}`, nil},
		"keys": {"data: {a/b: x}\nbinaryData: {'..': AA==}",
			[]string{grouptest.Invalid + "data[a/b]", grouptest.Invalid + "binaryData[..]"}},
		"same key":    {"data: {a: x}\nbinaryData: {a: AA==}", []string{grouptest.Invalid + "data[a]"}},
		"large value": {"data: {a: " + strings.Repeat("x", largestData+1) + "}", []string{grouptest.TooLong + "[]"}},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t, validateConfigMap(ctx, grouptest.Parse[corev1.ConfigMap](t, meta+c.in), nil),
				c.want...)
		})
	}
	old := grouptest.Parse[corev1.ConfigMap](t, meta+"immutable: true\ndata: {a: b}")
	grouptest.WantErrors(t, validateConfigMap(ctx, old.DeepCopy(), old))
	grouptest.WantErrors(t,
		validateConfigMap(ctx, grouptest.Parse[corev1.ConfigMap](t, meta+"immutable: false\ndata: {a: c}"), old),
		grouptest.Forbidden+"immutable", grouptest.Forbidden+"data")
}

func TestSecret(t *testing.T) {
	ctx := context.Background()
	const meta = "metadata: {name: a, namespace: b, resourceVersion: '1'}\n"
	s := grouptest.Parse[corev1.Secret](t, meta+"data: {a: AA==}\nstringData: {a: new, b: other}")
	defaultSecret(s)
	if s.Type != corev1.SecretTypeOpaque || string(s.Data["a"]) != "new" || string(s.Data["b"]) != "other" ||
		s.StringData != nil {
		t.Errorf("defaulted to %+v", s)
	}
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"tls": {`type: kubernetes.io/tls`,
			[]string{grouptest.Missing + "data[tls.crt]", grouptest.Missing + "data[tls.key]"}},
		"ssh": {`type: kubernetes.io/ssh-auth`, []string{grouptest.Missing + "data[ssh-privatekey]"}},
		"basic auth": {`type: kubernetes.io/basic-auth`,
			[]string{grouptest.Missing + "data[username]", grouptest.Missing + "data[password]"}},
		"only a password": {"type: kubernetes.io/basic-auth\nstringData: {password: x}", nil},
		"token": {`type: kubernetes.io/service-account-token`,
			[]string{grouptest.Missing + "metadata.annotations[kubernetes.io/service-account.name]"}},
		"docker": {`type: kubernetes.io/dockerconfigjson`,
			[]string{grouptest.Missing + "data[.dockerconfigjson]"}},
		"docker, not JSON": {"type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: hunter2}",
			[]string{grouptest.Invalid + "data[.dockerconfigjson]"}},
		"keys":     {`data: {"a b": AA==}`, []string{grouptest.Invalid + "data[a b]"}},
		"own type": {"type: helm.sh/release.v1\ndata: {release: AA==}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := grouptest.Parse[corev1.Secret](t, meta+c.in)
			defaultSecret(s)
			errs := validateSecret(ctx, s, nil)
			grouptest.WantErrors(t, errs, c.want...)
			for _, err := range errs {
				if strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the error tells the secret: %v", err)
				}
			}
		})
	}
	old := s.DeepCopy()
	s.Type = corev1.SecretTypeTLS
	grouptest.WantErrors(t, validateSecret(ctx, s, old), grouptest.Invalid+"type", grouptest.Missing+"data[tls.crt]",
		grouptest.Missing+"data[tls.key]")
}

func TestValidateNode(t *testing.T) {
	ctx := context.Background()
	n := grouptest.Parse[corev1.Node](t, `
metadata: {name: n1}
spec:
  podCIDR: 10.42.0.0/24
  podCIDRs: [10.42.1.0/24, x, 10.42.2.0/24]
  taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoSchedule}, {key: b, effect: Maybe}, {effect: NoExecute}]
status:
  capacity: {cpu: "-1", "a b": 1}
  addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: 10.0.0.1}]
`)
	grouptest.WantErrors(t, validateNode(ctx, n, nil),
		grouptest.Invalid+"spec.podCIDRs", grouptest.Invalid+"spec.podCIDRs[1]",
		string(field.ErrorTypeInternal)+" spec.podCIDRs",
		grouptest.Duplicate+"metadata.taints[1]", grouptest.Unknown+"metadata.taints[2].effect",
		grouptest.Invalid+"metadata.taints[3].key", grouptest.Invalid+"metadata.taints[3].key",
		grouptest.Invalid+"status.capacity.cpu")

	old := grouptest.Parse[corev1.Node](t,
		`{metadata: {name: n1, resourceVersion: "1"}, spec: {podCIDR: 10.42.0.0/24, podCIDRs: [10.42.0.0/24], providerID: a}}`)
	n = old.DeepCopy()
	n.Spec.Unschedulable = true
	grouptest.WantErrors(t, validateNode(ctx, n, old))
	n.Spec.PodCIDR, n.Spec.PodCIDRs, n.Spec.ProviderID = "10.42.1.0/24", []string{"10.42.1.0/24"}, "b"
	n.Status.Addresses = []corev1.NodeAddress{{Address: "a"}, {Address: "a"}}
	grouptest.WantErrors(t, validateNode(ctx, n, old), grouptest.Forbidden+"spec.podCIDRs",
		grouptest.Invalid+"spec.providerID", grouptest.Duplicate+"status.addresses[1]")
}

func TestNodeDefaults(t *testing.T) {
	for in, want := range map[string]string{
		`{podCIDR: a}`:                      `{podCIDR: a, podCIDRs: [a]}`,
		`{podCIDRs: [a, b]}`:                `{podCIDR: a, podCIDRs: [a, b]}`,
		`{podCIDR: c, podCIDRs: [a, b]}`:    `{podCIDR: c, podCIDRs: [c]}`,
		`{podPreemptionPolicy: {}}`:         `{}`,
		`{configSource: {configMap: null}}`: `{}`,
	} {
		n := &corev1.Node{Spec: *grouptest.Parse[corev1.NodeSpec](t, in)}
		defaultNode(n)
		prepareNode(context.Background(), n, nil)
		if diff := cmp.Diff(grouptest.Parse[corev1.NodeSpec](t, want), &n.Spec); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

func TestValidateEvent(t *testing.T) {
	old := context.Background()
	newStyle := genericrequest.WithRequestInfo(old, &genericrequest.RequestInfo{APIGroup: eventsv1.GroupName})

	e := grouptest.Parse[corev1.Event](t,
		`{metadata: {name: e, namespace: default}, involvedObject: {kind: Node, name: n1}, reason: r}`)
	grouptest.WantErrors(t, validateEvent(old, e, nil))
	e.InvolvedObject.Namespace = "other"
	grouptest.WantErrors(t, validateEvent(old, e, nil), grouptest.Invalid+"involvedObject.namespace")

	e = grouptest.Parse[corev1.Event](t, `{metadata: {name: e, namespace: default}, count: 1}`)
	grouptest.WantErrors(t, validateEvent(newStyle, e, nil), grouptest.Missing+"eventTime", grouptest.Invalid+"type",
		grouptest.Invalid+"count")
	e = grouptest.Parse[corev1.Event](t,
		`{metadata: {name: Odd_Name, namespace: default}, eventTime: "2030-01-01T00:00:00.000000Z"}`)
	grouptest.WantErrors(t, validateEvent(old, e, nil), grouptest.Missing+"reportingComponent",
		grouptest.Invalid+"reportingComponent", grouptest.Invalid+"reportingComponent",
		grouptest.Missing+"reportingInstance", grouptest.Missing+"action", grouptest.Missing+"reason")

	good := grouptest.Parse[corev1.Event](t,
		`{metadata: {name: e, namespace: default, resourceVersion: "1"}, eventTime: "2030-01-01T00:00:00.000000Z", reportingComponent: a.b/c, reportingInstance: i, action: a, reason: r, type: Normal}`)
	grouptest.WantErrors(t, validateEvent(newStyle, good, nil))
	changed := good.DeepCopy()
	changed.Message = "other"
	changed.Series = &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NowMicro()}
	grouptest.WantErrors(t, validateEvent(newStyle, changed, good), grouptest.Invalid+"message")
}

func TestEventConversion(t *testing.T) {
	in := grouptest.Parse[corev1.Event](t, `
metadata: {name: e, namespace: default}
involvedObject: {kind: Pod, name: p}
related: {kind: Node, name: n}
reason: r
message: m
source: {component: c, host: h}
firstTimestamp: "2030-01-01T00:00:00Z"
lastTimestamp: "2030-01-01T00:00:01Z"
count: 2
type: Normal
eventTime: "2030-01-01T00:00:00.000000Z"
series: {count: 2, lastObservedTime: "2030-01-01T00:00:00.000000Z"}
action: a
reportingComponent: rc
reportingInstance: ri
`)
	out, back := &eventsv1.Event{}, &corev1.Event{}
	if err := eventToEventsV1(in, out); err != nil {
		t.Fatal(err)
	}
	if err := eventFromEventsV1(out, back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, back); diff != "" {
		t.Errorf("there and back (-want +got):\n%s", diff)
	}
	if out.Note != "m" || out.Regarding.Name != "p" || out.DeprecatedCount != 2 {
		t.Errorf("converted to %+v", out)
	}
}
