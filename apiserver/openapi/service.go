package openapi

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"

	"github.com/NYTimes/gziphandler"
	"github.com/emicklei/go-restful/v3"
	corev1 "k8s.io/api/core/v1"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/client-go/applyconfigurations"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/barque/barque/apiserver/openapi/schemas"
)

// Where the documents are served.
const (
	V2Path = "/openapi/v2"
	V3Path = "/openapi/v3"
)

// The common parts of upstream's documents, and the prefix of references to definitions.
const (
	referenceV2  = "#/definitions/"
	referenceV3  = "#/components/schemas/"
	unauthorized = "Unauthorized"
	bearer       = "BearerToken"
)

// bearerToken describes how clients authenticate.
func bearerToken() spec.SecuritySchemeProps {
	return spec.SecuritySchemeProps{Type: "apiKey", Name: "authorization", In: "header",
		Description: "Bearer Token authentication"}
}

func bearerTokenV3() spec3.SecuritySchemeProps {
	v2 := bearerToken()
	return spec3.SecuritySchemeProps{Type: v2.Type, Name: v2.Name, In: v2.In, Description: v2.Description}
}

// Part has the resources of one server of the chain.
type Part struct {
	// Services are the routes that are described.
	Services *restful.Container
	// Scheme knows the kinds of the routes.
	Scheme *runtime.Scheme
	// Definitions of the kinds; nil builds them from the types in Scheme.
	Definitions common.GetOpenAPIDefinitions
}

// Config has the sources of the documents.
type Config struct {
	Parts []Part
	// CustomResources are described, too; nil means that there are none.
	CustomResources crdlisters.CustomResourceDefinitionLister
	// Extensions lists the documents of other servers; nil means that there are none.
	Extensions func() []Extension
	// Version of the server. Clients keep documents of the same version.
	Version string
}

// Service serves the documents. All of its work waits for a request.
type Service struct {
	Config

	handler   http.Handler // compresses
	extended  *extensions
	documents documentCache
}

// New returns a Service, which reads Services on request.
func New(config Config) *Service {
	s := &Service{Config: config, documents: newDocumentCache()}
	s.extended = newExtensions(config.Extensions)
	s.handler = gziphandler.GzipHandler(http.HandlerFunc(s.serve))
	return s
}

// ServeHTTP implements http.Handler, for V2Path, V3Path and all below it.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

func (s *Service) serve(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case V2Path:
		s.serveV2(w, r)
	case V3Path, V3Path + "/":
		s.serveRoot(w, r)
	default:
		s.serveDocument(w, r)
	}
}

func unbuilt(w http.ResponseWriter, err error) {
	http.Error(w, "building the OpenAPI document: "+err.Error(), http.StatusInternalServerError)
}

// ownV2 describes the routes of all parts.
func (s *Service) ownV2() (*spec.Swagger, error) {
	var all *spec.Swagger
	for _, p := range s.Parts {
		services := p.Services.RegisteredWebServices()
		n, definitions, err := p.kinds(referenceV2, services)
		if err != nil {
			return nil, err
		}
		doc, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), &common.Config{
			ProtocolList: []string{"https"},
			Info:         s.info(),
			DefaultResponse: &spec.Response{
				ResponseProps: spec.ResponseProps{Description: "Default Response."}},
			CommonResponses: map[int]spec.Response{
				http.StatusUnauthorized: {ResponseProps: spec.ResponseProps{Description: unauthorized}}},
			SecurityDefinitions: &spec.SecurityDefinitions{
				bearer: &spec.SecurityScheme{SecuritySchemeProps: bearerToken()}},
			DefaultSecurity:                []map[string][]string{{bearer: {}}},
			GetOperationIDAndTagsFromRoute: operation,
			GetDefinitionName:              n.definition,
			GetDefinitions: func(
				common.ReferenceCallback,
			) map[string]common.OpenAPIDefinition {
				return definitions
			},
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
	services := []*restful.WebService{ws}
	n, definitions, err := p.kinds(referenceV3, services)
	if err != nil {
		return nil, err
	}
	return builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(services), &common.OpenAPIV3Config{
		Info: s.info(),
		DefaultResponse: &spec3.Response{
			ResponseProps: spec3.ResponseProps{Description: "Default Response."}},
		CommonResponses: map[int]*spec3.Response{
			http.StatusUnauthorized: {ResponseProps: spec3.ResponseProps{Description: unauthorized}}},
		SecuritySchemes: spec3.SecuritySchemes{
			bearer: &spec3.SecurityScheme{SecuritySchemeProps: bearerTokenV3()}},
		DefaultSecurity:                []map[string][]string{{bearer: {}}},
		GetOperationIDAndTagsFromRoute: operation,
		GetDefinitionName:              n.within(ws.RootPath()),
		Definitions:                    definitions,
	})
}

// kinds returns the names of the kinds, and the definitions of those that web services show. In
// references, the names of definitions follow the prefix.
func (p Part) kinds(
	prefix string, services []*restful.WebService,
) (*names, map[string]common.OpenAPIDefinition, error) {
	n, err := newNames(p.Scheme)
	if err != nil {
		return nil, nil, err
	}
	ref := func(name string) spec.Ref {
		friendly, _ := n.definition(name)
		return spec.MustCreateRef(prefix + common.EscapeJsonPointer(friendly))
	}
	if p.Definitions != nil {
		return n, p.Definitions(ref), nil
	}
	// The servers of custom resources and of aggregation show the protocol's types in their
	// documents, too. One definition of each must be the same everywhere.
	definitions := extensionsopenapi.GetOpenAPIDefinitions(ref)
	models := models(services)
	if schemas.Built() {
		keys := make([]string, 0, len(models))
		for _, model := range models {
			keys = append(keys, key(model))
		}
		return n, definitions, schemas.Add(definitions, prefix, keys...)
	}
	merges, err := MergeSchema()
	if err != nil {
		return nil, nil, err
	}
	d := &definer{ref: ref, merges: merges, out: definitions}
	for _, model := range models {
		d.define(model)
	}
	return n, d.out, nil
}

// models returns the structures that web services read and write.
func models(services []*restful.WebService) []reflect.Type {
	known := map[reflect.Type]bool{}
	add := func(sample any) {
		if sample == nil {
			return
		}
		if t := deref(reflect.TypeOf(sample)); t.Kind() == reflect.Struct {
			known[t] = true
		}
	}
	for _, ws := range services {
		for _, r := range ws.Routes() {
			add(r.ReadSample)
			add(r.WriteSample)
			for _, answer := range r.ResponseErrors {
				add(answer.Model)
			}
		}
	}
	return slices.Collect(maps.Keys(known))
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
