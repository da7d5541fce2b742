package attachdetach

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/pods"
	"github.com/barque/barque/controllers/runtime"
)

// DefaultForceAfter is how long a node that is not ready keeps a volume without users.
const DefaultForceAfter = 6 * time.Minute

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// ForceAfter is the time after which a volume is detached from a node that is not ready, though
	// the node may use it. 0 means never: the taint out-of-service must declare the node off.
	ForceAfter time.Duration
}

// Controller attaches and detaches volumes.
type Controller struct {
	cfg         Config
	volumes     cache.SharedIndexInformer
	claims      cache.SharedIndexInformer
	pods        cache.SharedIndexInformer
	nodes       cache.SharedIndexInformer
	attachments cache.SharedIndexInformer
	listVolumes corelisters.PersistentVolumeLister
	listClaims  corelisters.PersistentVolumeClaimLister
	listNodes   corelisters.NodeLister
	listDrivers storagelisters.CSIDriverLister
}

// Names of the indexes of VolumeAttachments.
const (
	byVolume = "barque/volume"
	byNode   = "barque/node"
)

// onNode is the namespace of the keys that are nodes. A name of a namespace has no space.
const onNode = "the node"

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	core, storage := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1()
	c := &Controller{
		cfg:     cfg,
		volumes: core.PersistentVolumes().Informer(), listVolumes: core.PersistentVolumes().Lister(),
		claims: core.PersistentVolumeClaims().Informer(), listClaims: core.PersistentVolumeClaims().Lister(),
		nodes: core.Nodes().Informer(), listNodes: core.Nodes().Lister(),
		pods:        core.Pods().Informer(),
		attachments: storage.VolumeAttachments().Informer(),
		listDrivers: storage.CSIDrivers().Lister(),
	}
	storage.CSIDrivers().Informer()
	if err := pods.EnsureClaimIndex(c.pods); err != nil {
		return nil, err
	}
	if err := runtime.EnsureIndex(c.attachments, byNode, func(obj any) ([]string, error) {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok {
			return []string{a.Spec.NodeName}, nil
		}
		return nil, nil
	}); err != nil {
		return nil, err
	}
	return c, runtime.EnsureIndex(c.attachments, byVolume, func(obj any) ([]string, error) {
		if a, ok := obj.(*storagev1.VolumeAttachment); ok && a.Spec.Source.PersistentVolumeName != nil {
			return []string{*a.Spec.Source.PersistentVolumeName}, nil
		}
		return nil, nil
	})
}

// Run attaches and detaches for one term of leadership. The keys are volumes, and the nodes whose
// status lists their attached volumes.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "attachdetach-controller")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder, unused: map[string]map[string]time.Time{},
		detaching: map[types.UID]bool{}}
	t.loop = runtime.NewLoop("attachdetach", 4, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.volumes, func(old, now *corev1.PersistentVolume) []runtime.Key {
		if old != nil && now != nil && apiequality.Semantic.DeepEqual(old.Spec, now.Spec) {
			return nil
		}
		if old != nil && (now == nil || now.UID != old.UID) {
			t.checked.Forget(old.UID)
		}
		return runtime.Itself(old, now)
	})
	runtime.Watch(t.loop, c.claims, func(old, now *corev1.PersistentVolumeClaim) []runtime.Key {
		if now == nil || now.Spec.VolumeName == "" ||
			old != nil && old.Spec.VolumeName == now.Spec.VolumeName && old.Status.Phase == now.Status.Phase {
			return nil
		}
		return []runtime.Key{{Name: now.Spec.VolumeName}}
	})
	runtime.Watch(t.loop, c.pods, func(old, now *corev1.Pod) []runtime.Key {
		before, after := old != nil && needsVolumes(old), now != nil && needsVolumes(now)
		switch {
		case before == after && (old == nil || now == nil || old.UID == now.UID):
			return nil
		case now == nil:
			return c.volumesOf(old)
		}
		return c.volumesOf(now)
	})
	runtime.Watch(t.loop, c.nodes, func(old, now *corev1.Node) []runtime.Key {
		if old != nil && now != nil && ready(old) == ready(now) && outOfService(old) == outOfService(now) &&
			slices.Equal(old.Status.VolumesInUse, now.Status.VolumesInUse) &&
			slices.Equal(old.Status.VolumesAttached, now.Status.VolumesAttached) {
			return nil
		}
		name := runtime.Itself(old, now)[0].Name
		keys := []runtime.Key{{Namespace: onNode, Name: name}}
		list, _ := runtime.ByIndex[storagev1.VolumeAttachment](c.attachments, byNode, name) // the index exists
		for _, a := range list {
			keys = append(keys, volumeKeys(a)...)
		}
		return keys
	})
	runtime.Watch(t.loop, c.attachments, func(old, now *storagev1.VolumeAttachment) []runtime.Key {
		t.tell(old, now)
		if old != nil && (now == nil || now.UID != old.UID) {
			t.checked.Forget(old.UID)
			t.stays(old.UID)
		}
		a := now
		if a == nil {
			a = old
		}
		return append(volumeKeys(a), runtime.Key{Namespace: onNode, Name: a.Spec.NodeName})
	})
	return t.loop.Run(ctx)
}

