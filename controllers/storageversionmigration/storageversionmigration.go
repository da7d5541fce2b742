// Package storageversionmigration runs StorageVersionMigrations (KEP-4192). Each writes all older
// objects of a resource again. The store then has them in the current version, or under the current
// key.
//
// An object is written by a patch that only names its resourceVersion. A conflict means that
// another client has written or deleted the object meanwhile; it needs no migration any more.
// Nothing is kept in memory. A new leader begins with the first object again; for a migrated object
// the store makes no write.
//
// While a custom resource is migrated, its CustomResourceDefinition has a condition for it. If its
// versions are the same in the end, the older ones are removed from its stored versions.
package storageversionmigration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	migrationlisters "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

const (
	manager = "storage-version-migrator-controller" // of the fields that it writes
	// unknown is for how long a resource that the API does not serve is waited for: its CRD may be
	// new.
	unknown = time.Minute
	page    = 500
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// MetadataFor makes the metadata client of a term.
	MetadataFor func(lead context.Context) (metadata.Interface, error)
	// DefinitionsFor makes the client of CustomResourceDefinitions of a term.
	DefinitionsFor func(lead context.Context) (Definitions, error)
}

// Controller runs migrations.
type Controller struct {
	cfg        Config
	migrations cache.SharedIndexInformer
	list       migrationlisters.StorageVersionMigrationLister
}

// New asks the factory for the informer it needs; it is called before it is started.
func New(cfg Config) (*Controller, error) {
	if cfg.MetadataFor == nil || cfg.DefinitionsFor == nil {
		return nil, errors.New("controllers/storageversionmigration: MetadataFor and DefinitionsFor are required")
	}
	migrations := cfg.Informers.Storagemigration().V1().StorageVersionMigrations()
	return &Controller{cfg: cfg, migrations: migrations.Informer(), list: migrations.Lister()}, nil
}

// Run migrates for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	meta, err := c.cfg.MetadataFor(ctx)
	if err != nil {
		return fmt.Errorf("making a metadata client: %w", err)
	}
	crds, err := c.cfg.DefinitionsFor(ctx)
	if err != nil {
		return fmt.Errorf("making a client of CustomResourceDefinitions: %w", err)
	}
	t := &term{Controller: c, client: client, meta: meta, crds: crds}
	t.loop = runtime.NewLoop("storageversionmigration", 5, c.cfg.Logger, t.reconcile)
	// One that ends lets the next one of its resource begin.
	runtime.Watch(t.loop, c.migrations, func(old, now *migrationv1.StorageVersionMigration) []runtime.Key {
		if now == nil {
			now = old
		}
		all, err := c.list.List(labels.Everything())
		if err != nil {
			return nil
		}
		var keys []runtime.Key
		for _, m := range all {
			if m.Spec.Resource == now.Spec.Resource {
				keys = append(keys, runtime.KeyOf(m))
			}
		}
		return keys
	})
	return t.loop.Run(ctx)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client kubernetes.Interface
	meta   metadata.Interface
	crds   Definitions
	loop   *runtime.Loop
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	m, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || m.DeletionTimestamp != nil {
		return 0, err
	}
	all, err := t.list.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	now := time.Now()
	switch decide(m, all) {
	case beginning:
		if err := t.begin(ctx, m); err != nil {
			return 0, err
		}
		return 0,
			t.write(ctx, key, m,
				with(m.Status, migrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, progress{}.running(),
					now))
	case marking:
		return 0, t.mark(ctx, key, m)
	case migrating:
		return 0, t.migrate(ctx, key, m)
	case finishing:
		if err := t.finish(ctx, m); err != nil {
			return 0, err
		}
		return 0,
			t.write(ctx, key, m,
				with(m.Status, migrationv1.MigrationRunning, metav1.ConditionFalse, reasonCompleted,
					"Migration completed", now))
	}
	return 0, nil
}

func (t *term) write(
	ctx context.Context, key runtime.Key, m *migrationv1.StorageVersionMigration,
	status migrationv1.StorageVersionMigrationStatus,
) error {
	return runtime.WriteStatus(ctx, t.loop, key, t.migrations, m.Status, status,
		func() (*migrationv1.StorageVersionMigration, error) {
			next := m.DeepCopy()
			next.Status = status
			return t.client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, next,
				metav1.UpdateOptions{})
		})
}

func (t *term) fail(
	ctx context.Context, key runtime.Key, m *migrationv1.StorageVersionMigration, message string,
) error {
	return t.write(ctx, key, m,
		with(m.Status, migrationv1.MigrationFailed, metav1.ConditionTrue, reasonFailed, message, time.Now()))
}

// unserved waits for a resource, or fails with a message if it should be there by now. Right after
// a CRD is made, one server may know it while the next does not.
func (t *term) unserved(
	ctx context.Context, key runtime.Key, m *migrationv1.StorageVersionMigration, message string,
) error {
	if time.Since(m.CreationTimestamp.Time) < unknown {
		return fmt.Errorf("the API does not serve %s yet", m.Spec.Resource.String())
	}
	return t.fail(ctx, key, m, message)
}

