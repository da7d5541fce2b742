package apiserver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/barque/barque/apiserver/resource"
)

// installer puts built storages into the generic server. It is InstallAPIGroups of the generic
// server, except that types for server-side apply come from client-go's schema: the OpenAPI
// documents are then built at the first request for them.
type installer struct {
	server *genericapiserver.GenericAPIServer
	config *genericapiserver.Config
	scheme *runtime.Scheme
	types  managedfields.TypeConverter
}

func (in *installer) install(installations []resource.Installation) error {
	versions := map[schema.GroupVersion]map[string]rest.Storage{}
	for _, i := range installations {
		paths := versions[i.GroupVersion]
		if paths == nil {
			paths = map[string]rest.Storage{}
			versions[i.GroupVersion] = paths
		}
		for path, s := range i.Storage {
			if _, taken := paths[path]; taken {
				return fmt.Errorf("%s: %s is declared twice", i.GroupVersion, path)
			}
			paths[path] = s
		}
	}
	groups := map[string]bool{}
	for gv := range versions {
		groups[gv.Group] = true
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		if err := in.installGroup(group, versions); err != nil {
			return fmt.Errorf("API group %q: %w", group, err)
		}
	}
	in.server.RegisterDestroyFunc(func() {
		for _, paths := range versions {
			for _, s := range paths {
				s.Destroy()
			}
		}
	})
	return nil
}

func (in *installer) installGroup(group string, versions map[schema.GroupVersion]map[string]rest.Storage) error {
	var served []schema.GroupVersion
	for _, gv := range in.scheme.PrioritizedVersionsForGroup(group) {
		if len(versions[gv]) > 0 {
			served = append(served, gv)
		}
	}
	if len(served) == 0 {
		return errors.New("no served version has a priority")
	}
	manager, root := in.server.AggregatedDiscoveryGroupManager, genericapiserver.APIGroupPrefix
	if group == "" {
		manager, root = in.server.AggregatedLegacyDiscoveryGroupManager, genericapiserver.DefaultLegacyAPIPrefix
	}
	for _, gv := range served {
		if err := in.installVersion(root, gv, served, versions, manager); err != nil {
			return err
		}
	}
	if group == "" {
		handler := discovery.NewLegacyRootAPIHandler(in.config.DiscoveryAddresses, in.server.Serializer, root)
		in.server.Handler.GoRestfulContainer.Add(
			aggregated.WrapAggregatedDiscoveryToHandler(handler, manager, manager).GenerateWebService(root,
				metav1.APIVersions{}))
		return nil
	}
	apiGroup := metav1.APIGroup{Name: group}
	for _, gv := range served {
		apiGroup.Versions = append(apiGroup.Versions,
			metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
	}
	apiGroup.PreferredVersion = apiGroup.Versions[0]
	in.server.DiscoveryGroupManager.AddGroup(apiGroup)
	in.server.Handler.GoRestfulContainer.Add(discovery.NewAPIGroupHandler(in.server.Serializer, apiGroup).WebService())
	return nil
}

func (in *installer) installVersion(
	root string, gv schema.GroupVersion, served []schema.GroupVersion,
	versions map[schema.GroupVersion]map[string]rest.Storage, manager aggregated.ResourceManager,
) error {
	byResource := map[string][]string{}
	for _, v := range served {
		for path := range versions[v] {
			byResource[path] = append(byResource[path], v.String())
		}
	}
	group := &endpoints.APIGroupVersion{
		Root:                        root,
		GroupVersion:                gv,
		Storage:                     versions[gv],
		AllServedVersionsByResource: byResource,
		OptionsExternalVersion:      &schema.GroupVersion{Version: "v1"},
		ParameterCodec:              runtime.NewParameterCodec(in.scheme),
		Serializer:                  in.config.Serializer,
		Creater:                     roomyCreater{in.scheme},
		Convertor:                   in.scheme,
		ConvertabilityChecker:       in.scheme,
		UnsafeConvertor:             runtime.UnsafeObjectConvertor(in.scheme),
		Defaulter:                   in.scheme,
		Typer:                       in.scheme,
		Namer:                       runtime.Namer(meta.NewAccessor()),
		TypeConverter:               in.types,
		EquivalentResourceRegistry:  in.server.EquivalentResourceRegistry,
		Admit:                       in.config.AdmissionControl,
		Authorizer:                  in.server.Authorizer,
		MinRequestTimeout:           time.Duration(in.config.MinRequestTimeout) * time.Second,
		MaxRequestBodyBytes:         in.config.MaxRequestBodyBytes,
	}
	resources, _, err := group.InstallREST(in.server.Handler.GoRestfulContainer)
	if err != nil {
		return fmt.Errorf("installing %s: %w", gv, err)
	}
	manager.AddGroupVersion(gv.Group, apidiscoveryv2.APIVersionDiscovery{
		Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Version:   gv.Version,
		Resources: resources,
	})
	for path, s := range versions[gv] {
		if ready, ok := s.(rest.StorageWithReadiness); ok {
			in.server.StorageReadinessHook.RegisterStorage(
				metav1.GroupVersionResource{Group: gv.Group, Version: gv.Version, Resource: path}, ready)
		}
	}
	return nil
}
