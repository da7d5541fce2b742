// Package localvolumes is the node's part of the volumes that the cluster makes itself (see
// controllers/localprovisioner). It announces by annotations of the Node where this node's volumes
// are, and whether the node enforces their sizes. It passes on the sizes of volumes that grow. When
// a volume of the node is deleted, and the cluster must delete its data, it deletes the directory
// and then removes its finalizer from the volume. It does the same for volumes that were deleted
// while the node was down. Package kubelet/volumes makes directories, when a pod first needs them.
//
// On each volume it records whether the directory is there (see Record). So a rebuilt machine, a
// disk that is not mounted, or a restored backup is no silent loss of data.
//
// It sees the volumes of this node only, by their label, and may change only its finalizer
// and that record.
package localvolumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/barque/barque/internal/localpv"
)

// Directories are the directories of the node's volumes.
type Directories interface {
	Root() string
	Delete(pv *v1.PersistentVolume) error
	// Enforces reports whether volumes are limited to their sizes, and Limit sets a volume's limit.
	Enforces() (bool, error)
	Limit(pv *v1.PersistentVolume) error
	Names() ([]string, error)
	// Has reports whether the directory of a volume is there.
	Has(pv *v1.PersistentVolume) (bool, error)
}

// Config of an Agent.
type Config struct {
	NodeName    string
	Client      kubernetes.Interface // as the node
	Directories Directories
	// InUse reports whether a pod of the node still has a volume.
	InUse  func(pv string) (bool, error)
	Logger *slog.Logger
}

// Agent deletes the directories of volumes that are deleted.
type Agent struct {
	Config
	queue workqueue.TypedRateLimitingInterface[string]
	store cache.Store
	node  chan *v1.Node // of capacity 1: the newest
}

// Pauses before retries of failures, and of volumes that a pod still has.
const (
	firstRetry   = time.Second
	longestRetry = time.Minute
)

// New returns an agent. Nothing happens before Run.
func New(config Config) *Agent {
	return &Agent{
		Config: config, node: make(chan *v1.Node, 1),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, longestRetry)),
	}
}

// Observe takes the Node object of this node. It does not block.
func (a *Agent) Observe(n *v1.Node) {
	for {
		select {
		case a.node <- n:
			return
		default:
		}
		select { // make room: the newest counts
		case <-a.node:
		default:
		}
	}
}

// Run works until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	api := a.Client.CoreV1().PersistentVolumes()
	own := labels.SelectorFromSet(labels.Set{localpv.NodeLabel: a.NodeName}).String()
	queue := func(obj any) {
		if pv, ok := obj.(*v1.PersistentVolume); ok {
			a.queue.Add(pv.Name)
		}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
				opts.LabelSelector = own
				return api.List(ctx, opts)
			},
			WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				opts.LabelSelector = own
				return api.Watch(ctx, opts)
			},
		}, a.Client),
		ObjectType: &v1.PersistentVolume{},
		Handler:    cache.ResourceEventHandlerFuncs{AddFunc: queue, UpdateFunc: func(_, obj any) { queue(obj) }},
	})
	a.store = store
	var parts sync.WaitGroup
	parts.Go(func() { controller.RunWithContext(ctx) }) // ends with ctx
	parts.Go(func() { a.annotate(ctx) })                // ends with ctx
	parts.Go(func() {                                   // ends when the queue is shut down
		for a.next(ctx) {
		}
	})
	if cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
		a.logUnknown()
	}
	<-ctx.Done()
	a.queue.ShutDown()
	parts.Wait()
	return nil
}

// logUnknown logs the directories without a volume: the volume was deleted by hand, or while this
// machine was no node of the cluster. Only people know whether the data is wanted.
func (a *Agent) logUnknown() {
	names, err := a.Directories.Names()
	if err != nil {
		a.Logger.Warn("cannot list the directories of local volumes", "err", err)
	}
	for _, name := range names {
		if _, known, _ := a.store.GetByKey(name); !known {
			a.Logger.Warn("no volume of the cluster has this directory: delete it if its data is not wanted",
				"directory", localpv.Path(a.Directories.Root(), name))
		}
	}
}

// annotateRetry is the pause after a failure to annotate the Node.
const annotateRetry = 5 * time.Second

