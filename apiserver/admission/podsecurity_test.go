package admission

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// told collects warnings.
type told []string

// AddWarning implements warning.Recorder.
func (w *told) AddWarning(_, text string) { *w = append(*w, text) }

func TestPodSecurity(t *testing.T) {
	namespace := func(name, mode, level string) *corev1.Namespace {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if mode != "" {
			ns.Labels = map[string]string{"pod-security.kubernetes.io/" + mode: level}
		}
		return ns
	}
	namespaces := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, ns := range []*corev1.Namespace{namespace("free", "", ""), namespace("base", "enforce", "baseline"),
		namespace("strict", "enforce", "restricted"), namespace("warned", "warn", "baseline")} {
		if err := namespaces.Add(ns); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(ns string, change func(*corev1.PodSpec)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if change != nil {
			change(&p.Spec)
		}
		return p
	}
	privileged := func(s *corev1.PodSpec) {
		s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	}
	if err := pods.Add(pod("free", privileged)); err != nil {
		t.Fatal(err)
	}
	step := func(config string) *PodSecurity {
		t.Helper()
		s, err := NewPodSecurity(strings.NewReader(config), listers.NewNamespaceLister(namespaces),
			listers.NewPodLister(pods), fake.NewClientset())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	plain := step("")
	baseline := step("apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n" +
		"defaults: {enforce: baseline}\nexemptions: {usernames: [root]}\n")
	restricted := func(s *corev1.PodSpec) {
		s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
		s.Containers[0].SecurityContext = &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}
	}
	deployment := func(ns string) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "d"},
			Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: pod(ns, privileged).Spec}}}
	}
	podResource := corev1.SchemeGroupVersion.WithResource("pods")
	for name, c := range map[string]struct {
		step     *PodSecurity
		obj, old runtime.Object
		resource schema.GroupVersionResource
		ns       string
		user     string
		refused  string // "" means that it is allowed
		warns    string
	}{
		"privileged, no labels": {plain, pod("free", privileged), nil, podResource, "free", "ann", "", ""},
		"privileged, baseline": {plain, pod("base", privileged), nil, podResource, "base", "ann",
			`violates PodSecurity "baseline:latest": privileged`, ""},
		"plain, baseline": {plain, pod("base", nil), nil, podResource, "base", "ann", "", ""},
		"plain, restricted": {plain, pod("strict", nil), nil, podResource, "strict", "ann",
			`violates PodSecurity "restricted:latest": allowPrivilegeEscalation`, ""},
		"restricted": {plain, pod("strict", restricted), nil, podResource, "strict", "ann", "", ""},
		"warned": {plain, pod("warned", privileged), nil, podResource, "warned", "ann", "",
			`would violate PodSecurity "baseline:latest"`},
		"default of the file": {baseline, pod("free", privileged), nil, podResource, "free", "ann",
			"violates PodSecurity", ""},
		"exempt user": {baseline, pod("free", privileged), nil, podResource, "free", "root", "", ""},
		"a deployment is not held": {plain, deployment("base"), nil,
			appsv1.SchemeGroupVersion.WithResource("deployments"), "base", "ann", "", "would violate"},
		"nor where only warned": {plain, deployment("warned"), nil,
			appsv1.SchemeGroupVersion.WithResource("deployments"), "warned", "ann", "", "would violate"},
		"a level that there is not": {plain, namespace("n", "enforce", "some"), nil,
			corev1.SchemeGroupVersion.WithResource("namespaces"), "n", "ann",
			"must be one of privileged, baseline, restricted", ""},
		"what runs already": {plain, namespace("free", "enforce", "baseline"), namespace("free", "", ""),
			corev1.SchemeGroupVersion.WithResource("namespaces"), "free", "ann", "",
			`existing pods in namespace "free" violate`},
		"other resources": {plain, &corev1.ConfigMap{}, nil,
			corev1.SchemeGroupVersion.WithResource("configmaps"), "base", "ann", "", ""},
		"a pod whose status changes": {plain, pod("base", privileged), pod("base", privileged), podResource, "base",
			"ann", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var warnings told
			op := admission.Create
			if c.old != nil {
				op = admission.Update
			}
			ctx := warning.WithWarningRecorder(context.Background(), &warnings)
			err := c.step.Validate(ctx,
				admission.NewAttributesRecord(c.obj, c.old, schema.GroupVersionKind{}, c.ns, c.ns, c.resource, "", op,
					nil, false,
					&user.DefaultInfo{Name: c.user}), nil)
			if c.refused == "" && err != nil ||
				c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
				t.Errorf("%v, want %q", err, c.refused)
			}
			if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("the refusal is %v", apierrors.ReasonForError(err))
			}
			if all := strings.Join(warnings, "\n"); (c.warns == "") != (all == "") || !strings.Contains(all, c.warns) {
				t.Errorf("warnings %q, want %q", all, c.warns)
			}
		})
	}
	if _, err := NewPodSecurity(
		strings.NewReader(
			"apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\ndefaults: {enforce: some}\n"), nil, nil, nil); err == nil {
		t.Error("a level that there is not is taken as default")
	}
}
