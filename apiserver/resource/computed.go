package resource

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Computed declares a resource that is not stored: its storage computes the answers.
type Computed struct {
	GroupVersion schema.GroupVersion
	Name         string
	// Types to register: those that the storage reads and writes, lists included.
	Types []runtime.Object
	// Storage is called when the resources that were declared before have been built.
	Storage func() (rest.Storage, error)
}

// GroupVersionResource implements Resource.
func (c *Computed) GroupVersionResource() schema.GroupVersionResource {
	return c.GroupVersion.WithResource(c.Name)
}

// AddToScheme implements Resource.
func (c *Computed) AddToScheme(scheme *runtime.Scheme) error {
	if c.Name == "" || len(c.Types) == 0 || c.Storage == nil {
		return fmt.Errorf("resource %q: Name, Types and Storage are required", c.Name)
	}
	scheme.AddKnownTypes(c.GroupVersion, c.Types...)
	metav1.AddToGroupVersion(scheme, c.GroupVersion)
	addInternal(scheme, c.GroupVersion, c.Types...)
	return nil
}

// Build implements Resource.
func (c *Computed) Build(Builder) ([]Installation, error) {
	s, err := c.Storage()
	if err != nil {
		return nil, fmt.Errorf("storage of %s: %w", c.Name, err)
	}
	return []Installation{{GroupVersion: c.GroupVersion, Storage: map[string]rest.Storage{c.Name: s}}}, nil
}
