package core

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/google/go-cmp/cmp"
)

func TestNamespace(t *testing.T) {
	ctx := context.Background()
	ns := parse[corev1.Namespace](t, `{metadata: {name: a}}`)
	defaultNamespace(ns)
	prepareNamespace(ctx, ns, nil)
	want := parse[corev1.Namespace](t, `{metadata: {name: a, labels: {kubernetes.io/metadata.name: a}}, spec: {finalizers: [kubernetes]}, status: {phase: Active}}`)
	if diff := cmp.Diff(want, ns); diff != "" {
		t.Errorf("new namespace (-want +got):\n%s", diff)
	}
	wantErrors(t, validateNamespace(ctx, ns, nil))
	wantErrors(t, validateNamespace(ctx, parse[corev1.Namespace](t, `{metadata: {name: a.b}}`), nil), invalid+"metadata.name")

	// The finalizers of the spec are not for ordinary updates.
	update := ns.DeepCopy()
	update.Spec.Finalizers = nil
	prepareNamespace(ctx, update, ns)
	if len(update.Spec.Finalizers) != 1 {
		t.Error("an update took the finalizer away")
	}

	ns.Status.Phase = corev1.NamespaceTerminating
	wantErrors(t, validateNamespaceStatus(ctx, ns, nil), invalid+"status.phase")
	now := metav1.Now()
	ns.DeletionTimestamp = &now
	wantErrors(t, validateNamespaceStatus(ctx, ns, nil))
}

func TestConfigMap(t *testing.T) {
	ctx := context.Background()
	const meta = "metadata: {name: a, namespace: b, resourceVersion: '1'}\n"
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"good":        {`data: {a.b-c_D: x}`, nil},
		"keys":        {"data: {a/b: x}\nbinaryData: {'..': AA==}", []string{invalid + "data[a/b]", invalid + "binaryData[..]"}},
		"same key":    {"data: {a: x}\nbinaryData: {a: AA==}", []string{invalid + "data[a]"}},
		"large value": {"data: {a: " + strings.Repeat("x", largestData+1) + "}", []string{tooLong + "data"}},
	} {
		t.Run(name, func(t *testing.T) {
			wantErrors(t, validateConfigMap(ctx, parse[corev1.ConfigMap](t, meta+c.in), nil), c.want...)
		})
	}
	old := parse[corev1.ConfigMap](t, meta+"immutable: true\ndata: {a: b}")
	wantErrors(t, validateConfigMap(ctx, old.DeepCopy(), old))
	wantErrors(t, validateConfigMap(ctx, parse[corev1.ConfigMap](t, meta+"immutable: false\ndata: {a: c}"), old), forbidden+"immutable", forbidden+"data")
}

func TestSecret(t *testing.T) {
	ctx := context.Background()
	const meta = "metadata: {name: a, namespace: b, resourceVersion: '1'}\n"
	s := parse[corev1.Secret](t, meta+"data: {a: AA==}\nstringData: {a: new, b: other}")
	defaultSecret(s)
	if s.Type != corev1.SecretTypeOpaque || string(s.Data["a"]) != "new" || string(s.Data["b"]) != "other" || s.StringData != nil {
		t.Errorf("defaulted to %+v", s)
	}
	for name, c := range map[string]struct {
		in   string
		want []string
	}{
		"tls":              {`type: kubernetes.io/tls`, []string{missing + "data[tls.crt]", missing + "data[tls.key]"}},
		"ssh":              {`type: kubernetes.io/ssh-auth`, []string{missing + "data[ssh-privatekey]"}},
		"basic auth":       {`type: kubernetes.io/basic-auth`, []string{missing + "data[username]", missing + "data[password]"}},
		"only a password":  {"type: kubernetes.io/basic-auth\nstringData: {password: x}", nil},
		"token":            {`type: kubernetes.io/service-account-token`, []string{missing + "metadata.annotations[kubernetes.io/service-account.name]"}},
		"docker":           {`type: kubernetes.io/dockerconfigjson`, []string{missing + "data[.dockerconfigjson]"}},
		"docker, not JSON": {"type: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: hunter2}", []string{invalid + "data[.dockerconfigjson]"}},
		"keys":             {`data: {"a b": AA==}`, []string{invalid + "data[a b]"}},
		"own type":         {"type: helm.sh/release.v1\ndata: {release: AA==}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := parse[corev1.Secret](t, meta+c.in)
			defaultSecret(s)
			errs := validateSecret(ctx, s, nil)
			wantErrors(t, errs, c.want...)
			for _, err := range errs {
				if strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the error tells the secret: %v", err)
				}
			}
		})
	}
	old := s.DeepCopy()
	s.Type = corev1.SecretTypeTLS
	wantErrors(t, validateSecret(ctx, s, old), invalid+"type", missing+"data[tls.crt]", missing+"data[tls.key]")
}

