package registry

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/openapi"
)

// policyClient is the client of the plugin of mutating policies. That plugin lists the OpenAPI
// documents every few seconds, and the server must build all of them to answer. As long as there
// is no policy, the plugin sees only the server's own group versions, whose documents are built
// on demand.
type policyClient struct {
	kubernetes.Interface
	policies listers.MutatingAdmissionPolicyLister
	versions []schema.GroupVersion
}

// Discovery implements kubernetes.Interface.
func (c policyClient) Discovery() discovery.DiscoveryInterfaces {
	return policyDiscovery{c.Interface.Discovery(), c}
}

type policyDiscovery struct {
	discovery.DiscoveryInterfaces
	client policyClient
}

// OpenAPIV3 implements discovery.OpenAPIV3SchemaInterface.
func (d policyDiscovery) OpenAPIV3() openapi.Client { return d.client }

// Paths implements openapi.Client.
func (c policyClient) Paths() (map[string]openapi.GroupVersion, error) {
	list, err := c.policies.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if len(list) > 0 {
		return c.Interface.Discovery().OpenAPIV3().Paths()
	}
	paths := map[string]openapi.GroupVersion{}
	for _, gv := range c.versions {
		path := "apis/" + gv.String()
		if gv.Group == "" {
			path = "api/" + gv.Version
		}
		paths[path] = document{c.Interface, "/openapi/v3/" + path}
	}
	return paths, nil
}

// document is an OpenAPI document that is built at the first request.
type document struct {
	client kubernetes.Interface
	path   string
}

// Schema implements openapi.GroupVersion.
func (d document) Schema(contentType string) ([]byte, error) {
	return d.client.Discovery().RESTClient().Get().AbsPath(strings.Split(d.path, "/")...).
		SetHeader("Accept", contentType).Do(context.Background()).Raw()
}

// ServerRelativeURL implements openapi.GroupVersion.
func (d document) ServerRelativeURL() string { return d.path }
