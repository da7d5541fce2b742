package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/controllers/runtime"
)

const (
	fieldManager = "ResourceClaimController"

	byClaim    = "barque/resourceclaim"
	byTemplate = "barque/resourceclaimtemplate"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Workers is how many pods, and how many claims, are reconciled at once. Default 8.
	Workers int
}

// Controller makes and cleans up claims.
type Controller struct {
	cfg                     Config
	pods, claims, templates cache.SharedIndexInformer
	listPods                corelisters.PodLister
	listClaims              resourcelisters.ResourceClaimLister
	listTemplates           resourcelisters.ResourceClaimTemplateLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 8
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	resource, core := cfg.Informers.Resource().V1(), cfg.Informers.Core().V1()
	c := &Controller{
		cfg:  cfg,
		pods: core.Pods().Informer(), listPods: core.Pods().Lister(),
		claims: resource.ResourceClaims().Informer(), listClaims: resource.ResourceClaims().Lister(),
		templates:     resource.ResourceClaimTemplates().Informer(),
		listTemplates: resource.ResourceClaimTemplates().Lister(),
	}
	return c, errors.Join(
		runtime.EnsureControllerIndex(c.claims),
		runtime.EnsureIndex(c.pods, byClaim, func(obj any) ([]string, error) {
			var keys []string
			if pod, ok := obj.(*corev1.Pod); ok {
				for _, key := range claimsOf(pod) {
					keys = append(keys, key.String())
				}
			}
			return keys, nil
		}),
		runtime.EnsureIndex(c.pods, byTemplate, func(obj any) ([]string, error) {
			var keys []string
			if pod, ok := obj.(*corev1.Pod); ok {
				for _, wish := range pod.Spec.ResourceClaims {
					if wish.ResourceClaimTemplateName != nil {
						keys = append(keys, pod.Namespace+"/"+*wish.ResourceClaimTemplateName)
					}
				}
			}
			return keys, nil
		}),
	)
}

// claimsOf returns the keys of a pod's claims that have names.
func claimsOf(pod *corev1.Pod) (keys []runtime.Key) {
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != nil {
			keys = append(keys, runtime.Key{Namespace: pod.Namespace, Name: *name})
		}
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		keys = append(keys, runtime.Key{Namespace: pod.Namespace, Name: extended.ResourceClaimName})
	}
	return keys
}

