package apiserver

import (
	"context"
	"net/http"

	extensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/openapi"
)

// newDocuments describes all that the chain serves.
func (s *Server) newDocuments(p *parts) *openapi.Service {
	own, extensions, aggregator := s.chain.own, s.chain.extensions, s.chain.aggregator
	return openapi.New(openapi.Config{
		Version: own.EffectiveVersion.Info().GitVersion,
		Parts: []openapi.Part{
			{Services: own.Handler.GoRestfulContainer, Scheme: p.scheme},
			{
				Services:    extensions.GenericAPIServer.Handler.GoRestfulContainer,
				Scheme:      extensionsserver.Scheme,
				Definitions: extensionsopenapi.GetOpenAPIDefinitions,
			},
			{
				Services:    aggregator.GenericAPIServer.Handler.GoRestfulContainer,
				Scheme:      aggregatorscheme.Scheme,
				Definitions: aggregatoropenapi.GetOpenAPIDefinitions,
			},
		},
		CustomResources: extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister(),
		Extensions:      s.extensions(p),
	})
}

// withDocuments serves the OpenAPI documents in front of the chain: the aggregator has its own.
func (s *Server) withDocuments(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == openapi.V2Path || underPrefix(r.URL.Path, openapi.V3Path) {
			s.documents.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// extensions lists the extension API servers that can serve their documents.
func (s *Server) extensions(p *parts) func() []openapi.Extension {
	services := s.chain.aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister()
	return func() []openapi.Extension {
		all, err := services.List(labels.Everything())
		if err != nil {
			return nil
		}
		var out []openapi.Extension
		for _, a := range all {
			if a.Spec.Service == nil ||
				!apiregistrationhelper.IsAPIServiceConditionTrue(a, apiregistrationv1.Available) {
				continue
			}
			out = append(out, openapi.Extension{Group: a.Spec.Group, Version: a.Spec.Version,
				Get: func(ctx context.Context, path string, header http.Header) (*http.Response, error) {
					return s.askExtension(ctx, p, a, path, header)
				}})
		}
		return out
	}
}

// askExtension requests a document from an extension API server, as the aggregator of
// upstream does.
func (s *Server) askExtension(
	ctx context.Context, p *parts, a *apiregistrationv1.APIService, path string, header http.Header,
) (*http.Response, error) {
	of := a.Spec.Service
	at, err := p.services.ResolveEndpoint(of.Namespace, of.Name, ptr.Deref(of.Port, 443))
	if err != nil {
		return nil, err
	}
	rt, err := transport.New(&transport.Config{TLS: transport.TLSConfig{
		Insecure: a.Spec.InsecureSkipTLSVerify, CAData: a.Spec.CABundle,
		ServerName: of.Name + "." + of.Namespace + ".svc",
		CertFile:   s.cfg.ProxyClient.CertFile, KeyFile: s.cfg.ProxyClient.KeyFile, ReloadTLSFiles: true,
	}})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String()+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header = header
	return transport.NewAuthProxyRoundTripper("system:aggregator", "", []string{user.AllAuthenticated}, nil,
		rt).RoundTrip(r)
}
