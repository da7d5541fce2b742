package admission

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/node/v1"
	"k8s.io/utils/ptr"
)

func TestRuntimeClasses(t *testing.T) {
	heavy := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "heavy"}, Handler: "h",
		Overhead: &nodev1.Overhead{PodFixed: amounts("cpu", "100m")},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"},
			Tolerations: []corev1.Toleration{{Key: "vm", Operator: corev1.TolerationOpExists}}}}
	light := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "light"}, Handler: "l"}
	fresh := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}, Handler: "f"}
	r := NewRuntimeClasses(listers.NewRuntimeClassLister(indexed(t, heavy, light)), fake.NewClientset(fresh))
	of := func(class string, change func(*corev1.Pod)) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Spec.RuntimeClassName = ptr.To(class)
			if change != nil {
				change(p)
			}
		})
	}
	for _, c := range []struct {
		name        string
		pod         *corev1.Pod
		overhead    corev1.ResourceList
		selector    map[string]string
		tolerations int
		want        string // of the error; "" means that it is allowed
	}{
		{"no class", newPod(nil), nil, nil, 0, ""},
		{"a class", of("heavy", nil), amounts("cpu", "100m"), map[string]string{"vm": "yes"}, 1, ""},
		{"a class without more", of("light", nil), nil, nil, 0, ""},
		{"a class that is new", of("fresh", nil), nil, nil, 0, ""},
		{"its overhead", of("heavy", func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu", "0.1") }),
			amounts("cpu", "100m"), map[string]string{"vm": "yes"}, 1, ""},
		{"more labels",
			of("heavy", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b", "vm": "yes"} }),
			amounts("cpu", "100m"), map[string]string{"a": "b", "vm": "yes"}, 1, ""},
		{"tolerates it anyway",
			of("heavy",
				func(
					p *corev1.Pod,
				) {
					p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
				}), amounts("cpu", "100m"), map[string]string{"vm": "yes"}, 1, ""},
		{"no such class", of("none", nil), nil, nil, 0, `pod rejected: RuntimeClass "none" not found`},
		{"another overhead", of("heavy", func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu", "1") }), nil, nil, 0,
			"pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
		{"another node", of("heavy", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"vm": "no"} }), nil,
			nil, 0,
			"conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no"},
		{"an overhead of its own", newPod(func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu", "1") }), nil, nil, 0,
			"pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"an overhead that the class has not",
			of("light", func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu", "1") }), nil, nil, 0,
			"pod rejected: Pod Overhead set without corresponding"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := request{obj: c.pod}.attributes()
			err := r.Admit(t.Context(), a, nil)
			if err == nil {
				err = r.Validate(t.Context(), a, nil)
			}
			if c.want != "" {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil || !apiequality.Semantic.DeepEqual(c.pod.Spec.Overhead, c.overhead) ||
				!maps.Equal(c.pod.Spec.NodeSelector, c.selector) || len(c.pod.Spec.Tolerations) != c.tolerations {
				t.Errorf("%v: %+v", err, c.pod.Spec)
			}
			if !maps.Equal(heavy.Scheduling.NodeSelector, map[string]string{"vm": "yes"}) {
				t.Errorf("the class has changed: %v", heavy.Scheduling.NodeSelector)
			}
			changed := c.pod.DeepCopy()
			changed.Spec.Overhead = amounts("memory", "1Gi")
			if err := r.Validate(t.Context(), request{obj: changed}.attributes(), nil); !apierrors.IsForbidden(err) {
				t.Errorf("an overhead that a later step made: %v", err)
			}
		})
	}
}

func TestMergeTolerations(t *testing.T) {
	exists := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists}
	}
	equal := func(key, value string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpEqual, Value: value}
	}
	for seconds := range int64(2) {
		for _, c := range []struct {
			name          string
			first, second []corev1.Toleration
			want          []corev1.Toleration
		}{
			{"both", []corev1.Toleration{exists("a")}, []corev1.Toleration{exists("b")},
				[]corev1.Toleration{exists("a"), exists("b")}},
			{"the same", []corev1.Toleration{exists("a")}, []corev1.Toleration{exists("a")},
				[]corev1.Toleration{exists("a")}},
			{"a value and any", []corev1.Toleration{equal("a", "x")}, []corev1.Toleration{exists("a")},
				[]corev1.Toleration{exists("a")}},
			{"two values", []corev1.Toleration{equal("a", "x")}, []corev1.Toleration{equal("a", "y")},
				[]corev1.Toleration{equal("a", "x"), equal("a", "y")}},
			{"all", []corev1.Toleration{exists("")}, []corev1.Toleration{equal("a", "y"), exists("b")},
				[]corev1.Toleration{exists("")}},
			{"for longer",
				[]corev1.Toleration{
					{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
						TolerationSeconds: ptr.To(seconds)}},
				[]corev1.Toleration{
					{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
						TolerationSeconds: ptr.To[int64](5)}},
				[]corev1.Toleration{
					{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
						TolerationSeconds: ptr.To[int64](5)}}},
		} {
			if got := MergeTolerations(c.first, c.second); !apiequality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("%s: %v", c.name, got)
			}
		}
	}
}
