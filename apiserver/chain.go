package apiserver

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	extensionsopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	genericfilters "k8s.io/apiserver/pkg/endpoints/filters"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"

	"github.com/barque/barque/apiserver/apiservices"
	"github.com/barque/barque/apiserver/definitions"
	"github.com/barque/barque/apiserver/restoptions"
)

// chain is the way of a request to the server that answers it:
//
//	aggregator → Barque's own kinds → custom resources → not found
//
// Each server hands on requests that it does not serve. Authentication, authorization,
// audit, admission and flow control are the same for all of them: they run once, in front of
// the aggregator.
type chain struct {
	aggregator *aggregatorserver.APIAggregator
	own        *genericapiserver.GenericAPIServer
	extensions *extensionsserver.CustomResourceDefinitions
}

// definitionsKnown reports whether this server has listed the definitions of custom resources once.
func (c *chain) definitionsKnown() bool {
	return c.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Informer().HasSynced()
}

// newChain puts the servers together, from the last to the first. Barque's own is left to be filled
// with resources.
func (s *Server) newChain(config *genericapiserver.Config, parts *parts) (*chain, error) {
	c := &chain{}
	extensions, err := s.extensionsConfig(*config, parts)
	if err != nil {
		return nil, err
	}
	aggregator, err := s.aggregatorConfig(*config, parts)
	if err != nil {
		return nil, err
	}
	fresh := &definitions.Fresh{
		Next:   notfoundhandler.New(config.Serializer, genericfilters.NoMuxAndDiscoveryIncompleteKey),
		Codecs: config.Serializer,
	}
	c.extensions, err = extensions.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(fresh))
	if err != nil {
		return nil, fmt.Errorf("assembling the server of custom resources: %w", err)
	}
	stored, err := extensionsclient.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return nil, err
	}
	fresh.Get = func(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
		return stored.CustomResourceDefinitions().Get(ctx, name, metav1.GetOptions{})
	}
	fresh.Known = c.extensions.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister()
	fresh.Again = c.extensions.GenericAPIServer.UnprotectedHandler()
	c.own, err = config.Complete(s.informers).New("barque", c.extensions.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("assembling the API server: %w", err)
	}
	// A server takes over the hooks that its delegate has at that moment.
	if err := c.own.AddPostStartHook("storage-readiness", c.own.StorageReadinessHook.Hook); err != nil {
		return nil, err
	}
	c.aggregator, err = aggregator.Complete().NewWithDelegate(c.own)
	if err != nil {
		return nil, fmt.Errorf("assembling the aggregator: %w", err)
	}
	c.aggregator.GenericAPIServer.ShutdownTimeout = streamGrace
	return c, nil
}

// extensionsConfig configures the server of CustomResourceDefinitions and of custom resources. Its
// controllers run on every server: they write status that follows from the object alone, and
// compare the resourceVersion, so that equal writers cannot harm each other.
func (s *Server) extensionsConfig(config genericapiserver.Config, parts *parts) (*extensionsserver.Config, error) {
	options, err := parts.libraryStorage(extensionsserver.Scheme, extensionsserver.Codecs)
	if err != nil {
		return nil, err
	}
	forLibrary(&config, options, extensionsopenapi.GetOpenAPIDefinitions, extensionsserver.Scheme,
		apiextensionsv1.SchemeGroupVersion)
	config.AdmissionControl = admission.NewChainHandler(definitions.NewSelectableFields(), config.AdmissionControl)
	return &extensionsserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: config, SharedInformerFactory: s.informers},
		ExtraConfig: extensionsserver.ExtraConfig{
			CRDRESTOptionsGetter: parts.storage.CustomResources(),
			// A definition is Established at once: a server whose informer lacks it reads the store
			// before it answers 404, see definitions.Fresh.
			MasterCount:     1,
			ServiceResolver: parts.services,
			AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil,
				config.LoopbackClientConfig, config.TracerProvider),
		},
	}, nil
}

// aggregatorConfig configures the first server, which finds the server of a group by
// its APIServices.
func (s *Server) aggregatorConfig(config genericapiserver.Config, parts *parts) (*aggregatorserver.Config, error) {
	options, err := parts.libraryStorage(aggregatorscheme.Scheme, aggregatorscheme.Codecs)
	if err != nil {
		return nil, err
	}
	forLibrary(&config, options, aggregatoropenapi.GetOpenAPIDefinitions, aggregatorscheme.Scheme,
		apiregistrationv1.SchemeGroupVersion)
	// It would merge the OpenAPI documents of extensions, and end the process over one that is
	// malformed. Package openapi does it instead.
	config.DisabledPostStartHooks = config.DisabledPostStartHooks.Union(
		sets.NewString("apiservice-openapiv3-controller"))
	config.AdmissionControl = admission.NewChainHandler(apiservices.NewAvailability(s.leads.Load),
		config.AdmissionControl)
	return &aggregatorserver.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: config, SharedInformerFactory: s.informers},
		ExtraConfig: aggregatorserver.ExtraConfig{
			ServiceResolver:           parts.services,
			RejectForwardingRedirects: true,
			ProxyClientCertFile:       s.cfg.ProxyClient.CertFile,
			ProxyClientKeyFile:        s.cfg.ProxyClient.KeyFile,
		},
	}, nil
}

// forLibrary turns a copy of the configuration of Barque's own server into that of a server from a
// library.
func forLibrary(
	config *genericapiserver.Config, options *restoptions.Getter, types common.GetOpenAPIDefinitions,
	scheme *runtime.Scheme, served schema.GroupVersion,
) {
	config.RESTOptionsGetter = options
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(types,
		openapinamer.NewDefinitionNamer(scheme, clientscheme.Scheme))
	config.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	resources := serverstorage.NewResourceConfig()
	resources.EnableVersions(served)
	config.MergedResourceConfig = resources
}

// libraryStorage stores the kinds of a library as Barque's own are stored.
func (p *parts) libraryStorage(scheme *runtime.Scheme, codecs serializer.CodecFactory) (*restoptions.Getter, error) {
	config := p.storageConfig
	config.Scheme, config.Serializer = scheme, codecs
	return restoptions.New(config)
}