func TestValidateNode(t *testing.T) {
	ctx := context.Background()
	n := parse[corev1.Node](t, `
metadata: {name: n1}
spec:
  podCIDR: 10.42.0.0/24
  podCIDRs: [10.42.1.0/24, x]
  taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoSchedule}, {key: b, effect: Maybe}, {effect: NoExecute}]
status:
  capacity: {cpu: "-1", "a b": 1}
  addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalIP, address: 10.0.0.1}]
`)
	wantErrors(t, validateNode(ctx, n, nil),
		invalid+"spec.podCIDRs", invalid+"spec.podCIDRs[1]",
		duplicate+"spec.taints[1]", unknown+"spec.taints[2].effect", missing+"spec.taints[3].key",
		invalid+"status.capacity[cpu]", invalid+"status.capacity[a b]", duplicate+"status.addresses[1]")

	old := parse[corev1.Node](t, `{metadata: {name: n1, resourceVersion: "1"}, spec: {podCIDR: 10.42.0.0/24, podCIDRs: [10.42.0.0/24], providerID: a}}`)
	n = old.DeepCopy()
	n.Spec.Unschedulable = true
	wantErrors(t, validateNode(ctx, n, old))
	n.Spec.PodCIDR, n.Spec.PodCIDRs, n.Spec.ProviderID = "10.42.1.0/24", []string{"10.42.1.0/24"}, "b"
	wantErrors(t, validateNode(ctx, n, old), invalid+"spec.podCIDRs", invalid+"spec.providerID")
}

func TestValidateEndpoints(t *testing.T) {
	e := parse[corev1.Endpoints](t, `
metadata: {name: a, namespace: b}
subsets:
- {ports: [{port: 80}]}
- {addresses: [{ip: 127.0.0.1}, {ip: x, hostname: A, nodeName: B}], ports: [{port: 0}, {name: p, port: 1, protocol: X}]}
`)
	defaultEndpoints(e)
	wantErrors(t, validateEndpoints(context.Background(), e, nil),
		missing+"subsets[0]", invalid+"subsets[1].addresses[0].ip", invalid+"subsets[1].addresses[1].ip",
		invalid+"subsets[1].addresses[1].hostname", invalid+"subsets[1].addresses[1].nodeName",
		missing+"subsets[1].ports[0].name", invalid+"subsets[1].ports[0].port", unknown+"subsets[1].ports[1].protocol")
}

func TestValidateEvent(t *testing.T) {
	old := context.Background()
	newStyle := genericrequest.WithRequestInfo(old, &genericrequest.RequestInfo{APIGroup: eventsv1.GroupName})

	e := parse[corev1.Event](t, `{metadata: {name: e, namespace: default}, involvedObject: {kind: Node, name: n1}, reason: r}`)
	wantErrors(t, validateEvent(old, e, nil))
	e.InvolvedObject.Namespace = "other"
	wantErrors(t, validateEvent(old, e, nil), invalid+"involvedObject.namespace")

	e = parse[corev1.Event](t, `{metadata: {name: e, namespace: default}, count: 1}`)
	wantErrors(t, validateEvent(newStyle, e, nil), missing+"eventTime", missing+"reportingController", missing+"reportingInstance",
		missing+"action", missing+"reason", missing+"type", invalid+"count")

	good := parse[corev1.Event](t, `{metadata: {name: e, namespace: default, resourceVersion: "1"}, eventTime: "2030-01-01T00:00:00.000000Z", reportingComponent: a.b/c, reportingInstance: i, action: a, reason: r, type: Normal}`)
	wantErrors(t, validateEvent(newStyle, good, nil))
	changed := good.DeepCopy()
	changed.Message = "other"
	changed.Series = &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NowMicro()}
	wantErrors(t, validateEvent(newStyle, changed, good), invalid+"message")
}

func TestEventConversion(t *testing.T) {
	in := parse[corev1.Event](t, `
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