func volumeKeys(a *storagev1.VolumeAttachment) []runtime.Key {
	if a.Spec.Source.PersistentVolumeName == nil {
		return nil
	}
	return []runtime.Key{{Name: *a.Spec.Source.PersistentVolumeName}}
}

// volumesOf are the volumes of a pod's claims.
func (c *Controller) volumesOf(pod *corev1.Pod) []runtime.Key {
	var keys []runtime.Key
	for i := range pod.Spec.Volumes {
		if name := pods.ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
			if claim, err := c.listClaims.PersistentVolumeClaims(pod.Namespace).Get(name); err == nil &&
				claim.Spec.VolumeName != "" {
				keys = append(keys, runtime.Key{Name: claim.Spec.VolumeName})
			}
		}
	}
	return keys
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client   kubernetes.Interface
	recorder record.EventRecorder
	loop     *runtime.Loop

	mu sync.Mutex
	// unused is since when an attached volume has no users on a node, by volume and node.
	unused map[string]map[string]time.Time
	// detaching are the attachments that left the status of their nodes, before they are deleted.
	detaching map[types.UID]bool
	// checked are the attachments whose volume had no users at the API server, and the volumes that
	// had some.
	checked runtime.Seen
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	if key.Namespace == onNode {
		return 0, t.reconcileNode(ctx, key)
	}
	volume, err := t.listVolumes.Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	v, err := t.view(key.Name, volume)
	if err != nil {
		return 0, err
	}
	p := decide(v)
	for pod, why := range p.refused {
		t.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedAttachVolume", "Multi-Attach error for volume %q %s",
			key.Name, why)
	}
	for _, node := range p.forced {
		t.cfg.Logger.Warn("detaching a volume from a node that may still use it", "volume", key.Name, "node", node)
	}
	for _, node := range p.attach {
		needed, err := t.needed(ctx, volume, node)
		if err != nil {
			return 0, err
		}
		if !needed { // the informers are behind
			p.again = runtime.Retry
			continue
		}
		if err := t.attach(ctx, key, volume, node); err != nil {
			return 0, err
		}
	}
	for _, node := range p.detach {
		used, err := t.used(ctx, key.Name, v.attachments[node])
		if err != nil {
			return 0, err
		}
		if used { // the informers are behind
			p.again = runtime.Retry
			continue
		}
		if err := t.detach(ctx, key, v.attachments[node]); err != nil {
			return 0, err
		}
	}
	return p.again, nil
}

// view gathers the state of a volume; nil is a deleted volume.
func (t *term) view(name string, volume *corev1.PersistentVolume) (view, error) {
	v := view{
		users: map[string][]*corev1.Pod{}, attachments: map[string]*storagev1.VolumeAttachment{},
		nodes: map[string]nodeView{},
		now:   time.Now(), forceAfter: t.cfg.ForceAfter,
	}
	list, err := runtime.ByIndex[storagev1.VolumeAttachment](t.attachments, byVolume, name)
	if err != nil {
		return v, err
	}
	for _, a := range list {
		if isOurs(a) {
			v.attachments[a.Spec.NodeName] = a
		}
	}
	var unique corev1.UniqueVolumeName
	if volume != nil && volume.Spec.CSI != nil {
		v.shared = sharable(volume)
		unique = uniqueName(volume)
		if v.users, err = t.users(volume); err != nil {
			return v, err
		}
	}
	for _, node := range slices.Concat(slices.Collect(maps.Keys(v.attachments)), slices.Collect(maps.Keys(v.users))) {
		n, err := t.listNodes.Get(node)
		if err != nil && !apierrors.IsNotFound(err) {
			return v, err
		}
		if err == nil {
			v.nodes[node] = nodeView{exists: true, ready: ready(n), outOfService: outOfService(n),
				inUse: slices.Contains(n.Status.VolumesInUse, unique)}
		}
	}
	v.unused = t.remember(name, v)
	return v, nil
}

