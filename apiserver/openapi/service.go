package openapi

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/client-go/applyconfigurations"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// Where the documents are served.
const (
	V2Path = "/openapi/v2"
	V3Path = "/openapi/v3"
)

// Service serves the documents. All of its work waits for the first request.
type Service struct {
	services *restful.Container
	scheme   *runtime.Scheme
	version  string

	v2 func() (http.Handler, error)
	v3 func() (http.Handler, error)
}

// New describes the routes in services, whose types are those of scheme.
func New(services *restful.Container, scheme *runtime.Scheme, version string) *Service {
	s := &Service{services: services, scheme: scheme, version: version}
	s.v2 = sync.OnceValues(s.buildV2)
	s.v3 = sync.OnceValues(s.buildV3)
	return s
}

// V2 serves V2Path.
func (s *Service) V2() http.Handler { return lazy(s.v2) }

// V3 serves V3Path and everything below it.
func (s *Service) V3() http.Handler { return lazy(s.v3) }

func lazy(build func() (http.Handler, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := build()
		if err != nil {
			http.Error(w, "building the OpenAPI document: "+err.Error(), http.StatusInternalServerError)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// router collects what the handlers of kube-openapi register.
type router struct{ *http.ServeMux }

// HandlePrefix implements common.PathHandlerByGroupVersion.
func (r router) HandlePrefix(path string, h http.Handler) { r.Handle(path, h) }

func (s *Service) buildV2() (http.Handler, error) {
	n, err := newNames(s.scheme)
	if err != nil {
		return nil, err
	}
	definitions, err := s.definitions()
	if err != nil {
		return nil, err
	}
	config := &common.Config{
		ProtocolList:                   []string{"https"},
		Info:                           s.info(),
		DefaultResponse:                &spec.Response{ResponseProps: spec.ResponseProps{Description: "Default Response."}},
		GetOperationIDAndTagsFromRoute: operation,
		GetDefinitionName:              n.definition,
		GetDefinitions:                 definitions,
	}
	service := handler.NewOpenAPIServiceLazy(cached.Func(func() (*spec.Swagger, string, error) {
		doc, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(s.services.RegisteredWebServices()), config)
		if err != nil {
			return nil, "", fmt.Errorf("OpenAPI v2: %w", err)
		}
		doc.Definitions = handler.PruneDefaults(doc.Definitions)
		return doc, s.version, nil
	}))
	mux := router{http.NewServeMux()}
	service.RegisterOpenAPIVersionedService(V2Path, mux)
	return mux, nil
}

func (s *Service) buildV3() (http.Handler, error) {
	n, err := newNames(s.scheme)
	if err != nil {
		return nil, err
	}
	definitions, err := s.definitions()
	if err != nil {
		return nil, err
	}
	config := &common.OpenAPIV3Config{
		Info:                           s.info(),
		DefaultResponse:                &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
		GetOperationIDAndTagsFromRoute: operation,
		GetDefinitionName:              n.definition,
		GetDefinitions:                 definitions,
	}
	service := handler3.NewOpenAPIService()
	for _, ws := range s.services.RegisteredWebServices() {
		path := strings.TrimPrefix(ws.RootPath(), "/")
		service.UpdateGroupVersionLazy(path, cached.Func(func() (*spec3.OpenAPI, string, error) {
			doc, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{ws}), config)
			if err != nil {
				return nil, "", fmt.Errorf("OpenAPI v3 of %s: %w", path, err)
			}
			return doc, s.version + path, nil
		}))
	}
	mux := router{http.NewServeMux()}
	if err := service.RegisterOpenAPIV3VersionedService(V3Path, mux); err != nil {
		return nil, err
	}
	return mux, nil
}

// operation names an operation after its route, as the generic server does.
func operation(r common.Route) (string, []string, error) {
	adapter, ok := r.(*restfuladapter.RouteAdapter)
	if !ok {
		return "", nil, fmt.Errorf("route %s is a %T, not one of go-restful", r.Path(), r)
	}
	return apiopenapi.GetOperationIDAndTags(adapter.Route)
}

func (s *Service) info() *spec.Info {
	return &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: s.version}}
}

// definitions builds the definitions of all types that are served and of those that the protocol
// itself uses.
func (s *Service) definitions() (common.GetOpenAPIDefinitions, error) {
	merges, err := MergeSchema()
	if err != nil {
		return nil, err
	}
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		d := &definer{ref: ref, merges: merges, out: map[string]common.OpenAPIDefinition{}}
		for gvk, t := range s.scheme.AllKnownTypes() {
			if gvk.Version != runtime.APIVersionInternal && t.Kind() == reflect.Struct {
				d.define(t)
			}
		}
		for _, o := range []any{
			metav1.Status{}, metav1.APIVersions{}, metav1.APIGroup{}, metav1.APIGroupList{}, metav1.APIResourceList{},
			metav1.WatchEvent{}, metav1.DeleteOptions{}, metav1.Patch{}, metav1.Table{}, version.Info{},
		} {
			d.define(reflect.TypeOf(o))
		}
		return d.out
	}, nil
}

// MergeSchema returns the schema that client-go carries for apply configurations: how the fields of
// every built-in type merge. It shows only through a value.
func MergeSchema() (*schema.Schema, error) {
	v, err := applyconfigurations.NewTypeConverter(clientscheme.Scheme).ObjectToTyped(
		&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}})
	if err != nil {
		return nil, fmt.Errorf("schema of apply configurations: %w", err)
	}
	return v.Schema(), nil
}
