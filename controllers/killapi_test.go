package controllers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	fakemetadata "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// The API of the scenarios, as leaders see it that ask by other clients than the typed one.

var (
	podsGVR        = corev1.SchemeGroupVersion.WithResource("pods")
	replicaSetsGVR = appsv1.SchemeGroupVersion.WithResource("replicasets")
)

// apis is a discovery of the scenarios' resources.
type apis struct{ *fakediscovery.FakeDiscovery }

func (apis) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	verbs := metav1.Verbs{"get", "list", "watch", "update", "patch", "delete", "deletecollection"}
	return []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: verbs},
			{Name: "pods", Kind: "Pod", Namespaced: true, Verbs: verbs},
		}},
		{GroupVersion: "apps/v1",
			APIResources: []metav1.APIResource{
				{Name: "replicasets", Kind: "ReplicaSet", Namespaced: true, Verbs: verbs}}},
		{GroupVersion: "batch/v1",
			APIResources: []metav1.APIResource{{Name: "jobs", Kind: "Job", Namespaced: true, Verbs: verbs}}},
	}, nil
}

func (a apis) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return a.ServerPreferredResources()
}

// kindOf returns the kind of a resource of apis.
func kindOf(gvr schema.GroupVersionResource) schema.GroupVersionKind {
	lists, _ := apis{}.ServerPreferredResources() // it never fails
	for _, list := range lists {
		for _, r := range list.APIResources {
			if list.GroupVersion == gvr.GroupVersion().String() && r.Name == gvr.Resource {
				return gvr.GroupVersion().WithKind(r.Kind)
			}
		}
	}
	return schema.GroupVersionKind{}
}

// metadataOf makes a metadata client.
func metadataOf(
	t testing.TB, do call,
	watching func(a clienttesting.Action, show func(kruntime.Object) kruntime.Object) (watch.Interface, error),
) metadata.Interface {
	client := fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme())
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		if list, ok := a.(clienttesting.ListActionImpl); ok {
			list.Kind = kindOf(a.GetResource())
			a = list
		}
		obj, err := do(a)
		if err != nil || obj == nil {
			return true, nil, err
		}
		obj, err = partial(obj)
		return true, obj, err
	})
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := watching(a, func(obj kruntime.Object) kruntime.Object {
			p, err := partial(obj)
			if err != nil {
				t.Error(err)
			}
			return p
		})
		return true, w, err
	})
	return client
}

// partial leaves the metadata of an object, and of those in a list.
func partial(obj kruntime.Object) (kruntime.Object, error) {
	if meta.IsListType(obj) {
		of, err := meta.ListAccessor(obj)
		if err != nil {
			return nil, err
		}
		list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: of.GetResourceVersion()}}
		return list, meta.EachListItem(obj, func(item kruntime.Object) error {
			p, err := partial(item)
			list.Items = append(list.Items, kruntime.RawExtension{Object: p})
			return err
		})
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	p := meta.AsPartialObjectMetadata(m)
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return nil, err
	}
	p.SetGroupVersionKind(kinds[0])
	return p, nil
}

// The CPU usage of all pods together before the change of a scenario, and the request of each, in
// thousandths.
const (
	initialLoad = 400
	requested   = 400
)

// webAPI answers clients that are made from a configuration. It serves the existing objects, scales
// of ReplicaSets, and metrics of pods, which share a load.
type webAPI struct {
	do   call
	load func() int64
	may  func(r *http.Request) error // whether the client may do it
}

// RoundTrip implements http.RoundTripper.
func (w *webAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	obj, err := w.answer(r)
	code := http.StatusOK
	if err != nil {
		status := apierrors.APIStatus(apierrors.NewInternalError(err))
		errors.As(err, &status)
		answer := status.Status()
		answer.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		obj, code = &answer, int(answer.Code)
	}
	body, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Request: r, Body: io.NopCloser(bytes.NewReader(body)),
		Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

func (w *webAPI) answer(r *http.Request) (any, error) {
	if err := w.may(r); err != nil {
		return nil, err
	}
	group := func(name, version string) metav1.APIGroup {
		gv := metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + version, Version: version}
		return metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv}
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	scale, isScale := strings.CutPrefix(path, "/apis/apps/v1/namespaces/d/replicasets/")
	switch {
	case path == "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}, nil
	case path == "/apis":
		return metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"},
			Groups: []metav1.APIGroup{group("apps", "v1")}}, nil
	case path == "/api/v1":
		return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
			GroupVersion: "v1"}, nil
	case path == "/apis/apps/v1":
		return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"},
			GroupVersion: "apps/v1", APIResources: []metav1.APIResource{
				{Name: "replicasets", Kind: "ReplicaSet", Namespaced: true},
				{Name: "replicasets/scale", Kind: "Scale", Group: "autoscaling", Version: "v1", Namespaced: true}}}, nil
	case isScale && strings.HasSuffix(scale, "/scale"):
		return w.scale(r, strings.TrimSuffix(scale, "/scale"))
	case path == "/apis/metrics.k8s.io/v1beta1/namespaces/d/pods":
		return w.figures()
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: path}, "")
}

// scale reads the scale of a ReplicaSet, or writes the scale of a PUT.
func (w *webAPI) scale(r *http.Request, name string) (any, error) {
	obj, err := w.do(clienttesting.NewGetAction(replicaSetsGVR, "d", name))
	if err != nil {
		return nil, err
	}
	set, ok := obj.(*appsv1.ReplicaSet)
	if !ok {
		return nil, fmt.Errorf("a ReplicaSet is a %T", obj)
	}
	if r.Method == http.MethodPut {
		var put autoscalingv1.Scale
		if err := json.NewDecoder(r.Body).Decode(&put); err != nil {
			return nil, err
		}
		set = set.DeepCopy()
		set.ResourceVersion, set.Spec.Replicas = put.ResourceVersion, &put.Spec.Replicas
		if obj, err = w.do(clienttesting.NewUpdateAction(replicaSetsGVR, "d", set)); err != nil {
			return nil, err
		}
		set = obj.(*appsv1.ReplicaSet)
	}
	return autoscalingv1.Scale{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: set.UID, ResourceVersion: set.ResourceVersion},
		Spec:       autoscalingv1.ScaleSpec{Replicas: *set.Spec.Replicas},
		Status: autoscalingv1.ScaleStatus{Replicas: set.Status.Replicas,
			Selector: metav1.FormatLabelSelector(set.Spec.Selector)},
	}, nil
}

// figures shares the load among the pods that run.
func (w *webAPI) figures() (any, error) {
	obj, err := w.do(
		clienttesting.NewListAction(podsGVR, corev1.SchemeGroupVersion.WithKind("Pod"), "d", metav1.ListOptions{}))
	if err != nil {
		return nil, err
	}
	list := metricsv1beta1.PodMetricsList{
		TypeMeta: metav1.TypeMeta{APIVersion: "metrics.k8s.io/v1beta1", Kind: "PodMetricsList"}}
	for _, pod := range obj.(*corev1.PodList).Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			list.Items = append(list.Items,
				metricsv1beta1.PodMetrics{
					ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: pod.Name, Labels: pod.Labels},
					Timestamp:  metav1.NewTime(time.Now()), Window: metav1.Duration{Duration: 15 * time.Second}})
		}
	}
	for i := range list.Items {
		used := resource.MustParse(strconv.FormatInt(w.load()/int64(len(list.Items)), 10) + "m")
		list.Items[i].Containers = []metricsv1beta1.ContainerMetrics{
			{Name: "c", Usage: corev1.ResourceList{corev1.ResourceCPU: used}}}
	}
	return list, nil
}
