package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	// Custom makes informers of custom resources, which live as long as the process.
	Custom dynamicinformer.DynamicSharedInformerFactory
	Logger *slog.Logger
	// ConfigFor makes the configuration of further clients of a term.
	ConfigFor func(lead context.Context) *rest.Config
	// Servers are the members of the cluster; Self is the name of this one.
	Servers Servers
	Self    string
	// Workers is how many files are worked on at once. Default 2.
	Workers int
}

// Controller applies files.
type Controller struct {
	cfg       Config
	manifests cache.SharedIndexInformer
	secrets   cache.SharedIndexInformer
	list      corelisters.SecretLister
}

// bySecretType is the index of the Secrets with contents, all under one key.
const bySecretType = "barque.io/manifest-contents"

// New asks the factories for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 2
	}
	secrets := cfg.Informers.Core().V1().Secrets()
	c := &Controller{cfg: cfg, manifests: cfg.Custom.ForResource(Resource).Informer(), secrets: secrets.Informer(),
		list: secrets.Lister()}
	return c, runtime.EnsureIndex(c.secrets, bySecretType, func(obj any) ([]string, error) {
		if s, ok := obj.(*corev1.Secret); ok && hashOf(s) != "" {
			return []string{""}, nil
		}
		return nil, nil
	})
}

// How soon a file is applied again whose objects were refused, at first and at most. An object may
// wait for a definition of another file.
const (
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
	// sweepEvery is the interval at which removed servers, and contents without a file, are looked
	// for. sweepAfter is the age of such a content: its server may be about to write the Manifest.
	sweepEvery = time.Minute
	sweepAfter = 10 * time.Minute
)

// term is the controller's work of one term of leadership.
type term struct {
	*Controller
	cluster  cluster
	recorder record.EventRecorder
	loop     *runtime.Loop

	mu       sync.Mutex
	failures map[runtime.Key]int // of the content that counts, in a row
}

// Run works for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	objects, err := newCluster(client, c.cfg.ConfigFor(ctx))
	if err != nil {
		return err
	}
	recorder, stop := runtime.Recorder(ctx, client, "manifests")
	defer stop()
	return c.lead(ctx, objects, recorder)
}

// lead works with a cluster, which may be a test's.
func (c *Controller) lead(ctx context.Context, objects cluster, recorder record.EventRecorder) error {
	t := &term{Controller: c, cluster: objects, recorder: recorder, failures: map[runtime.Key]int{}}
	t.loop = runtime.NewLoop("manifests", c.cfg.Workers, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.manifests, runtime.Itself[unstructured.Unstructured])
	// A content may be seen after the file that has it.
	runtime.Watch(t.loop, c.secrets, func(_, now *corev1.Secret) []runtime.Key {
		if now == nil || hashOf(now) == "" {
			return nil
		}
		return t.withContent(hashOf(now))
	})
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(func() { t.sweep(ctx) }) // ends with ctx
	return t.loop.Run(ctx)
}

// withContent returns the Manifests with a source of this content.
func (t *term) withContent(hash string) (keys []runtime.Key) {
	for _, o := range t.all() {
		if slices.ContainsFunc(o.Spec.Sources, func(s Source) bool { return s.Hash == hash }) {
			keys = append(keys, runtime.KeyOf(o))
		}
	}
	return keys
}

func (c *Controller) all() (out []*Object) {
	for _, obj := range c.manifests.GetStore().List() {
		if u, ok := obj.(*unstructured.Unstructured); ok {
			if o, err := Read(u); err == nil {
				out = append(out, o)
			}
		}
	}
	return out
}

// sweep looks for what no event announces, until ctx ends.
func (t *term) sweep(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !t.manifests.HasSynced() || !t.secrets.HasSynced() {
			continue
		}
		used := map[string]bool{}
		for _, o := range t.all() {
			if len(gone(o.Spec.Sources, t.cfg.Servers.Names(), t.cfg.Self)) > 0 {
				t.loop.Add(runtime.KeyOf(o))
			}
			for _, s := range o.Spec.Sources {
				used[s.Hash] = true
			}
		}
		contents, _ := runtime.ByIndex[corev1.Secret](t.secrets, bySecretType, "") // New has made the index
		for _, s := range contents {
			if used[hashOf(s)] || time.Since(s.CreationTimestamp.Time) < sweepAfter {
				continue
			}
			if err := t.cluster.DeleteContent(ctx, s); err != nil {
				t.cfg.Logger.Warn("deleting the content of a file that no server has", "secret", s.Name, "err", err)
			}
		}
	}
}

