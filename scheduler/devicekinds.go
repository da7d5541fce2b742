package scheduler

import (
	"context"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
)

// deviceHandler makes a handler for a kind of device objects. It records a change and reports the
// event to the queue.
func deviceHandler[T any](
	g *gate, t *term, kind fwk.EventResource, note func(old, new *T),
) toolscache.ResourceEventHandler {
	return handler(g, func(old, new *T) {
		if note != nil {
			note(old, new)
		}
		switch {
		case new == nil:
			t.queue.Move(fwk.ClusterEvent{Resource: kind, ActionType: fwk.Delete}, old, nil)
		case old == nil:
			t.queue.Move(fwk.ClusterEvent{Resource: kind, ActionType: fwk.Add}, nil, new)
		default:
			t.queue.Move(fwk.ClusterEvent{Resource: kind, ActionType: fwk.Update}, old, new)
		}
	})
}

func (t *term) claimChanged(old, new *resourcev1.ResourceClaim) {
	if new == nil {
		t.devices.Claims.Remove(old)
	} else {
		t.devices.Claims.Show(new)
	}
}

func (t *term) classChanged(old, new *resourcev1.DeviceClass) {
	switch {
	case new == nil:
		t.devices.ByResource.OnDelete(old)
	case old == nil:
		t.devices.ByResource.OnAdd(new, false)
	default:
		t.devices.ByResource.OnUpdate(old, new)
	}
}

// catchUpDevices waits until the ledger has every allocation of the API server. The last leader may
// have allocated a device that still looks free here, and no later check would notice.
func (t *term) catchUpDevices(ctx context.Context) error {
	var list *resourcev1.ResourceClaimList
	err := t.until(ctx, 100*time.Millisecond, func() (done bool) {
		var err error
		if list, err = t.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx,
			metav1.ListOptions{}); err != nil {
			t.log.Warn("cannot list resource claims at the start of the term; trying again", "err", err)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	left := list.Items
	return t.until(ctx, 5*time.Millisecond, func() (done bool) {
		for len(left) > 0 && t.hasSeenClaim(ctx, &left[len(left)-1]) {
			left = left[:len(left)-1]
		}
		return len(left) == 0
	})
}

func (t *term) hasSeenClaim(ctx context.Context, claim *resourcev1.ResourceClaim) bool {
	if claim.Status.Allocation == nil {
		return true // it has no devices; the informer brings it
	}
	if have, err := t.devices.Claims.Get(claim.Namespace, claim.Name); err == nil {
		c, err := resourceversion.CompareResourceVersion(have.ResourceVersion, claim.ResourceVersion)
		return err == nil && c >= 0
	}
	// Not shown yet, or deleted since: only the API server knows.
	_, err := t.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}
