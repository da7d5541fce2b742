package apiobjects

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"slices"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/kubelet/volumes"
)

// longestSelector bounds the cost of a selector, in bytes.
const longestSelector = 100 * 1024

// WatchedBundles keeps the cluster's trust bundles up to date while pods of this node refer to
// some, and reports changes of theirs.
type WatchedBundles struct {
	*demand
	changed func(uid types.UID)
	seed    [sha256.Size]byte

	mu    sync.Mutex
	asked map[types.UID]map[bundleQuery]bool
}

// bundleQuery is one bundle by its name, or all of a signer.
type bundleQuery struct{ name, signer string }

// NewTrustBundles returns a cache over client. changed is called with each pod whose bundles have
// changed; it must not block. Close ends it.
func NewTrustBundles(client kubernetes.Interface, changed func(uid types.UID)) *WatchedBundles {
	b := &WatchedBundles{changed: changed, asked: map[types.UID]map[bundleQuery]bool{}}
	if _, err := rand.Read(b.seed[:]); err != nil {
		panic(err) // it never fails: see its documentation
	}
	api := client.CertificatesV1().ClusterTrustBundles()
	b.demand = newDemand(func() (cache.Store, cache.Controller) {
		return cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
					return api.List(ctx, opts)
				},
				WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
					return api.Watch(ctx, opts)
				},
			}, client),
			ObjectType: &certificatesv1.ClusterTrustBundle{},
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc:    b.tell,
				UpdateFunc: func(_, now any) { b.tell(now) },
				DeleteFunc: b.tell,
			},
		})
	})
	return b
}

// Close ends the watch and waits for it.
func (b *WatchedBundles) Close() { b.close() }

// tell wakes the pods that refer to a bundle.
func (b *WatchedBundles) tell(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	bundle, ok := obj.(*certificatesv1.ClusterTrustBundle)
	if !ok || !b.caughtUp() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, queries := range b.asked {
		if queries[bundleQuery{name: bundle.Name}] ||
			bundle.Spec.SignerName != "" && queries[bundleQuery{signer: bundle.Spec.SignerName}] {
			b.changed(uid)
		}
	}
}

// ask notes the bundles that a pod refers to, and returns all bundles.
func (b *WatchedBundles) ask(ctx context.Context, pod *v1.Pod, q bundleQuery) (*lister, error) {
	b.mu.Lock()
	if b.asked[pod.UID] == nil {
		b.asked[pod.UID] = map[bundleQuery]bool{}
	}
	b.asked[pod.UID][q] = true
	b.mu.Unlock()
	return b.need(ctx, pod)
}

// Named implements TrustBundles.
func (b *WatchedBundles) Named(ctx context.Context, pod *v1.Pod, name string) ([]byte, error) {
	known, err := b.ask(ctx, pod, bundleQuery{name: name})
	if err != nil {
		return nil, err
	}
	obj, ok, err := known.GetByKey(name)
	if err != nil {
		return nil, err
	}
	bundle, _ := obj.(*certificatesv1.ClusterTrustBundle)
	if !ok || bundle == nil {
		return nil, apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundles"), name)
	}
	return b.anchors(bundle), nil
}

// Signed implements TrustBundles.
func (b *WatchedBundles) Signed(
	ctx context.Context, pod *v1.Pod, signer string, selector *metav1.LabelSelector,
) ([]byte, error) {
	selects, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("label selector: %w", err)
	}
	if n := len(selects.String()); n > longestSelector {
		return nil, fmt.Errorf("label selector length (%d) is larger than %d", n, longestSelector)
	}
	known, err := b.ask(ctx, pod, bundleQuery{signer: signer})
	if err != nil {
		return nil, err
	}
	var selected []*certificatesv1.ClusterTrustBundle
	for _, obj := range known.List() {
		bundle, ok := obj.(*certificatesv1.ClusterTrustBundle)
		if ok && bundle.Spec.SignerName == signer && selects.Matches(labels.Set(bundle.Labels)) {
			selected = append(selected, bundle)
		}
	}
	if len(selected) == 0 {
		return nil, volumes.ErrNoBundle
	}
	return b.anchors(selected...), nil
}

// anchors are the certificates of bundles, each one once, PEM. Their order is random by start of
// the kubelet, so that no pod relies on it. It stays the same until then, so that a volume changes
// only when its certificates do.
func (b *WatchedBundles) anchors(bundles ...*certificatesv1.ClusterTrustBundle) []byte {
	type anchor struct {
		place [sha256.Size]byte
		der   []byte
	}
	seen := map[[sha256.Size]byte]bool{}
	var all []anchor
	for _, bundle := range bundles {
		for block, rest := pem.Decode([]byte(bundle.Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
			place := sha256.Sum256(slices.Concat(b.seed[:], block.Bytes))
			if !seen[place] {
				seen[place] = true
				all = append(all, anchor{place, block.Bytes})
			}
		}
	}
	slices.SortFunc(all, func(a, b anchor) int { return bytes.Compare(a.place[:], b.place[:]) })
	var out []byte
	for _, a := range all {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})...)
	}
	return out
}

// Forget implements TrustBundles.
func (b *WatchedBundles) Forget(uid types.UID) {
	b.mu.Lock()
	delete(b.asked, uid)
	b.mu.Unlock()
	b.forget(uid)
}
