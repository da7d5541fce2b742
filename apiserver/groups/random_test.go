package groups

import (
	"context"
	"math/rand"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
)

// filler makes random objects: mostly nonsense, as it comes from clients.
func filler(seed int64) *randfill.Filler {
	words := []string{"", "a", "a.b", "A", "a b", "-", "127.0.0.1", "10.0.0.0/8", "'", "metadata.labels['a']", "['",
		"%", "5%", "None", "Always", "RollingUpdate", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "Local",
		"In", "Localhost", "limits.cpu"}
	return randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 3).Funcs(
		func(s *string, c randfill.Continue) { *s = words[c.Intn(len(words))] },
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewMilliQuantity(c.Int63n(5000)-1000, resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(int32(c.Intn(100000) - 10))
			if c.Bool() {
				*v = intstr.FromString(words[c.Intn(len(words))])
			}
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1<<32), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.NewMicroTime(time.Unix(c.Int63n(1<<32), 0))
		},
		func(f *metav1.FieldsV1, _ randfill.Continue) {},
		func(r *runtime.RawExtension, c randfill.Continue) {
			r.Raw = []byte([]string{"", "null", "{", "[]", `"a"`, `{"a":1}`}[c.Intn(6)])
		},
		func(t *metav1.TypeMeta, _ randfill.Continue) {},
		// Unions of which only some random choices make sense: one pointer at most half of the
		// time.
		func(v *corev1.VolumeSource, c randfill.Continue) {
			c.FillNoCustom(v)
			if c.Bool() {
				*v = corev1.VolumeSource{Projected: v.Projected, ConfigMap: v.ConfigMap}
			}
		},
	)
}

// declaration calls the functions of a resource.Kind of any type. A missing one does nothing.
type declaration struct{ kind reflect.Value }

func (d declaration) call(f reflect.Value, args ...any) []reflect.Value {
	if !f.IsValid() || f.IsNil() {
		return nil
	}
	in := make([]reflect.Value, len(args))
	for i, a := range args {
		in[i] = reflect.ValueOf(a)
		if !in[i].IsValid() {
			in[i] = reflect.Zero(f.Type().In(i))
		}
	}
	return f.Call(in)
}

func (d declaration) run(name string, args ...any) []reflect.Value {
	return d.call(d.kind.FieldByName(name), args...)
}

// newObject returns an empty object of the kind.
func (d declaration) newObject() runtime.Object {
	f, _ := d.kind.Type().FieldByName("Default")
	return reflect.New(f.Type.In(0).Elem()).Interface().(runtime.Object)
}

// TestRandomObjects feeds every kind with random objects. None may bring the server down,
// defaulting twice must be defaulting once, and only Default and Prepare may change an object.
func TestRandomObjects(t *testing.T) {
	ctx := context.Background()
	seed := rand.Int63()
	for _, r := range Resources() {
		t.Run(r.GroupVersionResource().Resource, func(t *testing.T) {
			t.Logf("seed %d", seed)
			fill := filler(seed)
			d := declaration{reflect.ValueOf(r).Elem()}
			old := d.newObject()
			d.run("Default", old)
			for range 100 {
				obj := d.newObject()
				fill.Fill(obj)
				d.run("Default", obj)
				once := obj.DeepCopyObject()
				d.run("Default", obj)
				if diff := differ(once, obj); diff != "" {
					t.Fatalf("defaulting twice differs (-once +twice):\n%s", diff)
				}

				d.run("Prepare", ctx, obj, nil)
				prepared := obj.DeepCopyObject()
				d.run("Validate", ctx, obj, nil)
				d.run("Warnings", ctx, obj, nil)
				cells := d.run("Row", obj, time.Unix(0, 0))
				if len(cells) > 0 && cells[0].Len() != d.kind.FieldByName("Columns").Len() {
					t.Fatalf("%d cells for %d columns", cells[0].Len(), d.kind.FieldByName("Columns").Len())
				}
				d.run("Fields", obj)
				if diff := differ(prepared, obj); diff != "" {
					t.Fatalf("validation or printing changed the object:\n%s", diff)
				}
				d.update(ctx, obj.DeepCopyObject(), old)
				old = obj
			}
		})
	}
}

// update runs the steps of an update of the object and of its status.
func (d declaration) update(ctx context.Context, obj, old runtime.Object) {
	was := old.DeepCopyObject()
	d.run("Prepare", ctx, obj, was)
	d.run("Validate", ctx, obj, was)
	d.run("Warnings", ctx, obj, was)
	if status := d.kind.FieldByName("Status"); !status.IsNil() {
		d.call(status.Elem().FieldByName("Prepare"), ctx, obj, was)
		d.call(status.Elem().FieldByName("Validate"), ctx, obj, was)
	}
	d.run("GracefulDelete", ctx, obj, &metav1.DeleteOptions{})
	d.run("DeleteDuringUpdate", ctx, obj, was)
	if scale := d.kind.FieldByName("Scale"); !scale.IsNil() {
		d.call(scale.Elem().FieldByName("Replicas"), obj)
		d.call(scale.Elem().FieldByName("Observed"), obj)
		d.call(scale.Elem().FieldByName("Selector"), obj)
	}
}

// differ describes the difference of two objects, if any. Nil and empty lists are the same to
// a client.
func differ(a, b runtime.Object) string {
	if apiequality.Semantic.DeepEqual(a, b) {
		return ""
	}
	return cmp.Diff(a, b)
}
