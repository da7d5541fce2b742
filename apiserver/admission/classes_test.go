package admission

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// indexed makes the store of a lister.
func indexed[T runtime.Object](t *testing.T, objects ...T) cache.Indexer {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, o := range objects {
		if err := index.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	return index
}

// classMeta is the metadata of a class made some minutes after others, marked by an annotation.
func classMeta(name string, minute int, annotations ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: name, Annotations: map[string]string{},
		CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC))}
	for _, a := range annotations {
		m.Annotations[a] = "true"
	}
	return m
}

func TestDefaultIngressClass(t *testing.T) {
	const mark = "ingressclass.kubernetes.io/is-default-class"
	class := func(m metav1.ObjectMeta) *networkingv1.IngressClass { return &networkingv1.IngressClass{ObjectMeta: m} }
	no := class(classMeta("no", 9))
	no.Annotations[mark] = "false"
	named := &networkingv1.Ingress{Spec: networkingv1.IngressSpec{IngressClassName: ptr.To("mine")}}
	annotated := &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/ingress.class": "mine"}}}
	for _, c := range []struct {
		name    string
		classes []*networkingv1.IngressClass
		ingress *networkingv1.Ingress
		want    string
	}{
		{"none", nil, &networkingv1.Ingress{}, ""},
		{"no default", []*networkingv1.IngressClass{class(classMeta("a", 1)), no}, &networkingv1.Ingress{}, ""},
		{"the default", []*networkingv1.IngressClass{class(classMeta("a", 1)), class(classMeta("b", 0, mark))},
			&networkingv1.Ingress{}, "b"},
		{"the newest",
			[]*networkingv1.IngressClass{class(classMeta("a", 1, mark)), class(classMeta("b", 2, mark)),
				class(classMeta("c", 0, mark))}, &networkingv1.Ingress{}, "b"},
		{"the first of two",
			[]*networkingv1.IngressClass{class(classMeta("c", 1, mark)), class(classMeta("b", 1, mark))},
			&networkingv1.Ingress{}, "b"},
		{"names one", []*networkingv1.IngressClass{class(classMeta("a", 1, mark))}, named, "mine"},
		{"names one as of old", []*networkingv1.IngressClass{class(classMeta("a", 1, mark))}, annotated, ""},
	} {
		step := NewIngressClasses(networkinglisters.NewIngressClassLister(indexed(t, c.classes...)))
		err := step.Admit(t.Context(), request{obj: c.ingress, resource: "ingresses"}.attributes(), nil)
		if got := ptr.Deref(c.ingress.Spec.IngressClassName, ""); err != nil || got != c.want {
			t.Errorf("%s: %v, class %q", c.name, err, got)
		}
	}
}

func TestDefaultStorageClass(t *testing.T) {
	const mark, beta = "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"
	class := func(m metav1.ObjectMeta) *storagev1.StorageClass { return &storagev1.StorageClass{ObjectMeta: m} }
	newest := []*storagev1.StorageClass{class(classMeta("a", 1, mark)), class(classMeta("b", 2, beta)),
		class(classMeta("c", 3))}
	without := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("")}}
	annotated := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.BetaStorageClassAnnotation: "mine"}}}
	for _, c := range []struct {
		name    string
		classes []*storagev1.StorageClass
		claim   *corev1.PersistentVolumeClaim
		want    *string
	}{
		{"none", nil, &corev1.PersistentVolumeClaim{}, nil},
		{"the newest", newest, &corev1.PersistentVolumeClaim{}, ptr.To("b")},
		{"wants none", newest, without, ptr.To("")},
		{"names one as of old", newest, annotated, nil},
	} {
		step := NewStorageClasses(storagelisters.NewStorageClassLister(indexed(t, c.classes...)))
		err := step.Admit(t.Context(), request{obj: c.claim, resource: "persistentvolumeclaims"}.attributes(), nil)
		if !ptr.Equal(c.claim.Spec.StorageClassName, c.want) || err != nil {
			t.Errorf("%s: %v, class %v", c.name, err, c.claim.Spec.StorageClassName)
		}
	}
}

func TestClaimResize(t *testing.T) {
	class := func(name string, grows *bool) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, AllowVolumeExpansion: grows}
	}
	step := NewClaimResize(
		storagelisters.NewStorageClassLister(
			indexed(t, class("grows", ptr.To(true)), class("not", ptr.To(false)), class("silent", nil))))
	claim := func(class, size string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
				Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage", size)}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	const unable = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
	for _, c := range []struct {
		name    string
		is, was *corev1.PersistentVolumeClaim
		want    string
	}{
		{"grows", claim("grows", "2Gi", corev1.ClaimBound), claim("grows", "1Gi", corev1.ClaimBound), ""},
		{"stays", claim("not", "1Gi", corev1.ClaimBound), claim("not", "1Gi", corev1.ClaimBound), ""},
		{"shrinks, which validation judges", claim("not", "1Gi", corev1.ClaimBound),
			claim("not", "2Gi", corev1.ClaimBound), ""},
		{"not bound", claim("grows", "2Gi", corev1.ClaimPending), claim("grows", "1Gi", corev1.ClaimPending),
			"Only bound persistent volume claims can be expanded"},
		{"of a class that does not", claim("not", "2Gi", corev1.ClaimBound), claim("not", "1Gi", corev1.ClaimBound),
			unable},
		{"of a class that says nothing", claim("silent", "2Gi", corev1.ClaimBound),
			claim("silent", "1Gi", corev1.ClaimBound), unable},
		{"of no class", claim("", "2Gi", corev1.ClaimBound), claim("", "1Gi", corev1.ClaimBound), unable},
		{"of a class that is gone", claim("gone", "2Gi", corev1.ClaimBound), claim("gone", "1Gi", corev1.ClaimBound),
			unable},
		{"and changes its class", claim("grows", "2Gi", corev1.ClaimBound), claim("not", "1Gi", corev1.ClaimBound),
			unable},
	} {
		err := step.Validate(t.Context(),
			request{obj: c.is, old: c.was, resource: "persistentvolumeclaims", op: admission.Update}.attributes(), nil)
		if c.want == "" && err != nil ||
			c.want != "" && (!apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestProtection(t *testing.T) {
	for _, c := range []struct {
		name        string
		obj         runtime.Object
		subresource string
		want        []string
	}{
		{"a volume", &corev1.PersistentVolume{}, "", []string{"kubernetes.io/pv-protection"}},
		{"a claim", &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"a/b"}}}, "",
			[]string{"a/b", "kubernetes.io/pvc-protection"}},
		{"a class", &storagev1.VolumeAttributesClass{}, "", []string{"kubernetes.io/vac-protection"}},
		{"one that has it",
			&corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"kubernetes.io/pv-protection"}}}, "",
			[]string{"kubernetes.io/pv-protection"}},
		{"its status", &corev1.PersistentVolume{}, "status", nil},
		{"another kind", &corev1.ConfigMap{}, "", nil},
	} {
		if err := NewProtection().Admit(t.Context(), request{obj: c.obj, subresource: c.subresource}.attributes(),
			nil); err != nil {
			t.Error(err)
		}
		if got := c.obj.(metav1.Object).GetFinalizers(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
