package subresources

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/barque/barque/apiserver/resource"
)

// Namespaces is the storage of namespaces. A delete only marks the namespace as terminating; it
// goes when its controller has emptied it and taken its finalizer away.
type Namespaces struct {
	*resource.Storage
	now func() metav1.Time
}

// NewNamespaces wraps the storage of namespaces.
func NewNamespaces(s *resource.Storage) *Namespaces {
	return &Namespaces{s, metav1.Now}
}

// List implements rest.Lister.
func (n *Namespaces) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return n.ListEncoded(ctx, options)
}

// Watch implements rest.Watcher.
func (n *Namespaces) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	return n.WatchGathered(ctx, options)
}

// DeleteCollection hides the embedded storage's, so that it is neither served nor named in
// discovery. Namespaces go one by one, on purpose.
func (n *Namespaces) DeleteCollection() {}

// Delete implements rest.GracefulDeleter.
func (n *Namespaces) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	obj, err := n.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	ns := obj.(*corev1.Namespace)
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	preconditions := preconditionsOf(ns, options)
	if err := preconditions.Check(name, ns); err != nil {
		return nil, false, apierrors.NewConflict(corev1.Resource("namespaces"), name, err)
	}
	if ns.DeletionTimestamp != nil && len(ns.Spec.Finalizers) == 0 {
		return n.Storage.Delete(ctx, name, validate, options)
	}
	if ns.DeletionTimestamp != nil {
		return nil, false, apierrors.NewConflict(corev1.Resource("namespaces"), name,
			fmt.Errorf(
				"the system is ensuring all content is removed from this namespace; upon completion, this namespace will automatically be purged"))
	}
	marked, err := n.mark(ctx, name, validate, preconditions, dryrun.IsDryRun(options.DryRun))
	if err != nil {
		return nil, false, err
	}
	if len(marked.Spec.Finalizers) == 0 {
		return n.Storage.Delete(ctx, name, validate, options)
	}
	return marked, false, nil
}

// mark sets the deletion time and the phase.
func (n *Namespaces) mark(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, preconditions *storage.Preconditions,
	dryRun bool,
) (*corev1.Namespace, error) {
	key, err := n.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &corev1.Namespace{}
	err = n.Store.Storage.GuaranteedUpdate(ctx, key, out, false, preconditions,
		storage.SimpleUpdate(func(current runtime.Object) (runtime.Object, error) {
			ns, ok := current.(*corev1.Namespace)
			if !ok {
				return nil, fmt.Errorf("expected a Namespace, got a %T", current)
			}
			if validate != nil {
				if err := validate(ctx, ns.DeepCopy()); err != nil {
					return nil, err
				}
			}
			if ns.DeletionTimestamp == nil {
				at := n.now()
				ns.DeletionTimestamp = &at
			}
			ns.Status.Phase = corev1.NamespaceTerminating
			return ns, nil
		}), dryRun, nil)
	if storage.IsNotFound(err) {
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	if storage.IsConflict(err) {
		return nil, apierrors.NewConflict(corev1.Resource("namespaces"), name, err)
	}
	return out, err
}

func preconditionsOf(ns *corev1.Namespace, options *metav1.DeleteOptions) *storage.Preconditions {
	p := &storage.Preconditions{UID: &ns.UID}
	if o := options.Preconditions; o != nil {
		if o.UID != nil {
			p.UID = o.UID
		}
		p.ResourceVersion = o.ResourceVersion
	}
	return p
}

// Finalize serves namespaces/finalize, the only way to change the finalizers of the spec.
type Finalize struct{ store *updater }

// NewFinalize returns the subresource.
func NewFinalize(s *resource.Storage, validate func([]corev1.FinalizerName) field.ErrorList) *Finalize {
	return &Finalize{newUpdater(s, prepared{
		prepare: func(_ context.Context, obj, old runtime.Object) {
			obj.(*corev1.Namespace).Status = old.(*corev1.Namespace).Status
		},
		validate: func(_ context.Context, obj, _ runtime.Object) field.ErrorList {
			return validate(obj.(*corev1.Namespace).Spec.Finalizers)
		},
	})}
}

// New implements rest.Storage.
func (f *Finalize) New() runtime.Object { return &corev1.Namespace{} }

// Destroy implements rest.Storage; the store is its parent's.
func (f *Finalize) Destroy() {}

// Update implements rest.Updater.
func (f *Finalize) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return f.store.Update(ctx, name, info, create, update, false, options)
}
