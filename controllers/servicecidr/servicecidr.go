// Package servicecidr reconciles ServiceCIDRs: it makes them ready. It keeps one under deletion as
// long as Services have addresses in it that are in no other one.
//
// No address is given from a ServiceCIDR after its deletion has begun: the API server gives each in
// a transaction that requires the unchanged ServiceCIDR. So the finalizer is removed as soon as a
// list, newer than the deletion, has no address that needs the ServiceCIDR; there is no grace
// period.
package servicecidr

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller looks after ServiceCIDRs.
type Controller struct {
	cfg       Config
	cidrs     cache.SharedIndexInformer
	addresses cache.SharedIndexInformer
	list      networkinglisters.ServiceCIDRLister
	listIPs   networkinglisters.IPAddressLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	v1 := cfg.Informers.Networking().V1()
	return &Controller{
		cfg: cfg, cidrs: v1.ServiceCIDRs().Informer(), addresses: v1.IPAddresses().Informer(),
		list: v1.ServiceCIDRs().Lister(), listIPs: v1.IPAddresses().Lister(),
	}, nil
}

// Run reconciles for one term of leadership. It has one worker: of two ServiceCIDRs that have the
// same addresses and are deleted at once, only one may go.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	t.loop = runtime.NewLoop("servicecidr", 1, c.cfg.Logger, t.reconcile)
	runtime.Watch(t.loop, c.cidrs, func(old, now *networkingv1.ServiceCIDR) []runtime.Key {
		return append(runtime.Itself(old, now), c.waiting()...)
	})
	runtime.Watch(t.loop, c.addresses, func(_, now *networkingv1.IPAddress) []runtime.Key {
		if now != nil { // only one that goes makes a difference
			return nil
		}
		return c.waiting()
	})
	return t.loop.Run(ctx)
}

// waiting lists the ServiceCIDRs that are being deleted.
func (c *Controller) waiting() []runtime.Key {
	all, err := c.list.List(labels.Everything())
	if err != nil {
		return nil
	}
	var out []runtime.Key
	for _, cidr := range all {
		if cidr.DeletionTimestamp != nil {
			out = append(out, runtime.KeyOf(cidr))
		}
	}
	return out
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client kubernetes.Interface
	loop   *runtime.Loop
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) (time.Duration, error) {
	cidr, err := t.list.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	all, err := t.list.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	addresses, err := t.listIPs.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	do, condition := decide(cidr, except(all, cidr), addresses)
	if do == release { // which cannot be undone: the informers may be behind
		if do, condition, err = t.decideNewest(ctx, cidr); err != nil {
			return 0, err
		}
	}
	if err := t.act(ctx, key, cidr.DeepCopy(), do, condition); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("ServiceCIDR %s: %w", key.Name, err)
	}
	return 0, nil
}

// except lists the others.
func except(all []*networkingv1.ServiceCIDR, cidr *networkingv1.ServiceCIDR) []*networkingv1.ServiceCIDR {
	return slices.DeleteFunc(slices.Clone(all), func(o *networkingv1.ServiceCIDR) bool { return o.Name == cidr.Name })
}

// decideNewest decides by the API's state. It reads the addresses last, so that it sees changes of
// other ServiceCIDRs since.
func (t *term) decideNewest(ctx context.Context, cidr *networkingv1.ServiceCIDR) (action, metav1.Condition, error) {
	v1 := t.client.NetworkingV1()
	cidrs, err := v1.ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nothing, metav1.Condition{}, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	ips, err := v1.IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nothing, metav1.Condition{}, fmt.Errorf("list IPAddresses: %w", err)
	}
	do, condition := decide(cidr, except(pointers(cidrs.Items), cidr), pointers(ips.Items))
	return do, condition, nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

func (t *term) act(
	ctx context.Context, key runtime.Key, next *networkingv1.ServiceCIDR, do action, condition metav1.Condition,
) error {
	cidrs := t.client.NetworkingV1().ServiceCIDRs()
	var err error
	switch do {
	case nothing:
		return nil
	case tell:
		meta.SetStatusCondition(&next.Status.Conditions, condition)
		next, err = cidrs.UpdateStatus(ctx, next, metav1.UpdateOptions{})
	case protect:
		next.Finalizers = append(next.Finalizers, finalizer)
		next, err = cidrs.Update(ctx, next, metav1.UpdateOptions{})
	case release:
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == finalizer })
		_, err = cidrs.Update(ctx, next, metav1.UpdateOptions{})
		return err // it may be gone, and then no informer reaches its last version
	}
	if err == nil {
		t.loop.Writes().Wrote(key, t.cidrs, next.ResourceVersion)
	}
	return err
}