// users are the pods that need an attachment of a volume, by node.
func (t *term) users(volume *corev1.PersistentVolume) (map[string][]*corev1.Pod, error) {
	ref := volume.Spec.ClaimRef
	if ref == nil {
		return nil, nil
	}
	attaches, err := t.attaches(volume)
	if err != nil || !attaches {
		return nil, err
	}
	claim, err := t.listClaims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) || err == nil && !boundTo(claim, volume) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	using, err := pods.OfClaim(t.pods, claim.Namespace, claim.Name)
	users := map[string][]*corev1.Pod{}
	for _, pod := range using {
		if needsVolumes(pod) {
			users[pod.Spec.NodeName] = append(users[pod.Spec.NodeName], pod)
		}
	}
	return users, err
}

// attaches reports whether the driver of a volume requires attachment.
func (t *term) attaches(volume *corev1.PersistentVolume) (bool, error) {
	driver, err := t.listDrivers.Get(volume.Spec.CSI.Driver)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && ptr.Deref(driver.Spec.AttachRequired, true), err
}

func boundTo(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) bool {
	return claim.UID == volume.Spec.ClaimRef.UID && claim.Spec.VolumeName == volume.Name &&
		claim.Status.Phase == corev1.ClaimBound
}

// remember records since when a volume has no users on the nodes that have it.
func (t *term) remember(volume string, v view) map[string]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, after := t.unused[volume], map[string]time.Time{}
	for node := range v.attachments {
		if len(v.users[node]) > 0 {
			continue
		}
		if since, known := before[node]; known {
			after[node] = since
		} else {
			after[node] = v.now
		}
	}
	if delete(t.unused, volume); len(after) > 0 {
		t.unused[volume] = after
	}
	return after
}

// AttachmentName is the name of the attachment of a volume to a node. The three arguments determine
// it.
func AttachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// isOurs reports whether this controller made an attachment, in any term, by its name. The maker of
// an attachment with another name deletes it. The volume, from which the name derives, may be gone.
func isOurs(a *storagev1.VolumeAttachment) bool {
	return strings.HasPrefix(a.Name, "csi-") && len(a.Name) == len(AttachmentName("", "", ""))
}

// uniqueName is the name under which a node says that it uses a volume.
func uniqueName(volume *corev1.PersistentVolume) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + volume.Spec.CSI.Driver + "^" + volume.Spec.CSI.VolumeHandle)
}

func (t *term) attach(ctx context.Context, key runtime.Key, volume *corev1.PersistentVolume, node string) error {
	source := volume.Spec.CSI
	written, err := t.client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: AttachmentName(source.VolumeHandle, source.Driver, node)},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: node, Attacher: source.Driver,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume.Name},
		},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil // the informer brings it
	case err != nil:
		return fmt.Errorf("attaching volume %s to node %s: %w", volume.Name, node, err)
	}
	t.loop.Writes().Wrote(key, t.attachments, written.ResourceVersion)
	return nil
}

// used asks the API server, once in a term, whether pods on a node use an attachment that has no
// users in the informers. The informers may show a state from before the last leader attached it.
func (t *term) used(ctx context.Context, name string, a *storagev1.VolumeAttachment) (bool, error) {
	if t.checked.Has(a.UID) {
		return false, nil
	}
	used, err := t.usedNow(ctx, name, a.Spec.NodeName)
	if err != nil {
		return false, fmt.Errorf("reading who uses volume %s on node %s: %w", name, a.Spec.NodeName, err)
	}
	if !used {
		t.checked.Note(a.UID)
	}
	return used, nil
}

// needed asks the API server, once in a term for each volume, whether pods on a node need the
// volume. The informers may still show a pod whose end the last leader has seen.
func (t *term) needed(ctx context.Context, volume *corev1.PersistentVolume, node string) (bool, error) {
	if t.checked.Has(volume.UID) {
		return true, nil
	}
	needed, err := t.usedNow(ctx, volume.Name, node)
	if err != nil {
		return false, fmt.Errorf("reading who uses volume %s on node %s: %w", volume.Name, node, err)
	}
	if needed {
		t.checked.Note(volume.UID)
	}
	return needed, nil
}