// reconcile applies one file, or prunes what it had.
func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	obj, exists, err := t.manifests.GetStore().GetByKey(key.Name)
	if err != nil || !exists {
		t.forget(key)
		return 0, err
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u.GetDeletionTimestamp() != nil {
		return 0, nil
	}
	o, err := Read(u)
	if err != nil {
		return 0, err
	}
	if lost := gone(o.Spec.Sources, t.cfg.Servers.Names(), t.cfg.Self); len(lost) > 0 {
		rv, err := t.cluster.DropSources(ctx, u, lost)
		if err == nil {
			t.loop.Writes().Wrote(key, t.manifests, rv)
			t.cfg.Logger.Info("a file of a server that was removed does not count any more", "manifest", o.Name,
				"servers", lost)
		}
		return 0, err
	}
	counts, ok := counted(o.Spec.Sources)
	if !ok {
		return t.remove(ctx, key, u, o)
	}
	differs := differing(o.Spec.Sources, counts)
	if o.Status.Applied == counts.Hash && meta.IsStatusConditionTrue(o.Status.Conditions, Applied) {
		t.forget(key)
		return 0, t.write(ctx, key, o, differs, nil)
	}
	secret, err := t.list.Secrets(SecretNamespace).Get(SecretName(counts.Hash))
	if apierrors.IsNotFound(err) {
		return 0, nil // its server writes it, and the informer will show it
	}
	if err != nil {
		return 0, err
	}
	content, err := unpack(secret)
	if err != nil {
		return 0, t.write(ctx, key, o, differs, &outcome{"ContentChanged", err})
	}
	wanted, err := Parse(content)
	if err != nil {
		return 0, t.write(ctx, key, o, differs, &outcome{"Invalid", err})
	}
	if err := t.apply(ctx, o, wanted); err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		again := t.failed(key)
		return again, t.write(ctx, key, o, differs, &outcome{"Failed", err})
	}
	t.forget(key)
	o.Status.Applied = counts.Hash
	return 0, t.write(ctx, key, o, differs, &outcome{"Applied", nil})
}

// failed counts a failure, and returns when the file is tried again.
func (t *term) failed(key runtime.Key) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures[key]++
	return min(firstRetry<<min(t.failures[key]-1, 10), lastRetry)
}

func (t *term) forget(key runtime.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.failures, key)
}

// apply applies the objects of a file, and prunes what it does not have any more.
func (t *term) apply(ctx context.Context, o *Object, wanted []*unstructured.Unstructured) error {
	var applied []Ref
	rest := wanted
	for round := 0; len(rest) > 0; round++ {
		var known, unknown []*unstructured.Unstructured
		var errs []error
		for _, u := range rest {
			namespaced, err := t.cluster.Namespaced(u.GroupVersionKind())
			if err != nil {
				unknown, errs = append(unknown, u), append(errs, fmt.Errorf("%s: %w", refOf(u), err))
				continue
			}
			inDefault(u, namespaced)
			known = append(known, u)
		}
		if len(known) > 0 {
			refs := make([]Ref, 0, len(known))
			for _, u := range known {
				refs = append(refs, refOf(u))
			}
			if fresh := without(refs, o.Status.Objects); len(fresh) > 0 {
				o.Status.Objects = append(o.Status.Objects, fresh...)
				if err := t.note(ctx, o); err != nil {
					return err
				}
			}
			for _, u := range known {
				mark(u, o.Name)
				if err := t.cluster.Apply(ctx, u); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", refOf(u), err))
				}
			}
			applied = append(applied, refs...)
		}
		// Definitions that were just applied may have made more kinds known.
		if len(unknown) == 0 || len(known) == 0 || round > 2 || len(errs) > len(unknown) {
			if err := errors.Join(errs...); err != nil {
				return err
			}
			break
		}
		rest = unknown
	}
	if err := t.prune(ctx, o.Name, without(o.Status.Objects, applied)); err != nil {
		return err
	}
	o.Status.Objects = applied
	return nil
}

// prune deletes objects, the last applied ones first.
func (t *term) prune(ctx context.Context, manifest string, refs []Ref) error {
	var errs []error
	for _, r := range slices.Backward(refs) {
		if err := t.cluster.Prune(ctx, r, manifest); err != nil {
			errs = append(errs, fmt.Errorf("prune %s: %w", r, err))
		}
	}
	return errors.Join(errs...)
}