// Run reconciles for one term of leadership. Pods and claims have a queue each.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	recorder, stop := runtime.Recorder(ctx, client, "resource_claim")
	defer stop()
	t := &term{Controller: c, client: client, recorder: recorder, unseen: map[string][]*resourcev1.ResourceClaim{}}
	t.podLoop = runtime.NewLoop("resourceclaim", c.cfg.Workers, c.cfg.Logger, t.reconcilePod)
	t.claimLoop = runtime.NewLoop("resourceclaim-users", c.cfg.Workers, c.cfg.Logger, t.reconcileClaim)
	runtime.Watch(t.podLoop, c.pods, func(_, now *corev1.Pod) []runtime.Key {
		if now == nil || now.DeletionTimestamp != nil || len(now.Spec.ResourceClaims) == 0 {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.podLoop, c.claims, func(old, now *resourcev1.ResourceClaim) []runtime.Key {
		if now == nil {
			now = old
		}
		return t.podsBy(byClaim, now.Namespace, now.Name)
	})
	runtime.Watch(t.podLoop, c.templates, func(_, now *resourcev1.ResourceClaimTemplate) []runtime.Key {
		if now == nil {
			return nil
		}
		return t.podsBy(byTemplate, now.Namespace, now.Name)
	})
	runtime.Watch(t.claimLoop, c.claims, runtime.Itself[resourcev1.ResourceClaim])
	runtime.Watch(t.claimLoop, c.pods, func(old, now *corev1.Pod) []runtime.Key {
		switch {
		case now == nil:
			return claimsOf(old)
		case done(now):
			return claimsOf(now)
		}
		return nil
	})

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var other error
	var wg sync.WaitGroup
	wg.Go(func() { other = t.claimLoop.Run(ctx); cancel() })
	err := t.podLoop.Run(ctx)
	cancel()
	wg.Wait()
	return errors.Join(err, other)
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client             kubernetes.Interface
	recorder           record.EventRecorder
	podLoop, claimLoop *runtime.Loop

	mu sync.Mutex
	// unseen are the claims that the leaders before have left and the informer does not show yet,
	// by namespace. A namespace that is not there has not been asked for.
	unseen map[string][]*resourcev1.ResourceClaim
}

func (t *term) podsBy(index, namespace, name string) (keys []runtime.Key) {
	found, err := runtime.ByIndex[corev1.Pod](t.pods, index, namespace+"/"+name)
	if err != nil {
		t.cfg.Logger.Error("finding the pods of a claim", "namespace", namespace, "name", name, "err", err)
	}
	for _, p := range found {
		keys = append(keys, runtime.KeyOf(p))
	}
	return keys
}

// reconcilePod gives a pod its claims.
func (t *term) reconcilePod(ctx context.Context, key runtime.Key) (time.Duration, error) {
	pod, err := t.listPods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	plan, err := t.planFor(pod)
	if err == nil && len(plan.create) > 0 {
		if behind, err := t.behind(ctx, pod.Namespace); err != nil || behind {
			return runtime.Retry, err
		}
		plan, err = t.planFor(pod) // the plan before may be from older state
	}
	if err != nil {
		t.recorder.Event(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation", err.Error())
		return 0, err
	}
	for i := range plan.create {
		wish := &plan.create[i]
		created, err := t.create(ctx, pod, wish)
		if err != nil {
			t.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v",
				wish.Name, err)
			return 0, fmt.Errorf("PodResourceClaim %s: %w", wish.Name, err)
		}
		t.podLoop.Writes().Wrote(key, t.claims, created.ResourceVersion)
		plan.names[wish.Name] = created.Name
	}
	if len(plan.names) > 0 {
		if err := t.nameClaims(ctx, key, pod, plan.names); err != nil {
			return 0, err
		}
	}
	for _, claim := range plan.reserve {
		claim = claim.DeepCopy()
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		written, err := t.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim,
			metav1.UpdateOptions{})
		if err != nil {
			return 0, fmt.Errorf("reserve claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		t.podLoop.Writes().Wrote(key, t.claims, written.ResourceVersion)
	}
	return 0, nil
}

// planFor compares a pod with its claims, as the informer shows them.
func (t *term) planFor(pod *corev1.Pod) (podPlan, error) {
	owned, _, err := runtime.Controlled[resourcev1.ResourceClaim](t.claims, pod.Namespace, pod.UID)
	if err != nil {
		return podPlan{}, err
	}
	return decidePod(pod, func(name string) *resourcev1.ResourceClaim {
		claim, _ := t.listClaims.ResourceClaims(pod.Namespace).Get(name) // the error can only be NotFound
		return claim
	}, owned)
}

// behind reports whether claims of a namespace are missing in the informer that a leader before has
// made. It asks the API server once: those leaders cannot write any more.
func (t *term) behind(ctx context.Context, namespace string) (bool, error) {
	t.mu.Lock()
	left, asked := t.unseen[namespace]
	t.mu.Unlock()
	if !asked {
		list, err := t.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, fmt.Errorf("listing the claims of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			left = append(left, &list.Items[i])
		}
	}
	var still []*resourcev1.ResourceClaim
	for _, c := range left {
		is, err := t.listClaims.ResourceClaims(namespace).Get(c.Name)
		if (err != nil || is.UID != c.UID) && !runtime.Reached(t.claims, c.ResourceVersion) {
			still = append(still, c)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unseen[namespace] = still
	return len(still) > 0, nil
}

func (t *term) create(
	ctx context.Context, pod *corev1.Pod, wish *corev1.PodResourceClaim,
) (*resourcev1.ResourceClaim, error) {
	template, err := t.listTemplates.ResourceClaimTemplates(pod.Namespace).Get(*wish.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", *wish.ResourceClaimTemplateName, err)
	}
	created, err := t.client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, newClaim(pod, wish.Name, template),
		metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create ResourceClaim: %w", err)
	}
	return created, nil
}

// nameClaims adds claims to the pod's status, beside the existing ones.
func (t *term) nameClaims(ctx context.Context, key runtime.Key, pod *corev1.Pod, names map[string]string) error {
	var statuses []corev1.PodResourceClaimStatus
	for _, name := range slices.Sorted(maps.Keys(names)) {
		statuses = append(statuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: ptr.To(names[name])})
	}
	// The list is merged by name.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"resourceClaimStatuses": statuses},
	})
	if err != nil {
		return fmt.Errorf("encode the names of claims: %w", err)
	}
	written, err := t.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if err != nil {
		return fmt.Errorf("update pod %s/%s ResourceClaimStatuses: %w", pod.Namespace, pod.Name, err)
	}
	t.podLoop.Writes().Wrote(key, t.pods, written.ResourceVersion)
	return nil
}