func (t *term) usedNow(ctx context.Context, name, node string) (bool, error) {
	core := t.client.CoreV1()
	volume, err := core.PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	case volume.Spec.CSI == nil || volume.Spec.ClaimRef == nil:
		return false, nil
	}
	attaches, err := t.attaches(volume)
	if err != nil || !attaches {
		return false, err
	}
	ref := volume.Spec.ClaimRef
	claim, err := core.PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !boundTo(claim, volume) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	list, err := core.Pods(ref.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool {
		return pod.Spec.NodeName == node && needsVolumes(&pod) &&
			slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
				return pods.ClaimName(&pod, &v) == claim.Name
			})
	}), nil
}

// detach first removes the volume from the node's status, so that the node does not mount it any
// more.
func (t *term) detach(ctx context.Context, key runtime.Key, a *storagev1.VolumeAttachment) error {
	t.goes(a.UID)
	if err := t.writeAttached(ctx, a.Spec.NodeName); err != nil {
		t.stays(a.UID)
		return err
	}
	err := t.client.StorageV1().VolumeAttachments().Delete(ctx, a.Name,
		*metav1.NewPreconditionDeleteOptions(string(a.UID)))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		t.stays(a.UID)
		t.loop.Add(runtime.Key{Namespace: onNode, Name: a.Spec.NodeName}) // its status names it again
		return fmt.Errorf("detaching a volume from node %s: deleting VolumeAttachment %s: %w", a.Spec.NodeName, a.Name,
			err)
	}
	if is, exists, _ := t.attachments.GetIndexer().GetByKey(a.Name); !exists ||
		is.(*storagev1.VolumeAttachment).UID != a.UID {
		t.stays(a.UID) // its end has an event already
	}
	t.loop.Writes().Deleted(key, t.attachments, runtime.Key{Name: a.Name}, a.UID)
	return nil
}

// goes keeps an attachment out of the status of its node until stays is called, or it is gone.
func (t *term) goes(a types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detaching[a] = true
}

func (t *term) stays(a types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.detaching, a)
}

func (t *term) going(a types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.detaching[a]
}

func (t *term) reconcileNode(ctx context.Context, key runtime.Key) error {
	return t.writeAttached(ctx, key.Name)
}

// writeAttached writes the attached volumes into a node's status, without those that are about to
// be detached.
func (t *term) writeAttached(ctx context.Context, name string) error {
	node, err := t.listNodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := runtime.ByIndex[storagev1.VolumeAttachment](t.attachments, byNode, name)
	if err != nil {
		return err
	}
	attached := []corev1.AttachedVolume{}
	for _, a := range list {
		if t.going(a.UID) || !a.Status.Attached || a.DeletionTimestamp != nil ||
			a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if volume, err := t.listVolumes.Get(*a.Spec.Source.PersistentVolumeName); err == nil && volume.Spec.CSI != nil {
			attached = append(attached, corev1.AttachedVolume{Name: uniqueName(volume)})
		}
	}
	slices.SortFunc(attached, func(a, b corev1.AttachedVolume) int { return cmp.Compare(a.Name, b.Name) })
	if slices.Equal(attached, node.Status.VolumesAttached) {
		return nil
	}
	// With the node's version as a precondition: a worker that has decided before this one must not
	// write after it.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"status":   map[string]any{"volumesAttached": attached},
	})
	if err != nil {
		return err
	}
	_, err = t.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("writing what is attached to node %s: %w", name, err)
	}
	return nil
}

// tell writes events about an attachment's outcome to the pods of its volume.
func (t *term) tell(old, now *storagev1.VolumeAttachment) {
	if old == nil || now == nil || old.UID != now.UID || now.Spec.Source.PersistentVolumeName == nil {
		return
	}
	name := *now.Spec.Source.PersistentVolumeName
	kind, reason, message := corev1.EventTypeNormal, "SuccessfulAttachVolume",
		fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", name)
	switch failed := now.Status.AttachError; {
	case failed != nil && (old.Status.AttachError == nil || failed.Message != old.Status.AttachError.Message):
		kind, reason, message = corev1.EventTypeWarning, "FailedAttachVolume",
			fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", name, failed.Message)
	case failed != nil || !now.Status.Attached || old.Status.Attached:
		return
	}
	volume, err := t.listVolumes.Get(name)
	if err != nil || volume.Spec.CSI == nil {
		return
	}
	users, err := t.users(volume)
	if err != nil {
		return
	}
	for _, pod := range users[now.Spec.NodeName] {
		t.recorder.Event(pod, kind, reason, message)
	}
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}
