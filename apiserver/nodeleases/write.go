package nodeleases

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Create implements rest.Creater.
func (s *Storage) Create(
	ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions,
) (runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("creating a lease: %w", err)
	}
	if err := s.writable(ctx, m.GetName()); err != nil {
		return nil, err
	}
	return s.Storage.Create(ctx, obj, validate, options)
}

// Update implements rest.Updater. Patches and server-side apply end here, too.
func (s *Storage) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	if err := s.writable(ctx, name); err != nil {
		return nil, false, err
	}
	return s.Storage.Update(ctx, name, info, create, update, forceCreate, options)
}

// Delete implements rest.GracefulDeleter.
func (s *Storage) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	if err := s.writable(ctx, name); err != nil {
		return nil, false, err
	}
	return s.Storage.Delete(ctx, name, validate, options)
}

// DeleteCollection implements rest.CollectionDeleter. It refuses a selection that has a member's
// lease, and deletes nothing then.
func (s *Storage) DeleteCollection(
	ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
	list *metainternalversion.ListOptions,
) (runtime.Object, error) {
	if hasNodes(ctx) {
		selected := metainternalversion.ListOptions{}
		if list != nil {
			selected.LabelSelector, selected.FieldSelector = list.LabelSelector, list.FieldSelector
		}
		members, err := s.members(ctx, &selected, "")
		if err != nil {
			return nil, err
		}
		if len(members.Items) > 0 {
			return nil, refused(members.Items[0].Name)
		}
	}
	return s.Storage.DeleteCollection(ctx, validate, options, list)
}

// writable refuses the write of a member's lease. It takes the Node from this server's cache: a
// renewal then costs no second read from the store, and a member that registers at this moment
// hides the written lease in any case.
func (s *Storage) writable(ctx context.Context, name string) error {
	if namespace, _ := request.NamespaceFrom(ctx); !isNodes(namespace) || name == "" {
		return nil
	}
	node, _, err := s.node(ctx, name, "0")
	if err != nil {
		return err
	}
	if node != nil && IsMember(node) {
		return refused(name)
	}
	return nil
}