// remove prunes the objects of a file that no server has, and deletes its Manifest.
func (t *term) remove(
	ctx context.Context, key runtime.Key, u *unstructured.Unstructured, o *Object,
) (time.Duration, error) {
	if err := t.prune(ctx, o.Name, o.Status.Objects); err != nil {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return t.failed(key), t.write(ctx, key, o, "", &outcome{"Failed", err})
	}
	t.forget(key)
	if err := t.cluster.Delete(ctx, u); err != nil {
		return 0, err
	}
	t.cfg.Logger.Info("a file has gone, and what was applied for it", "manifest", o.Name, "objects",
		len(o.Status.Objects))
	t.loop.Writes().Deleted(key, t.manifests, key, o.UID)
	return 0, nil
}

// outcome is how applying a file ended.
type outcome struct {
	reason string
	err    error
}

// maxMessage bounds a condition's message, in bytes.
const maxMessage = 2000

// note writes the list of objects, before they are applied.
func (t *term) note(ctx context.Context, o *Object) error {
	_, err := t.cluster.WriteStatus(ctx, o)
	return err
}

// write brings the status up to date. An event is recorded when a condition changes.
func (t *term) write(ctx context.Context, key runtime.Key, o *Object, differs string, how *outcome) error {
	before, count := slices.Clone(o.Status.Conditions), o.Status.Count
	o.Status.Count = int32(len(o.Status.Objects))
	agreed := metav1.Condition{Type: Agreed, Status: metav1.ConditionTrue, Reason: "Same",
		Message: "All servers with the file have the same content", ObservedGeneration: 0}
	if differs != "" {
		agreed.Status, agreed.Reason, agreed.Message = metav1.ConditionFalse, "Differs", differs
	}
	changed := meta.SetStatusCondition(&o.Status.Conditions, agreed)
	if changed && differs != "" {
		t.recorder.Event(t.reference(o), corev1.EventTypeWarning, "ContentsDiffer", differs)
	}
	if how != nil {
		applied := metav1.Condition{Type: Applied, Status: metav1.ConditionTrue, Reason: how.reason,
			Message: fmt.Sprintf("%d objects are applied", len(o.Status.Objects))}
		kind := corev1.EventTypeNormal
		if how.err != nil {
			applied.Status, applied.Message = metav1.ConditionFalse, bounded(how.err.Error())
			kind = corev1.EventTypeWarning
		}
		if meta.SetStatusCondition(&o.Status.Conditions, applied) || how.err == nil {
			changed = true
			t.recorder.Event(t.reference(o), kind, how.reason, applied.Message)
			if how.err != nil {
				t.cfg.Logger.Warn("a file of the directory manifests is not applied", "manifest", o.Name, "err",
					how.err)
			}
		}
	}
	if !changed && count == o.Status.Count {
		o.Status.Conditions = before
		return nil
	}
	rv, err := t.cluster.WriteStatus(ctx, o)
	if apierrors.IsNotFound(err) {
		return nil // somebody has deleted it; its servers write it again
	}
	if err == nil {
		t.loop.Writes().Wrote(key, t.manifests, rv)
	}
	return err
}

func bounded(message string) string {
	message = strings.ReplaceAll(message, "\n", "; ")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + " …"
	}
	return message
}

func (t *term) reference(o *Object) *corev1.ObjectReference {
	// Events of objects without a namespace are in default.
	return &corev1.ObjectReference{APIVersion: Kind.GroupVersion().String(), Kind: Kind.Kind, Name: o.Name, UID: o.UID}
}

// patchStatus is the merge patch of a status.
func patchStatus(o *Object) ([]byte, error) {
	return json.Marshal(map[string]any{"status": map[string]any{
		"applied": o.Status.Applied, "count": o.Status.Count, "objects": orEmpty(o.Status.Objects),
		"conditions": orEmpty(o.Status.Conditions),
	}})
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// preconditions name the object that was read.
func preconditions(o metav1.Object) metav1.DeleteOptions {
	uid, rv := o.GetUID(), o.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &rv}}
}

// applyOptions are those of all objects of files. Files win over changes by hand.
var applyOptions = metav1.ApplyOptions{FieldManager: "barque-manifests", Force: true}

// statusOptions are those of statuses.
var statusOptions = metav1.PatchOptions{FieldManager: "barque-manifests-status"}

// asRead keeps a deletion to the object as it was read: another Manifest may have taken it since.
func asRead(uid types.UID, resourceVersion string) metav1.DeleteOptions {
	background := metav1.DeletePropagationBackground
	return metav1.DeleteOptions{PropagationPolicy: &background,
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion}}
}
