package groups

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestResourcesRegister(t *testing.T) {
	scheme := runtime.NewScheme()
	seen := map[schema.GroupVersionResource]bool{}
	for _, r := range Resources() {
		if seen[r.GroupVersionResource()] {
			t.Errorf("%s is declared twice", r.GroupVersionResource())
		}
		seen[r.GroupVersionResource()] = true
		if err := r.AddToScheme(scheme); err != nil {
			t.Errorf("%s: %v", r.GroupVersionResource(), err)
		}
	}
}
