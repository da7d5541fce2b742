package openapi

import (
	"fmt"
	"net/http"
	"reflect"
	"sync"

	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/client-go/applyconfigurations"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// Where the documents are served.
const (
	V2Path = "/openapi/v2"
	V3Path = "/openapi/v3"
)

// Part is what one server of the chain serves.
type Part struct {
	// Services are the routes that are described.
	Services *restful.Container
	// Scheme knows the kinds of the routes.
	Scheme *runtime.Scheme
	// Definitions of the kinds; nil builds them from the types in Scheme.
	Definitions common.GetOpenAPIDefinitions
}

// Config says what is described.
type Config struct {
	Parts []Part
	// CustomResources are described, too; nil means that there are none.
	CustomResources crdlisters.CustomResourceDefinitionLister
	// Extensions lists what other servers serve and describe; nil means that there is nothing.
	Extensions func() []Extension
	// Version of the server. Clients keep documents of the same version.
	Version string
}

// Service serves the documents. All of its work waits for a request.
type Service struct {
	Config

	v2        func() (http.Handler, error)
	extended  *extensions
	documents documentCache
}

// New returns a Service, which reads Services when it is asked.
func New(config Config) *Service {
	s := &Service{Config: config, documents: newDocumentCache()}
	s.extended = newExtensions(config.Extensions)
	s.v2 = sync.OnceValues(s.buildV2)
	return s
}

// ServeHTTP implements http.Handler, for V2Path, V3Path and all below it.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case V2Path:
		s.serveV2(w, r)
	case V3Path, V3Path + "/":
		s.serveRoot(w, r)
	default:
		s.serveDocument(w, r)
	}
}

func (s *Service) serveV2(w http.ResponseWriter, r *http.Request) {
	h, err := s.v2()
	if err != nil {
		unbuilt(w, err)
		return
	}
	h.ServeHTTP(w, r)
}

func unbuilt(w http.ResponseWriter, err error) {
	http.Error(w, "building the OpenAPI document: "+err.Error(), http.StatusInternalServerError)
}

// router collects what the handlers of kube-openapi register.
type router struct{ *http.ServeMux }

// HandlePrefix implements common.PathHandlerByGroupVersion.
func (r router) HandlePrefix(path string, h http.Handler) { r.Handle(path, h) }

func (s *Service) buildV2() (http.Handler, error) {
	own := sync.OnceValues(s.ownV2)
	var last *spec.Swagger
	var lastTag string
	// The handler calls this under a lock, for each request.
	service := handler.NewOpenAPIServiceLazy(cached.Func(func() (*spec.Swagger, string, error) {
		defined, err := s.established()
		if err != nil {
			return nil, "", err
		}
		theirs, hashes := s.extended.v2()
		tag := s.hash(append(hashes, s.tag(defined...))...)
		if tag == lastTag {
			return last, tag, nil
		}
		doc, err := own()
		if err == nil {
			doc, err = withCustomV2(doc, defined)
		}
		if err == nil {
			err = mergeV2(doc, theirs)
		}
		if err != nil {
			return nil, "", fmt.Errorf("OpenAPI v2: %w", err)
		}
		last, lastTag = doc, tag
		return doc, tag, nil
	}))
	mux := router{http.NewServeMux()}
	service.RegisterOpenAPIVersionedService(V2Path, mux)
	return mux, nil
}

// ownV2 describes the routes of all parts.
func (s *Service) ownV2() (*spec.Swagger, error) {
	var all *spec.Swagger
	for _, p := range s.Parts {
		n, definitions, err := p.kinds()
		if err != nil {
			return nil, err
		}
		doc, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(p.Services.RegisteredWebServices()), &common.Config{
			ProtocolList:                   []string{"https"},
			Info:                           s.info(),
			DefaultResponse:                &spec.Response{ResponseProps: spec.ResponseProps{Description: "Default Response."}},
			GetOperationIDAndTagsFromRoute: operation,
			GetDefinitionName:              n.definition,
			GetDefinitions:                 definitions,
		})
		if err != nil {
			return nil, err
		}
		doc.Definitions = handler.PruneDefaults(doc.Definitions)
		if all == nil {
			all = doc
		} else if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(all, doc); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ownV3 describes the routes of one web service: those of a group and version.
func (s *Service) ownV3(p Part, ws *restful.WebService) (*spec3.OpenAPI, error) {
	n, definitions, err := p.kinds()
	if err != nil {
		return nil, err
	}
	return builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{ws}), &common.OpenAPIV3Config{
		Info:                           s.info(),
		DefaultResponse:                &spec3.Response{ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
		GetOperationIDAndTagsFromRoute: operation,
		GetDefinitionName:              n.definition,
		GetDefinitions:                 definitions,
	})
}

// kinds returns the names and the definitions of the kinds.
func (p Part) kinds() (*names, common.GetOpenAPIDefinitions, error) {
	n, err := newNames(p.Scheme)
	if err != nil || p.Definitions != nil {
		return n, p.Definitions, err
	}
	definitions, err := p.definitions()
	return n, definitions, err
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
	return &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes", Version: s.Version}}
}

// definitions builds the definitions of all types that are served and of those that the protocol
// itself uses.
func (p Part) definitions() (common.GetOpenAPIDefinitions, error) {
	merges, err := MergeSchema()
	if err != nil {
		return nil, err
	}
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		// The servers of custom resources and of aggregation show the protocol's types in their documents,
		// too. One definition of each must be the same everywhere.
		d := &definer{ref: ref, merges: merges, out: extensionsopenapi.GetOpenAPIDefinitions(ref)}
		for gvk, t := range p.Scheme.AllKnownTypes() {
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
