package bootstrap

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applynetworkingv1 "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/apiserver/services"
	"github.com/barque/barque/internal/lastevents"
)

// defaultCIDRManager is the field manager of the default ServiceCIDR, and the source of its events,
// as in kube-apiserver.
const defaultCIDRManager = "kubernetes-service-cidr-controller"

// newRecorder makes a recorder of events for a term. stop returns when those that wait are written.
func newRecorder(ctx context.Context, client kubernetes.Interface) (recorder record.EventRecorder, stop func()) {
	return lastevents.Recorder(ctx, client, defaultCIDRManager)
}

// defaultCIDR keeps the ServiceCIDR "kubernetes", with the configured ranges, for one term. It
// makes it anew when it is gone, and gives a cluster of one family its second one. Other
// differences are reported by an event, once a term: the ranges of a ServiceCIDR cannot be changed.
type defaultCIDR struct {
	cidrs    []netip.Prefix
	client   kubernetes.Interface
	recorder record.EventRecorder
	logger   *slog.Logger

	toldOther, toldUnready bool
}

// ensure goes through all of it once.
func (d *defaultCIDR) ensure(ctx context.Context) error {
	objects, want := d.client.NetworkingV1().ServiceCIDRs(), make([]string, len(d.cidrs))
	for i, cidr := range d.cidrs {
		want[i] = cidr.String()
	}
	object, err := objects.Get(ctx, services.DefaultCIDR, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		object, err = objects.Create(ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: services.DefaultCIDR}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: want},
		}, metav1.CreateOptions{})
	} else if err == nil && len(want) == 2 && slices.Equal(object.Spec.CIDRs, want[:1]) {
		d.logger.Info("the default ServiceCIDR gets its second family", "cidrs", want)
		object.Spec.CIDRs = want
		object, err = objects.Update(ctx, object, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("the default ServiceCIDR: %w", err)
	}
	return d.ensureReady(ctx, object, want)
}

// ensureReady makes a ServiceCIDR ready that has no condition yet, and reports one with other
// ranges or a false condition.
func (d *defaultCIDR) ensureReady(ctx context.Context, object *networkingv1.ServiceCIDR, want []string) error {
	if !object.DeletionTimestamp.IsZero() {
		return nil // its controller's
	}
	if !slices.Equal(object.Spec.CIDRs, want) {
		if !d.toldOther {
			d.recorder.Eventf(object, corev1.EventTypeWarning, "KubernetesDefaultServiceCIDRInconsistent",
				"The default ServiceCIDR %v does not match the controller flag configurations %s", object.Spec.CIDRs,
				want)
			d.logger.Warn("the default ServiceCIDR is not what this cluster is configured with", "has",
				object.Spec.CIDRs, "want", want)
		}
		d.toldOther = true
		return nil
	}
	ready := meta.FindStatusCondition(object.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	if ready != nil && ready.Status == metav1.ConditionTrue {
		return nil
	}
	if ready != nil && ready.Status == metav1.ConditionFalse {
		if !d.toldUnready {
			d.recorder.Eventf(object, corev1.EventTypeWarning, ready.Reason, "Configuration matches, but %s",
				ready.Message)
		}
		d.toldUnready = true
		return nil
	}
	status := applynetworkingv1.ServiceCIDRStatus().WithConditions(applymetav1.Condition().
		WithType(networkingv1.ServiceCIDRConditionReady).WithStatus(metav1.ConditionTrue).
		WithMessage("Kubernetes default Service CIDR is ready").WithLastTransitionTime(metav1.Now()))
	_, err := d.client.NetworkingV1().ServiceCIDRs().ApplyStatus(ctx,
		applynetworkingv1.ServiceCIDR(object.Name).WithStatus(status),
		metav1.ApplyOptions{FieldManager: defaultCIDRManager, Force: true})
	if err != nil {
		return fmt.Errorf("the status of the default ServiceCIDR: %w", err)
	}
	return nil
}
