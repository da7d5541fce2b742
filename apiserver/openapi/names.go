package openapi

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// names has the names of definitions and their kinds.
type names struct {
	kinds map[string][]any
}

func newNames(scheme *runtime.Scheme) (*names, error) {
	byName := map[string][]metav1.GroupVersionKind{}
	for gvk := range scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue // registered for the generic server; it is not served
		}
		name, err := scheme.ToOpenAPIDefinitionName(gvk)
		if err != nil {
			return nil, err
		}
		byName[name] = append(byName[name], metav1.GroupVersionKind(gvk))
	}
	n := &names{kinds: make(map[string][]any, len(byName))}
	for name, list := range byName {
		slices.SortFunc(list, func(a, b metav1.GroupVersionKind) int {
			return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
		})
		for _, k := range list {
			n.kinds[name] = append(n.kinds[name],
				map[string]any{"group": k.Group, "version": k.Version, "kind": k.Kind})
		}
	}
	return n, nil
}

// definition implements GetDefinitionName of the builders' configurations.
func (n *names) definition(name string) (string, spec.Extensions) {
	friendly := name
	if strings.Contains(name, "/") {
		friendly = util.ToRESTFriendlyName(name)
	}
	if kinds := n.kinds[friendly]; len(kinds) > 0 {
		return friendly, spec.Extensions{"x-kubernetes-group-version-kind": kinds}
	}
	return friendly, nil
}

// registeredEverywhere are kinds of the protocol, which every group has.
var registeredEverywhere = []string{
	util.GetCanonicalTypeName(metav1.WatchEvent{}),
	util.GetCanonicalTypeName(metav1.DeleteOptions{}),
}

// within is definition for the document of a group and version, by its path. There, kinds that
// every group has are those of this group and version and of v1.
func (n *names) within(root string) func(name string) (string, spec.Extensions) {
	gv, err := schema.ParseGroupVersion(strings.TrimPrefix(strings.TrimPrefix(root, "/apis/"), "/api/"))
	if err != nil || gv.Version == "" {
		return n.definition
	}
	return func(name string) (string, spec.Extensions) {
		friendly, extensions := n.definition(name)
		if !slices.Contains(registeredEverywhere, friendly) {
			return friendly, extensions
		}
		kinds := slices.DeleteFunc(slices.Clone(n.kinds[friendly]), func(kind any) bool {
			of := kind.(map[string]any)
			canonical := of["group"] == "" && of["version"] == "v1"
			return !canonical && (of["group"] != gv.Group || of["version"] != gv.Version)
		})
		return friendly, spec.Extensions{"x-kubernetes-group-version-kind": kinds}
	}
}