// mark records the resource's revision: later writes are in the current version.
func (t *term) mark(ctx context.Context, key runtime.Key, m *migrationv1.StorageVersionMigration) error {
	r, gvr, err := t.find(m.Spec.Resource)
	if err != nil {
		return err
	}
	if r == nil {
		return t.unserved(ctx, key, m, "resource does not exist in discovery")
	}
	needed := []string{"update", "patch", "list"}
	for _, verb := range needed {
		if !slices.Contains(r.Verbs, verb) {
			return t.fail(ctx, key, m,
				fmt.Sprintf("resource %q does not support discovery operations: %v", gvr.String(), needed))
		}
	}
	list, err := t.meta.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("getting the latest resourceVersion of %s: %w", gvr.String(), err)
	}
	// One that has no order says of no object whether it is older.
	if _, err := resourceversion.CompareResourceVersion(list.ResourceVersion, list.ResourceVersion); err != nil {
		return t.fail(ctx, key, m, fmt.Sprintf("latest resourceVersion for %s is not valid: %v", gvr.String(), err))
	}
	status := *m.Status.DeepCopy()
	status.ResourceVersion = list.ResourceVersion
	return t.write(ctx, key, m, status)
}

// migrate writes the older objects again.
func (t *term) migrate(ctx context.Context, key runtime.Key, m *migrationv1.StorageVersionMigration) error {
	r, gvr, err := t.find(m.Spec.Resource)
	if err != nil {
		return err
	}
	if r == nil {
		return t.unserved(ctx, key, m, "migration encountered unhandled error: unable to obtain GVR from discovery")
	}
	older, total, err := t.olderThan(ctx, gvr, m.Status.ResourceVersion)
	if invalid := (resourceversion.InvalidResourceVersion{}); errors.As(err, &invalid) {
		return t.fail(ctx, key, m, fmt.Sprintf("migration encountered unhandled error: %v", err))
	}
	if err != nil {
		return err
	}
	p := progress{left: len(older), total: total}
	for _, obj := range older {
		err := t.rewrite(ctx, gvr, r.Kind, obj)
		switch {
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err):
			p.left--
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case passes(err):
			p.problem = err
			return errors.Join(err,
				t.write(ctx, key, m,
					with(m.Status, migrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, p.running(),
						time.Now())))
		default:
			m = m.DeepCopy()
			status := with(m.Status, migrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, p.running(),
				time.Now())
			return t.write(ctx, key, m, with(status, migrationv1.MigrationFailed, metav1.ConditionTrue, reasonFailed,
				fmt.Sprintf("%d/%d not yet migrated. migration encountered unhandled error: %v", p.left, p.total, err),
				time.Now()))
		}
	}
	status := with(m.Status, migrationv1.MigrationRunning, metav1.ConditionTrue, reasonRunning, p.running(), time.Now())
	return t.write(ctx, key, m,
		with(status, migrationv1.MigrationSucceeded, metav1.ConditionTrue, reasonSucceeded, "Migration completed",
			time.Now()))
}

// olderThan lists the objects that are not newer than a revision, and counts all.
func (t *term) olderThan(
	ctx context.Context, gvr schema.GroupVersionResource, revision string,
) (older []*metav1.PartialObjectMetadata, total int, err error) {
	opts := metav1.ListOptions{Limit: page}
	for {
		list, err := t.meta.Resource(gvr).List(ctx, opts)
		if err != nil {
			return nil, 0, fmt.Errorf("listing %s: %w", gvr.String(), err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			total++
			order, err := resourceversion.CompareResourceVersion(obj.ResourceVersion, revision)
			if err != nil {
				return nil, 0, fmt.Errorf("comparing the resourceVersion of %s %s: %w", gvr.Resource, obj.Name, err)
			}
			if order <= 0 {
				older = append(older, obj)
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return older, total, nil
		}
	}
}

// rewrite patches an object with nothing but its resourceVersion.
func (t *term) rewrite(
	ctx context.Context, gvr schema.GroupVersionResource, kind string, obj *metav1.PartialObjectMetadata,
) error {
	apiVersion, _ := gvr.GroupVersion().WithKind(kind).ToAPIVersionAndKind()
	patch, err := json.Marshal(
		map[string]any{"apiVersion": apiVersion, "kind": kind,
			"metadata": map[string]any{"resourceVersion": obj.ResourceVersion}})
	if err != nil {
		return err
	}
	_, err = t.meta.Resource(gvr).Namespace(obj.Namespace).Patch(ctx, obj.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: manager})
	return err
}

// passes reports whether a request that failed so may succeed later.
func passes(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsConnectionRefused(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		utilnet.IsProbableEOF(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}

// find returns a resource in the version that the API prefers, nil when it is not served.
func (t *term) find(gr metav1.GroupResource) (*metav1.APIResource, schema.GroupVersionResource, error) {
	lists, err := t.client.Discovery().ServerPreferredResources()
	partial := (*discovery.ErrGroupDiscoveryFailed)(nil)
	if err != nil && !errors.As(err, &partial) {
		return nil, schema.GroupVersionResource{}, fmt.Errorf("discovering the cluster's resources: %w", err)
	}
	for _, list := range lists {
		gv, parsed := schema.ParseGroupVersion(list.GroupVersion)
		if parsed != nil || gv.Group != gr.Group {
			continue
		}
		for i := range list.APIResources {
			if r := &list.APIResources[i]; r.Name == gr.Resource {
				return r, gv.WithResource(r.Name), nil
			}
		}
	}
	if partial != nil { // it may be of a group that did not answer
		return nil, schema.GroupVersionResource{}, fmt.Errorf("discovering the cluster's resources: %w", err)
	}
	return nil, schema.GroupVersionResource{}, nil
}
