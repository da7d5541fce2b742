package localprovisioner

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/localpv"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	// DefaultClass is the name of the class that is laid down once; "" is none.
	DefaultClass string
	Logger       *slog.Logger
}

// Controller makes and deletes local volumes.
type Controller struct {
	cfg                          Config
	claims, volumes, nodes       cache.SharedIndexInformer
	classes, drivers, capacities cache.SharedIndexInformer
	listClaims                   corelisters.PersistentVolumeClaimLister
	listVolumes                  corelisters.PersistentVolumeLister
	listNodes                    corelisters.NodeLister
	listClasses                  storagelisters.StorageClassLister
	listDrivers                  storagelisters.CSIDriverLister
	listCapacities               storagelisters.CSIStorageCapacityLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	core, storage := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1()
	return &Controller{
		cfg:    cfg,
		claims: core.PersistentVolumeClaims().Informer(), listClaims: core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Informer(), listVolumes: core.PersistentVolumes().Lister(),
		nodes: core.Nodes().Informer(), listNodes: core.Nodes().Lister(),
		classes: storage.StorageClasses().Informer(), listClasses: storage.StorageClasses().Lister(),
		drivers: storage.CSIDrivers().Informer(), listDrivers: storage.CSIDrivers().Lister(),
		capacities: storage.CSIStorageCapacities().Informer(), listCapacities: storage.CSIStorageCapacities().Lister(),
	}, nil
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder

	claimLoop, volumeLoop, capacityLoop *runtime.Loop
}

