package resource

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Resource is a declared resource of any type. *Kind and *Action implement it.
type Resource interface {
	// GroupVersionResource under which the resource is served and stored.
	GroupVersionResource() schema.GroupVersionResource
	// AddToScheme registers the types, defaulting, field labels and conversions.
	AddToScheme(scheme *runtime.Scheme) error
	// Build makes the storages, to be installed under each of the returned versions.
	Build(b Builder) ([]Installation, error)
}

// Builder has the dependencies that turn declarations into storage.
type Builder struct {
	Scheme  *runtime.Scheme
	Options generic.RESTOptionsGetter
	// Now returns the time for ages in tables; time.Now when nil.
	Now func() time.Time
}

// Installation has the storages of a resource in one group version, keyed by path, such as
// "deployments", "deployments/status" and "deployments/scale".
type Installation struct {
	GroupVersion schema.GroupVersion
	Storage      map[string]rest.Storage
}

// Kind declares a stored resource whose objects are of the versioned type T; *T must be a
// runtime.Object with metadata. See the package documentation for the defaults of empty fields.
type Kind[T any] struct {
	// GroupVersion that is served and stored.
	GroupVersion schema.GroupVersion
	// Name is the plural, as in the path. Singular is its singular.
	Name, Singular string
	ShortNames     []string
	Categories     []string // "all" shows it in kubectl get all
	ClusterScoped  bool
	// List is an empty list of T, such as &corev1.PodList{}.
	List runtime.Object
	// Prefix of the storage keys below /registry/; Name when empty.
	Prefix string
	// Aliases are further wire forms of the same stored objects.
	Aliases []Alias

	// Default fills in defaults; it runs on every decoded object, stored ones included.
	Default func(obj *T)
	// Prepare normalizes obj before it is validated. old is nil on create.
	Prepare func(ctx context.Context, obj, old *T)
	// Validate reports all faults of obj (and of the change, when old is not nil).
	Validate func(ctx context.Context, obj, old *T) field.ErrorList
	// Warnings for the client about obj, which is valid.
	Warnings func(ctx context.Context, obj, old *T) []string

	// Generation keeps metadata.generation.
	Generation bool
	// Status adds the status subresource.
	Status *Status[T]
	// Scale adds the scale subresource.
	Scale *Scale[T]
	// Subresources by name, such as "log". They are given the built main storage.
	Subresources map[string]func(s *Storage) (rest.Storage, error)
	// Wrap, if set, replaces the main storage by one built around it. A wrapper that does not use
	// the listed objects lets its List call ListEncoded.
	Wrap func(s *Storage) rest.Storage

	// CreateOnUpdate lets a PUT create the object.
	CreateOnUpdate bool
	// VersionedUpdate refuses a PUT without resourceVersion.
	VersionedUpdate bool

	// Columns and Row print the resource; both or none. Row returns one cell for each column.
	// Columns of priority above 0 are shown by kubectl get -o wide.
	Columns []metav1.TableColumnDefinition
	Row     func(obj *T, now time.Time) []any

	// Fields returns the selectable fields besides metadata.name and metadata.namespace. It must
	// return the same keys for every object, the zero one included.
	Fields func(obj *T) fields.Set
	// IndexFields are the Fields by which watches and lists are indexed.
	IndexFields []string

	// TTL after which a written object expires. 0 means never.
	TTL func(obj *T) time.Duration
	// GracefulDelete decides whether a delete waits for the object's owner to finish it, and sets
	// options.GracePeriodSeconds when it does. Without it every delete is immediate.
	GracefulDelete func(ctx context.Context, obj *T, options *metav1.DeleteOptions) bool
	// ReturnDeleted answers a delete with the last state of the object instead of a Status.
	ReturnDeleted bool
	// GarbageCollection is the effect on dependents of a delete without propagation policy:
	// rest.DeleteDependents when empty.
	GarbageCollection rest.GarbageCollectionPolicy

	// BeginCreate and BeginUpdate run before an object is prepared and validated, and may fill it
	// in. They may return a function, which is called with the request's success. They run for dry
	// runs as well, which the options show.
	BeginCreate func(
		ctx context.Context, obj *T, options *metav1.CreateOptions,
	) (func(ctx context.Context, success bool), error)
	BeginUpdate func(
		ctx context.Context, obj, old *T, options *metav1.UpdateOptions,
	) (func(ctx context.Context, success bool), error)
	// AfterCreate, AfterUpdate and AfterDelete run after a write that took place.
	AfterCreate func(obj *T, options *metav1.CreateOptions)
	AfterUpdate func(obj *T, options *metav1.UpdateOptions)
	AfterDelete func(obj *T, options *metav1.DeleteOptions)
	// DeleteDuringUpdate reports that the update from old to obj removes the object. It takes the
	// place of the general rule (the last finalizer has gone from an object that is being deleted),
	// which does not know of finalizers outside the metadata.
	DeleteDuringUpdate func(ctx context.Context, obj, old *T) bool

	// Reset adds to the fields that writes to the main resource do not own, for server-side apply.
	Reset []fieldpath.Path
}

// Status declares the status subresource. Its zero value is useful.
type Status[T any] struct {
	// KeepOnCreate keeps the status that a create comes with, for objects whose creator reports
	// their status, such as nodes.
	KeepOnCreate bool
	// Prepare adjusts obj after everything but its status and its metadata has been restored from
	// old.
	Prepare func(ctx context.Context, obj, old *T)
	// Validate reports all faults of the new status.
	Validate func(ctx context.Context, obj, old *T) field.ErrorList
	Warnings func(ctx context.Context, obj, old *T) []string
	// Reset adds to the fields that writes to the status do not own, for server-side apply.
	Reset []fieldpath.Path
}

// GroupVersionResource implements Resource.
func (k *Kind[T]) GroupVersionResource() schema.GroupVersionResource {
	return k.GroupVersion.WithResource(k.Name)
}

// Find returns the declaration of the stored kind T among resources, so that a server can add its
// own parts: allocators, or connections to nodes. It returns nil if there is none.
func Find[T any](resources []Resource) *Kind[T] {
	for _, r := range resources {
		if k, ok := r.(*Kind[T]); ok {
			return k
		}
	}
	return nil
}

// object views a *T as the runtime.Object that it is.
func object[T any](p *T) runtime.Object { return any(p).(runtime.Object) }

// typed views a runtime.Object as *T; nil stays nil.
func typed[T any](obj runtime.Object) *T {
	if obj == nil {
		return nil
	}
	return obj.(any).(*T)
}
