package adminapi

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/balancers"
)

// Waiting returns the Services of type LoadBalancer that lack an address of the cluster's, or a
// port.
func Waiting(services []*corev1.Service) (waiting []clusterstatus.WaitingService) {
	for _, s := range services {
		c := meta.FindStatusCondition(s.Status.Conditions, balancers.ConditionOf(s))
		if c == nil || c.Status != metav1.ConditionFalse || s.DeletionTimestamp != nil {
			continue
		}
		w := clusterstatus.WaitingService{Service: s.Namespace + "/" + s.Name, Reason: c.Reason,
			Message: c.Message, Since: c.LastTransitionTime.Time}
		if owner := metav1.GetControllerOf(s); balancers.OfGateway(s) && owner != nil {
			w.Gateway = s.Namespace + "/" + owner.Name
		}
		waiting = append(waiting, w)
	}
	slices.SortFunc(waiting, func(a, b clusterstatus.WaitingService) int {
		return strings.Compare(a.Service,
			b.Service)
	})
	return waiting
}