// annotate keeps the annotations of the Node true.
func (a *Agent) annotate(ctx context.Context) {
	enforces, err := a.Directories.Enforces()
	if err != nil {
		a.Logger.Warn("cannot tell whether this disk keeps volumes at their sizes; saying that it does not", "err",
			err)
	}
	annotations := map[string]string{localpv.RootAnnotation: a.Directories.Root(),
		localpv.EnforcedAnnotation: strconv.FormatBool(enforces)}
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-a.node:
			if n.Annotations[localpv.RootAnnotation] == annotations[localpv.RootAnnotation] &&
				n.Annotations[localpv.EnforcedAnnotation] == annotations[localpv.EnforcedAnnotation] {
				continue
			}
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
		if err == nil {
			_, err = a.Client.CoreV1().Nodes().Patch(ctx, a.NodeName, types.MergePatchType, patch,
				metav1.PatchOptions{})
		}
		if err == nil || ctx.Err() != nil {
			continue // the node's next version is looked at again
		}
		a.Logger.Warn("cannot say on the Node where local volumes are; trying again", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(annotateRetry):
			a.again(ctx)
		}
	}
}

// again reads the Node object, because an unchanged one causes no event.
func (a *Agent) again(ctx context.Context) {
	n, err := a.Client.CoreV1().Nodes().Get(ctx, a.NodeName, metav1.GetOptions{})
	if err != nil {
		n = &v1.Node{}
	}
	a.Observe(n)
}

func (a *Agent) next(ctx context.Context) bool {
	name, shutdown := a.queue.Get()
	if shutdown {
		return false
	}
	defer a.queue.Done(name)
	if err := a.reconcile(ctx, name); err != nil && ctx.Err() == nil {
		if !errors.Is(err, errInUse) {
			a.Logger.Warn("cannot delete, limit or record a local volume; trying again", "volume", name, "err", err)
		}
		a.queue.AddRateLimited(name)
		return true
	}
	a.queue.Forget(name)
	return true
}

// errInUse is returned while a pod of the node still has a volume.
var errInUse = errors.New("a pod still has the volume")

// act is the action for a volume.
type act int

const (
	leave      act = iota
	deleteData     // and then release
	release        // take the finalizer off
)

// decide returns the action for a volume: nothing before it is deleted and no claim is bound to it.
func decide(pv *v1.PersistentVolume, node string) act {
	switch {
	case !localpv.OnNode(pv, node), pv.DeletionTimestamp == nil, !slices.Contains(pv.Finalizers, localpv.Finalizer),
		pv.Status.Phase == v1.VolumeBound, slices.Contains(pv.Finalizers, "kubernetes.io/pv-protection"):
		return leave
	case pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete:
		return deleteData
	}
	return release
}

// observe records whether a volume's directory is there. A volume of an earlier version has no
// record yet; without a directory it may never have had one.
func (a *Agent) observe(ctx context.Context, pv *v1.PersistentVolume) error {
	has, err := a.Directories.Has(pv)
	if err != nil {
		return err
	}
	record, is := NewRecord(a.Client, a.Logger), pv.Annotations[localpv.DirectoryAnnotation]
	switch {
	case has && is != localpv.Made:
		err = record.Made(ctx, pv)
	case !has && is == localpv.Made:
		_, err = record.gone(ctx, pv.Name, func() (bool, error) { return a.Directories.Has(pv) })
	}
	return err
}

func (a *Agent) reconcile(ctx context.Context, name string) error {
	obj, ok, err := a.store.GetByKey(name)
	if err != nil || !ok {
		return err
	}
	pv, ok := obj.(*v1.PersistentVolume)
	if !ok {
		return nil
	}
	switch decide(pv, a.NodeName) {
	case leave:
		if pv.DeletionTimestamp == nil && localpv.OnNode(pv, a.NodeName) {
			return errors.Join(a.observe(ctx, pv), a.Directories.Limit(pv))
		}
		return nil
	case deleteData:
		used, err := a.InUse(name)
		if err != nil {
			return err
		}
		if used {
			return errInUse
		}
		if err := a.Directories.Delete(pv); err != nil {
			return err
		}
		a.Logger.Info("a local volume was deleted, with its data", "volume", name, "directory", pv.Spec.Local.Path)
	}
	next := pv.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == localpv.Finalizer })
	if _, err := a.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("take the finalizer off the volume: %w", err)
	}
	return nil
}
