package openapi

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// established returns the definitions whose resources are served, in the order of their names.
func (s *Service) established() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	if s.CustomResources == nil {
		return nil, nil
	}
	crds, err := s.CustomResources.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing CustomResourceDefinitions: %w", err)
	}
	crds = slices.DeleteFunc(crds, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	})
	slices.SortFunc(crds,
		func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	return crds, nil
}

// byVersion sorts definitions by the groups and versions that they serve.
func byVersion(
	crds []*apiextensionsv1.CustomResourceDefinition,
) map[schema.GroupVersion][]*apiextensionsv1.CustomResourceDefinition {
	versions := map[schema.GroupVersion][]*apiextensionsv1.CustomResourceDefinition{}
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				gv := schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}
				versions[gv] = append(versions[gv], crd)
			}
		}
	}
	return versions
}

// customV3 describes the custom resources of one group and version.
func customV3(gv schema.GroupVersion, crds []*apiextensionsv1.CustomResourceDefinition) (*spec3.OpenAPI, error) {
	docs := make([]*spec3.OpenAPI, 0, len(crds))
	for _, crd := range crds {
		doc, err := builder.BuildOpenAPIV3(crd, gv.Version, builder.Options{IncludeSelectableFields: true})
		if err != nil {
			return nil, fmt.Errorf("schema of %s: %w", crd.Name, err)
		}
		docs = append(docs, doc)
	}
	return builder.MergeSpecsV3(docs...)
}

// withCustomV2 adds the custom resources to a document of OpenAPI v2.
func withCustomV2(doc *spec.Swagger, crds []*apiextensionsv1.CustomResourceDefinition) (*spec.Swagger, error) {
	var docs []*spec.Swagger
	for gv, crds := range byVersion(crds) {
		for _, crd := range crds {
			one, err := builder.BuildOpenAPIV2(crd, gv.Version,
				builder.Options{V2: true, IncludeSelectableFields: true})
			if err != nil {
				return nil, fmt.Errorf("schema of %s: %w", crd.Name, err)
			}
			one.Definitions = handler.PruneDefaults(one.Definitions)
			docs = append(docs, one)
		}
	}
	return builder.MergeSpecs(doc, docs...)
}
