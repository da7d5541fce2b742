package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
)

// allParts are those of parts.tsv.
func allParts(t *testing.T) []part {
	t.Helper()
	parts, err := parseParts(partsTable)
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

func TestPartsTable(t *testing.T) {
	need := regexp.MustCompile(`^([a-z]+(\.[a-z0-9.]+)?(/[a-z]+)?|service:[a-z-]+/[a-z-]+)$`)
	for _, p := range allParts(t) {
		for _, n := range p.needs {
			if !need.MatchString(n) {
				t.Errorf("%s needs %q, which is neither a resource nor a service", p.name, n)
			}
		}
	}
}

func TestPartsTableIsRefused(t *testing.T) {
	for line, want := range map[string]string{
		"Job\tjobs.batch":             "with tabs between them",
		"Job jobs.batch x":            "with tabs between them",
		"Job\t\tx":                    "with tabs between them",
		"Job\tjobs.batch\tJob\tmore":  "with tabs between them",
		"Job\tjobs.batch\tJob (never": "Job: error parsing regexp",
	} {
		if _, err := parseParts("# a comment\n\n" + line + "\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

// TestMissing: the part that a spec waits for, by the parts of the cluster.
func TestMissing(t *testing.T) {
	parts := allParts(t)
	const (
		crds     = "customresourcedefinitions.apiextensions.k8s.io"
		validate = "validatingwebhookconfigurations.admissionregistration.k8s.io"
		mutate   = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
	)
	for _, c := range []struct {
		spec string
		has  []string
		want string
	}{
		{"[sig-storage] Secrets should be consumable from pods in volume [Conformance]", nil, ""},
		{"[sig-apps] Job should delete a job [Conformance]", nil, "Job"},
		{"[sig-apps] Job should delete a job [Conformance]", []string{"jobs.batch"}, ""},
		{"[sig-apps] CronJob should support CronJob API operations [Conformance]", []string{"jobs.batch"}, "CronJob"},
		{"[sig-network] IngressClass API should support creating IngressClass API operations [Conformance]",
			[]string{"ingresses.networking.k8s.io"}, "IngressClass"},
		{"[sig-storage] PersistentVolumes CSI Conformance should apply changes to a pv/pvc status [Conformance]",
			[]string{"persistentvolumes"}, "PersistentVolume, PersistentVolumeClaim"},
		{"[sig-node] [DRA] CRUD Tests resource.k8s.io/v1 ResourceClaimTemplate [Conformance]",
			[]string{"resourceclaims.resource.k8s.io"}, "ResourceClaimTemplate"},
		{"[sig-node] [DRA] CRUD Tests resource.k8s.io/v1 ResourceClaim [Conformance]",
			[]string{"resourceclaims.resource.k8s.io"}, ""},
		{"[sig-api-machinery] ResourceQuota should create a ResourceQuota and capture the life of a replication controller. [Conformance]", []string{"resourcequotas"}, "ReplicationController"},
		{"[sig-network] DNS should provide DNS for services [Conformance]", nil, "cluster DNS"},
		{"[sig-network] DNS should provide DNS for services [Conformance]", []string{"service:kube-system/kube-dns"},
			""},
		// Without custom resources these report success.
		{"[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate custom resource [Conformance]",
			[]string{validate, mutate}, "CustomResourceDefinition"},
		{"[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate custom resource [Conformance]",
			[]string{crds}, "ValidatingWebhookConfiguration, MutatingWebhookConfiguration"},
		{"[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should mutate custom resource [Conformance]",
			[]string{crds, validate, mutate}, ""},
		{"[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should honor timeout [Conformance]",
			[]string{validate, mutate}, ""},
		{"[sig-api-machinery] CustomResourceConversionWebhook [Privileged:ClusterAdmin] should be able to convert from CR v1 to CR v2 [Conformance]", []string{validate, mutate}, "CustomResourceDefinition"},
	} {
		has := map[string]bool{}
		for _, h := range c.has {
			has[h] = true
		}
		lacking := absent(parts, has)
		if got := missing(lacking, c.spec); got != c.want {
			t.Errorf("%s, on a cluster with %q: missing %q, want %q", c.spec, c.has, got, c.want)
		}
		// The suite is told to skip exactly the specs that are judged as left out.
		if skipped := regexp.MustCompile(anyOf(lacking)).MatchString(c.spec); skipped != (c.want != "") {
			t.Errorf("%s, on a cluster with %q: skipped is %v", c.spec, c.has, skipped)
		}
	}
}

func TestUnused(t *testing.T) {
	parts, err := parseParts("Job\tjobs.batch\t\\] Job \nGone\tgone\tnever\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := unused(parts, []spec{{Name: "[sig-apps] Job should delete a job"}}); !slices.Equal(got,
		[]string{"Gone (never)"}) {
		t.Errorf("got %q", got)
	}
	if got := anyOf(nil); got != "" {
		t.Errorf("no parts give the expression %q, which would skip all", got)
	}
}

// TestPresent: resources are found by discovery, other parts by their Service.
func TestPresent(t *testing.T) {
	client := fake.NewClientset(
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}})
	client.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods"}, {Name: "pods/resize"}}},
		{GroupVersion: "batch/v1", APIResources: []metav1.APIResource{{Name: "jobs"}, {Name: "jobs/status"}}},
	}
	parts, err := parseParts("DNS\tservice:kube-system/kube-dns\tDNS\nother\tservice:kube-system/other\tother\n")
	if err != nil {
		t.Fatal(err)
	}
	has, err := present(t.Context(), client, parts)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"pods": true, "pods/resize": true, "jobs.batch": true, "jobs.batch/status": true,
		"service:kube-system/kube-dns": true,
		"jobs":                         false, "cronjobs.batch": false, "service:kube-system/other": false,
	} {
		if has[name] != want {
			t.Errorf("%s: present is %v", name, has[name])
		}
	}
	if _, err := present(t.Context(), fake.NewClientset(), nil); err == nil ||
		!strings.Contains(err.Error(), "names no pods") {
		t.Errorf("empty discovery: got %v", err)
	}
}

func TestPulled(t *testing.T) {
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c0", Image: "one"}, {Name: "c1", Image: "two"},
				{Name: "c2", Image: "three"}}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "c0", ImageID: "sha256:1"},
		{Name: "c1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Message: "not found"}}},
	}
	if err := pulled(pod); err == nil || err.Error() != "not there: two (not found), three" {
		t.Errorf("got %v", err)
	}
	pod.Spec.Containers = pod.Spec.Containers[:1]
	if err := pulled(pod); err != nil {
		t.Errorf("got %v", err)
	}
}
