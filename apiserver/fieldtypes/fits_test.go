package fieldtypes

import (
	"maps"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// managed updates managed fields as a create or an update does, and returns them.
func managed(
	t *testing.T, types managedfields.TypeConverter, kind schema.GroupVersionKind, live, obj runtime.Object,
) []metav1.ManagedFieldsEntry {
	t.Helper()
	manager := must(
		managedfields.NewDefaultFieldManager(types, runtime.UnsafeObjectConvertor(scheme.Scheme), scheme.Scheme,
			scheme.Scheme,
			kind, kind.GroupVersion(), "", nil))(t)
	out := must(meta.Accessor(manager.UpdateNoErrors(live.DeepCopyObject(), obj.DeepCopyObject(), "tester")))(
		t).GetManagedFields()
	for i := range out {
		out[i].Time = nil
	}
	return out
}

// TestUncheckedObjectsHaveUpstreamsManagedFields: random objects of every kind, nonsense and
// duplicates included, get the managed fields that they get when they are checked.
func TestUncheckedObjectsHaveUpstreamsManagedFields(t *testing.T) {
	seed := rand.Int63()
	t.Logf("seed %d", seed)
	fill := randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).MaxDepth(12).Funcs(
		func(s *string, c randfill.Continue) { *s = []string{"", "a", "b", "\xff", "a/b"}[c.Intn(5)] },
		func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(c.Int63n(1<<32), 0) },
		func(v *metav1.MicroTime, c randfill.Continue) {
			*v = metav1.NewMicroTime(time.Unix(c.Int63n(1<<32), 0))
		},
		func(v *resource.Quantity, c randfill.Continue) {
			*v = *resource.NewMilliQuantity(c.Int63n(5000), resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(int32(c.Intn(9))) },
		func(v *runtime.RawExtension, _ randfill.Continue) { v.Raw = []byte(`{"a":1}`) },
		func(v *metav1.FieldsV1, _ randfill.Continue) { *v = *metav1.NewFieldsV1(`{"f:data":{"f:a":{}}}`) },
		func(v *[]metav1.ManagedFieldsEntry, _ randfill.Continue) { *v = nil },
		func(*metav1.TypeMeta, randfill.Continue) {},
	)
	ours, upstreams := must(New(scheme.Scheme))(t), applyconfigurations.NewTypeConverter(scheme.Scheme)
	kinds := 0
	byName := func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) }
	for _, kind := range slices.SortedFunc(maps.Keys(ours.fitting), byName) { // a seed has one order
		of := must(scheme.Scheme.New(kind))(t)
		if _, err := meta.Accessor(of); err != nil {
			continue
		}
		kinds++
		of.GetObjectKind().SetGroupVersionKind(kind)
		live := of.DeepCopyObject()
		for range 5 {
			obj := of.DeepCopyObject()
			fill.Fill(obj)
			obj.GetObjectKind().SetGroupVersionKind(kind)
			want := managed(t, upstreams, kind, live, obj)
			if diff := cmp.Diff(want, managed(t, ours, kind, live, obj)); diff != "" {
				t.Fatalf("%s (-upstream's +ours):\n%s", kind, diff)
			}
			must(meta.Accessor(obj))(t).SetManagedFields(want)
			live = obj
		}
	}
	if kinds < 50 {
		t.Errorf("%d kinds were tried", kinds)
	}
}

// TestFits: types at which walking cannot panic, and which comparing checks, fit.
func TestFits(t *testing.T) {
	types := must(New(scheme.Scheme))(t)
	for kind, want := range map[string]bool{
		"ConfigMap": true, "Secret": true, "Event": true, "Node": true, "ServiceAccount": true,
		"PersistentVolumeClaim": true,
		"Pod":                   false, "Service": false, "PodTemplate": false, // an IntOrString
	} {
		if _, ok := types.fitting[corev1.SchemeGroupVersion.WithKind(kind)]; ok != want {
			t.Errorf("%s fits: %t", kind, ok)
		}
	}
	if fits(types.schema, "io.k8s.api.core.v1.Secret", reflect.TypeFor[corev1.ConfigMap]()) {
		t.Error("a ConfigMap fits where a Secret is wanted")
	}
	if fits(types.schema, "none", reflect.TypeFor[corev1.ConfigMap]()) {
		t.Error("a ConfigMap fits an unknown type")
	}
}
