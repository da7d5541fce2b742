package encryption

import (
	"context"
	"errors"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// definitions are CustomResourceDefinitions by name, and whether they are established.
type definitions map[string]bool

func (d definitions) Get(
	_ context.Context, name string, _ metav1.GetOptions,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	established, ok := d[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, name)
	}
	is := new(apiextensionsv1.CustomResourceDefinition)
	if established {
		is.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	}
	return is, nil
}

// TestResourcesByName: only a resource that the cluster stores can be named, in any spelling that
// Kubernetes has for it, and ends as one name.
func TestResourcesByName(t *testing.T) {
	transformers := New(nil, guardKey)
	for resource, prefix := range map[schema.GroupResource]string{
		{Resource: "secrets"}: "/registry/secrets/", {Group: "apps", Resource: "deployments"}: "/registry/deployments/",
		{Resource: "services"}: "/registry/services/specs/",
	} {
		transformers.Place(resource, prefix)
	}
	custom := definitions{"widgets.example.com": true, "young.example.com": false}
	for name, want := range map[string]string{
		"secrets": "secrets", "secrets.": "secrets", "deployments.apps": "deployments.apps",
		"widgets.example.com": "widgets.example.com",
		"secret":              "", "Secrets": "", "secrets ": "", "secrets,configmaps": "", "deployments": "",
		"secrets.v1": "",
		"":           "", ".": "", "*": "", "*.*": "",
		"widget.example.com": "", "young.example.com": "", ".example.com": "",
		"events": "", "events.events.k8s.io": "", "services": "", "services.": "", "leases.coordination.k8s.io": "",
	} {
		got, err := transformers.Resolve(t.Context(), name, custom)
		var refused *ResourceError
		if got != want || (want == "") != errors.As(err, &refused) {
			t.Errorf("%q is %q, want %q: %v", name, got, want, err)
		}
		if want != "" {
			if again, err := transformers.Resolve(t.Context(), got, custom); again != got || err != nil {
				t.Errorf("%q is %q, %v", got, again, err)
			}
		}
	}
	if _, err := transformers.Resolve(t.Context(), "widgets.example.com", broken{}); err == nil ||
		!strings.Contains(err.Error(), "no leader") || errors.As(err, new(*ResourceError)) {
		t.Errorf("a definition that cannot be read is taken for one that there is not: %v", err)
	}
	where := transformers.locator()
	for key, want := range map[string]string{
		"/registry/deployments/ns/x": "deployments.apps", "/registry/services/specs/ns/x": "services",
		"/registry/example.com/widgets/ns/x": "widgets.example.com",
		"/registry/example.com/widgets/x":    "widgets.example.com", "/registry/unknown/ns/x": "", "/registry/x": "",
	} {
		if of, ok := where.resource(key); ok != (want != "") || ok && of.String() != want {
			t.Errorf("%s is of %s, %t", key, of, ok)
		}
	}
}

type broken struct{}

func (broken) Get(context.Context, string, metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	return nil, errors.New("no leader")
}