// Run works for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, localpv.Provisioner)
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder}
	t.claimLoop = runtime.NewLoop("localprovisioner", 2, c.cfg.Logger, t.reconcileClaim)
	t.volumeLoop = runtime.NewLoop("localvolumes", 2, c.cfg.Logger, t.reconcileVolume)
	t.capacityLoop = runtime.NewLoop("localcapacity", 1, c.cfg.Logger, t.reconcileCapacity)
	runtime.Watch(t.claimLoop, c.claims, func(_, now *corev1.PersistentVolumeClaim) []runtime.Key {
		if now == nil || !ours(now) {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.claimLoop, c.classes, t.claimsOfClass)
	runtime.Watch(t.volumeLoop, c.volumes, func(_, now *corev1.PersistentVolume) []runtime.Key {
		if now == nil || !localpv.Is(now) {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.volumeLoop, c.claims, func(_, now *corev1.PersistentVolumeClaim) []runtime.Key {
		if now == nil || now.Spec.VolumeName == "" {
			return nil
		}
		return []runtime.Key{{Name: now.Spec.VolumeName}}
	})
	runtime.Watch(t.volumeLoop, c.nodes, t.volumesOfGoneNode)
	t.watchCapacity()
	return lifecycle.All(ctx, t.claimLoop.Run, t.volumeLoop.Run, t.capacityLoop.Run, t.layDown)
}

// claimsOfClass wakes the claims that wait for a class, which has come or changed.
func (t *term) claimsOfClass(_, now *storagev1.StorageClass) []runtime.Key {
	if now == nil || now.Provisioner != localpv.Provisioner {
		return nil
	}
	var keys []runtime.Key
	for _, obj := range t.claims.GetStore().List() {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && ours(claim) && className(claim) == now.Name {
			keys = append(keys, runtime.KeyOf(claim))
		}
	}
	return keys
}

// volumesOfGoneNode wakes the volumes of a node that has left the cluster.
func (t *term) volumesOfGoneNode(old, now *corev1.Node) []runtime.Key {
	if now != nil {
		return nil
	}
	var keys []runtime.Key
	for _, obj := range t.volumes.GetStore().List() {
		if volume, ok := obj.(*corev1.PersistentVolume); ok && localpv.Is(volume) &&
			volume.Labels[localpv.NodeLabel] == old.Name {
			keys = append(keys, runtime.KeyOf(volume))
		}
	}
	return keys
}

// retryFailed is how often a claim is looked at again that cannot be helped as it is.
const retryFailed = time.Minute

func (t *term) reconcileClaim(ctx context.Context, key runtime.Key) (time.Duration, error) {
	claim, err := t.listClaims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !ours(claim) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if _, err := t.listVolumes.Get(volumeName(claim)); err == nil {
		return 0, nil // the binder has the volume
	}
	class, err := t.listClasses.Get(className(claim))
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	node, err := t.node(ctx, claim.Annotations[selectedNodeAnnotation])
	if err != nil {
		return 0, err
	}
	switch plan := decideClaim(claim, class, node); {
	case plan.create != nil:
		return 0, t.create(ctx, key, claim, plan.create, node.Annotations[localpv.EnforcedAnnotation] == "true")
	case plan.failure != "":
		t.recorder.Eventf(claim, corev1.EventTypeWarning, "ProvisioningFailed",
			"failed to provision volume with StorageClass %q: %s", class.Name, plan.failure)
		if plan.reselect {
			return 0, t.reselect(ctx, key, claim)
		}
		return retryFailed, nil
	}
	return 0, nil
}

// node finds a node, or returns nil when the API server says that it is not there.
func (t *term) node(ctx context.Context, name string) (*corev1.Node, error) {
	if name == "" {
		return nil, nil
	}
	node, err := t.listNodes.Get(name)
	if apierrors.IsNotFound(err) { // the informer may be behind
		node, err = t.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return node, err
}

func (t *term) create(
	ctx context.Context, key runtime.Key, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume,
	enforced bool,
) error {
	t.recorder.Eventf(claim, corev1.EventTypeNormal, "Provisioning",
		"External provisioner is provisioning volume for claim %q", key)
	made, err := t.client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // an earlier try has made it, or an earlier term
	}
	if err != nil {
		return fmt.Errorf("making the volume of claim %s: %w", key, err)
	}
	t.claimLoop.Writes().Wrote(key, t.volumes, made.ResourceVersion)
	t.recorder.Eventf(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s",
		made.Name)
	if !enforced {
		t.recorder.Eventf(claim, corev1.EventTypeNormal, "CapacityNotEnforced",
			"Nothing keeps volume %s at %s: it may fill the disk of node %s",
			made.Name, made.Spec.Capacity.Storage(), made.Labels[localpv.NodeLabel])
	}
	return nil
}

// reselect takes back the choice of a node where the volume cannot be.
func (t *term) reselect(ctx context.Context, key runtime.Key, claim *corev1.PersistentVolumeClaim) error {
	next := claim.DeepCopy()
	delete(next.Annotations, selectedNodeAnnotation)
	next, err := t.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("giving up the selected node of claim %s: %w", key, err)
	}
	t.claimLoop.Writes().Wrote(key, t.claims, next.ResourceVersion)
	return nil
}

func (t *term) reconcileVolume(ctx context.Context, key runtime.Key) (time.Duration, error) {
	volume, err := t.listVolumes.Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !localpv.Is(volume) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var claim *corev1.PersistentVolumeClaim
	if ref := volume.Spec.ClaimRef; ref != nil {
		if claim, err = t.listClaims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); apierrors.IsNotFound(err) {
			claim, err = nil, nil
		}
		if err != nil {
			return 0, err
		}
	}
	hasNode := true
	if volume.DeletionTimestamp != nil {
		node, err := t.node(ctx, volume.Labels[localpv.NodeLabel])
		if err != nil {
			return 0, err
		}
		hasNode = node != nil
	}
	return 0, t.act(ctx, key, decideVolume(volume, claim, hasNode), volume, claim)
}

func (t *term) act(
	ctx context.Context, key runtime.Key, act volumeAct, volume *corev1.PersistentVolume,
	claim *corev1.PersistentVolumeClaim,
) error {
	volumes := t.client.CoreV1().PersistentVolumes()
	next := volume.DeepCopy()
	var err error
	switch act {
	case nothing:
		return nil
	case deleteVolume:
		err = volumes.Delete(ctx, volume.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &volume.UID, ResourceVersion: &volume.ResourceVersion}})
		if err == nil {
			t.volumeLoop.Writes().Deleted(key, t.volumes, key, volume.UID)
		}
	case abandon:
		t.recorder.Eventf(volume, corev1.EventTypeWarning, "DataNotDeleted",
			"Node %q is not in the cluster any more: nobody has deleted %s there",
			volume.Labels[localpv.NodeLabel], volume.Spec.Local.Path)
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == localpv.Finalizer })
		_, err = volumes.Update(ctx, next, metav1.UpdateOptions{})
	case grow:
		next.Spec.Capacity[corev1.ResourceStorage] = claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if next, err = volumes.Update(ctx, next, metav1.UpdateOptions{}); err == nil {
			t.volumeLoop.Writes().Wrote(key, t.volumes, next.ResourceVersion)
		}
	case tellGrown:
		return t.tellGrown(ctx, key, volume, claim.DeepCopy())
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("volume %s: %w", volume.Name, err)
	}
	return nil
}

// tellGrown ends the expansion of a claim: the size of a directory is a number, or the node sets
// its limit.
func (t *term) tellGrown(
	ctx context.Context, key runtime.Key, volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim,
) error {
	if claim.Status.Capacity == nil {
		claim.Status.Capacity = corev1.ResourceList{}
	}
	claim.Status.Capacity[corev1.ResourceStorage] = volume.Spec.Capacity[corev1.ResourceStorage]
	claim.Status.Conditions = slices.DeleteFunc(claim.Status.Conditions,
		func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimResizing ||
				c.Type == corev1.PersistentVolumeClaimFileSystemResizePending
		})
	claim, err := t.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim,
		metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("telling a claim the size of volume %s: %w", volume.Name, err)
	}
	t.volumeLoop.Writes().Wrote(key, t.claims, claim.ResourceVersion)
	t.recorder.Event(claim, corev1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
	return nil
}
