package encryption

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// never are resources that are written in one transaction with others, or are gone before anybody
// rewrites them.
var never = []schema.GroupResource{
	{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}, {Resource: "services"},
	{Group: "networking.k8s.io", Resource: "ipaddresses"}, {Group: "networking.k8s.io", Resource: "servicecidrs"},
	{Group: "coordination.k8s.io", Resource: "leases"},
}

// Never reports whether a resource cannot be encrypted.
func Never(resource schema.GroupResource) bool { return slices.Contains(never, resource) }

// Place implements restoptions.Placed.
func (t *Transformers) Place(resource schema.GroupResource, prefix string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places[resource] = prefix
}

func (t *Transformers) placed(resource schema.GroupResource) (prefix string, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	prefix, ok = t.places[resource]
	return prefix, ok
}

// locator finds the resource of a key, by the beginnings of keys.
type locator map[string]schema.GroupResource

func (t *Transformers) locator() locator {
	t.mu.RLock()
	defer t.mu.RUnlock()
	l := make(locator, len(t.places))
	for resource, prefix := range t.places {
		l[prefix] = resource
	}
	return l
}

// resource returns the resource of the object at a key, which custom resources have in the key.
func (l locator) resource(key string) (of schema.GroupResource, ok bool) {
	first := strings.IndexByte(key[len(everything):], '/') + len(everything)
	if first < len(everything) {
		return of, false
	}
	second := strings.IndexByte(key[first+1:], '/') + first + 1
	if second > first {
		if of, ok = l[key[:second+1]]; ok {
			return of, true
		}
	}
	if of, ok = l[key[:first+1]]; ok || second <= first || !strings.Contains(key[len(everything):first], ".") {
		return of, ok
	}
	return schema.GroupResource{Group: key[len(everything):first], Resource: key[first+1 : second]}, true
}

// Definitions are the CustomResourceDefinitions of the cluster.
type Definitions interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error)
}

// ResourceError is returned for a resource that cannot be encrypted.
type ResourceError struct{ Reason string }

func (e *ResourceError) Error() string { return e.Reason }

// Resolve returns the name under which the state of the keys has a resource. It fails with a
// ResourceError if the cluster does not store the resource, or stores it in clear always. The API
// server must have been made.
func (t *Transformers) Resolve(ctx context.Context, name string, custom Definitions) (string, error) {
	of := schema.ParseGroupResource(name)
	if slices.Contains(never, of) {
		return "", &ResourceError{fmt.Sprintf("objects of the resource %q cannot be encrypted", name)}
	}
	if _, ok := t.placed(of); ok {
		return of.String(), nil
	}
	unknown := &ResourceError{fmt.Sprintf("the cluster has no resource %q: name it by its plural and its group, "+
		"such as secrets, deployments.apps or widgets.example.com (`kubectl api-resources`)", name)}
	if of.Group == "" || of.Resource == "" {
		return "", unknown
	}
	definition, err := custom.Get(ctx, of.String(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", unknown
	case err != nil:
		return "", fmt.Errorf("look for the CustomResourceDefinition %s: %w", of, err)
	}
	for _, c := range definition.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
			return of.String(), nil
		}
	}
	return "", &ResourceError{fmt.Sprintf("the CustomResourceDefinition %s is not established yet", of)}
}
