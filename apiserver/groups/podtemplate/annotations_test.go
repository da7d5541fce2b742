package podtemplate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

func TestValidateAnnotations(t *testing.T) {
	const (
		armor   = "container.apparmor.security.beta.kubernetes.io/"
		seccomp = "seccomp.security.alpha.kubernetes.io/pod"
		cost    = "controller.kubernetes.io/pod-deletion-cost"
	)
	at := field.NewPath("annotations")
	for name, c := range map[string]struct {
		annotations map[string]string
		spec        string
		want        []string
	}{
		"none": {nil, base, nil},
		"good": {
			map[string]string{armor + "a": "localhost/x", seccomp: "localhost/x/y", cost: "-5",
				corev1.TolerationsAnnotationKey: `[{"operator": "Exists"}]`}, base, nil},
		"mirror": {map[string]string{corev1.MirrorPodAnnotationKey: "x"}, base,
			[]string{grouptest.Invalid + "annotations[kubernetes.io/config.mirror]"}},
		"mirror on a node": {map[string]string{corev1.MirrorPodAnnotationKey: "x"}, base + "nodeName: n", nil},
		"cost": {map[string]string{cost: "+1"}, base,
			[]string{grouptest.Invalid + "annotations[" + cost + "]"}},
		"cost of nothing": {map[string]string{cost: ""}, base,
			[]string{grouptest.Invalid + "annotations[" + cost + "]"}},
		"cost with zeros": {map[string]string{cost: "01"}, base,
			[]string{grouptest.Invalid + "annotations[" + cost + "]"}},
		"seccomp": {map[string]string{seccomp: "some"}, base,
			[]string{grouptest.Invalid + "annotations." + seccomp}},
		"seccomp path": {map[string]string{seccomp: "localhost//x"}, base,
			[]string{grouptest.Invalid + "annotations." + seccomp}},
		"armor": {map[string]string{armor + "a": "some"}, base,
			[]string{grouptest.Invalid + "annotations[" + armor + "a]"}},
		"armor of nobody": {map[string]string{armor + "b": "unconfined"}, base,
			[]string{grouptest.Invalid + "annotations[" + armor + "b]"}},
		"tolerations": {map[string]string{corev1.TolerationsAnnotationKey: `x`}, base,
			[]string{grouptest.Invalid + "annotations"}},
		"wrong tolerations": {map[string]string{corev1.TolerationsAnnotationKey: `[{}]`}, base,
			[]string{grouptest.Invalid + "annotations.scheduler.alpha.kubernetes.io/tolerations[0].operator"}},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t, ValidateAnnotations(c.annotations, parse(t, c.spec), at), c.want...)
		})
	}
	for name, c := range map[string]struct {
		annotations map[string]string
		spec        string
		want        []string
	}{
		"agree": {map[string]string{seccomp: "unconfined", armor + "a": "localhost/x"},
			base +
				"securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Localhost, localhostProfile: x}}", nil},
		"only fields": {nil, base + "securityContext: {seccompProfile: {type: Unconfined}}", nil},
		"seccomp": {map[string]string{seccomp: "unconfined"},
			base + "securityContext: {seccompProfile: {type: RuntimeDefault}}",
			[]string{grouptest.Forbidden + "spec.securityContext.seccompProfile.type"}},
		"seccomp file": {map[string]string{seccomp: "localhost/y"},
			base + "securityContext: {seccompProfile: {type: Localhost, localhostProfile: x}}",
			[]string{grouptest.Forbidden + "spec.securityContext.seccompProfile.localhostProfile"}},
		"armor": {map[string]string{armor + "a": "unconfined"},
			base + "securityContext: {appArmorProfile: {type: RuntimeDefault}}",
			[]string{grouptest.Forbidden + "spec.containers[0].securityContext.appArmorProfile.type"}},
		"armor's file": {map[string]string{armor + "a": "localhost/y"},
			base + "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: x}}",
			[]string{grouptest.Forbidden + "spec.containers[0].securityContext.appArmorProfile.localhostProfile"}},
		"another system": {map[string]string{armor + "a": "unconfined"},
			base + "os: {name: windows}\nsecurityContext: {appArmorProfile: {type: RuntimeDefault}}", nil},
	} {
		t.Run("fields: "+name, func(t *testing.T) {
			grouptest.WantErrors(t, ValidateAgreement(c.annotations, parse(t, c.spec), field.NewPath("spec")),
				c.want...)
		})
	}
}

func TestSyncAppArmor(t *testing.T) {
	const armor = "container.apparmor.security.beta.kubernetes.io/"
	p := grouptest.Parse[corev1.Pod](t, `
metadata: {annotations: {`+armor+`a: runtime/default, `+armor+`b: localhost/x, `+armor+`c: odd, `+armor+`d: unconfined}}
spec:
  securityContext: {appArmorProfile: {type: RuntimeDefault}}
  containers: [{name: a}, {name: b}, {name: c}, {name: d, securityContext: {appArmorProfile: {type: RuntimeDefault}}}]
`)
	if diff := cmp.Diff([]string{armor + "b", armor + "c"}, SyncAppArmor(p)); diff != "" {
		t.Errorf("deprecated (-want +got):\n%s", diff)
	}
	want := grouptest.Parse[corev1.PodSpec](t, `
securityContext: {appArmorProfile: {type: RuntimeDefault}}
containers:
- {name: a}
- {name: b, securityContext: {appArmorProfile: {type: Localhost, localhostProfile: x}}}
- {name: c}
- {name: d, securityContext: {appArmorProfile: {type: RuntimeDefault}}}
`)
	if diff := cmp.Diff(want, &p.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}