// reconcileClaim removes users that are gone, and the allocation without users.
func (t *term) reconcileClaim(ctx context.Context, key runtime.Key) (time.Duration, error) {
	claim, err := t.listClaims.ResourceClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	gone, err := t.goneUsers(ctx, claim)
	if err != nil {
		return 0, err
	}
	var owner *corev1.Pod
	if ref := ownerOf(claim); ref.UID != "" {
		// A pod that is not known (any more, or not yet) is left to the garbage collector.
		owner, _ = t.listPods.Pods(claim.Namespace).Get(ref.Name)
	}
	if owner != nil && owner.UID != ownerOf(claim).UID {
		// The informer may show the pod of that name from before.
		owner, err = t.client.CoreV1().Pods(claim.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			owner, err = nil, nil
		}
		if err != nil {
			return 0, fmt.Errorf("reading the pod that claim %s was made for: %w", key, err)
		}
	}
	plan := decideClaim(claim, func(_ string, uid types.UID) bool { return gone[uid] }, owner)
	claims := t.client.ResourceV1().ResourceClaims(claim.Namespace)
	if plan.update || plan.deallocate {
		claim = claim.DeepCopy()
		claim.Status.ReservedFor = plan.users
		if plan.deallocate {
			claim.Status.Allocation = nil
		}
		// Not a patch: when anything has changed meanwhile, this was decided on an old view.
		if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return 0, ignoreGone(fmt.Errorf("take users from claim %s: %w", key, err))
		}
		t.claimLoop.Writes().Wrote(key, t.claims, claim.ResourceVersion)
	}
	if plan.release {
		claim = claim.DeepCopy()
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		if claim, err = claims.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return 0, ignoreGone(fmt.Errorf("take the finalizer from claim %s: %w", key, err))
		}
		if claim.DeletionTimestamp == nil { // else it is gone with its last finalizer
			t.claimLoop.Writes().Wrote(key, t.claims, claim.ResourceVersion)
		}
	}
	if plan.remove {
		if err := claims.Delete(ctx, claim.Name, *metav1.NewPreconditionDeleteOptions(string(claim.UID))); err != nil {
			return 0, ignoreGone(fmt.Errorf("delete unused generated claim %s: %w", key, err))
		}
		t.claimLoop.Writes().Deleted(key, t.claims, key, claim.UID)
	}
	return 0, nil
}

// goneUsers returns the pods that use a claim and do not exist, or have ended. A pod that the
// informer does not know is asked for: the scheduler reserves a claim for a pod which may be
// younger.
func (t *term) goneUsers(ctx context.Context, claim *resourcev1.ResourceClaim) (map[types.UID]bool, error) {
	gone := map[types.UID]bool{}
	for _, u := range claim.Status.ReservedFor {
		if u.APIGroup != "" || u.Resource != "pods" {
			continue
		}
		pod, err := t.listPods.Pods(claim.Namespace).Get(u.Name)
		if apierrors.IsNotFound(err) || err == nil && pod.UID != u.UID {
			pod, err = t.client.CoreV1().Pods(claim.Namespace).Get(ctx, u.Name, metav1.GetOptions{})
		}
		switch {
		case apierrors.IsNotFound(err):
			gone[u.UID] = true
		case err != nil:
			return nil, fmt.Errorf("pod %s/%s that uses claim %s: %w", claim.Namespace, u.Name, claim.Name, err)
		default:
			gone[u.UID] = pod.UID != u.UID || done(pod)
		}
	}
	return gone, nil
}

// ignoreGone is nil when the object was deleted meanwhile.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
