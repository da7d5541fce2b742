package admission

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
)

// TestIngressWarnings: writers of Ingresses are warned, and nobody is refused.
func TestIngressWarnings(t *testing.T) {
	step := NewIngressWarnings(func(in *networkingv1.Ingress) []string { return []string{"problem of " + in.Name} })
	going := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "i", DeletionTimestamp: new(metav1.Now())}}
	for name, c := range map[string]struct {
		step        *IngressWarnings
		object      runtime.Object
		subresource string
		want        []string
	}{
		"an Ingress": {step, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "i"}}, "",
			[]string{"problem of i"}},
		"its status":     {step, &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "i"}}, "status", nil},
		"its end":        {step, going, "", nil},
		"another kind":   {step, &corev1.ConfigMap{}, "", nil},
		"no gateway yet": {NewIngressWarnings(nil), &networkingv1.Ingress{}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var warnings told
			a := admission.NewAttributesRecord(c.object, nil, networkingv1.SchemeGroupVersion.WithKind("Ingress"),
				"default", "i",
				networkingv1.SchemeGroupVersion.WithResource("ingresses"), c.subresource, admission.Create,
				&metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "ann"})
			if err := c.step.Validate(warning.WithWarningRecorder(context.Background(), &warnings), a,
				nil); err != nil {
				t.Error(err)
			}
			if !slices.Equal([]string(warnings), c.want) {
				t.Errorf("warnings %q, want %q", warnings, c.want)
			}
		})
	}
}
