package definitions

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"
)

// A server whose informer lacks a definition waits for it, instead of answering 404.
func TestFreshDefinitions(t *testing.T) {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.sea.example.com", ResourceVersion: "7"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    "sea.example.com",
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true}},
		},
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	old := crd.DeepCopy()
	old.ResourceVersion = "6"
	unestablished := crd.DeepCopy()
	unestablished.Status.Conditions = nil
	notFound := apierrors.NewNotFound(apiextensionsv1.Resource("customresourcedefinitions"), crd.Name)
	for name, test := range map[string]struct {
		stored *apiextensionsv1.CustomResourceDefinition
		err    error
		known  *apiextensionsv1.CustomResourceDefinition
		comes  bool // while the request waits
		path   string
		want   int
	}{
		"comes":              {stored: crd, comes: true, want: http.StatusOK},
		"comes anew":         {stored: crd, known: old, comes: true, want: http.StatusOK},
		"came in between":    {stored: crd, known: crd, want: http.StatusOK},
		"not established":    {stored: unestablished, want: http.StatusNotFound},
		"not defined":        {err: notFound, want: http.StatusNotFound},
		"no such version":    {stored: crd, path: "/apis/sea.example.com/v9/boats", want: http.StatusNotFound},
		"no name of a kind":  {path: "/apis/sea.example.com/v1/bo%25ats", want: http.StatusNotFound},
		"not a resource":     {stored: crd, path: "/apis/sea.example.com", want: http.StatusNotFound},
		"store out of reach": {err: apierrors.NewServiceUnavailable("no leader"), want: http.StatusServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			known := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			if test.known != nil {
				if err := known.Add(test.known); err != nil {
					t.Fatal(err)
				}
			}
			var asked atomic.Bool
			f := &Fresh{
				Get: func(context.Context, string) (*apiextensionsv1.CustomResourceDefinition, error) {
					if test.stored == nil && test.err == nil {
						t.Error("the store was asked")
						return nil, errors.New("invalid resource name")
					}
					if asked.Swap(true) {
						t.Error("the store was asked twice")
					}
					if test.comes {
						go func() { _ = known.Add(test.stored) }()
					}
					return test.stored, test.err
				},
				Known:  crdlisters.NewCustomResourceDefinitionLister(known),
				Next:   http.NotFoundHandler(),
				Codecs: serializer.NewCodecFactory(runtime.NewScheme()),
			}
			f.Again = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := f.Known.Get(crd.Name); err != nil {
					f.ServeHTTP(w, r) // as the server of custom resources does
				}
			})
			path := test.path
			if path == "" {
				path = "/apis/sea.example.com/v1/boats"
			}
			r := httptest.NewRequest(http.MethodGet, path, nil)
			info, err := (&request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
				GrouplessAPIPrefixes: sets.NewString("api")}).NewRequestInfo(r)
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			f.ServeHTTP(w, r.WithContext(request.WithRequestInfo(t.Context(), info)))
			if w.Code != test.want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, test.want)
			}
		})
	}
}
