package gateway

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/balancers"
)

// The leader makes a Service of type LoadBalancer for each Gateway with addresses of its own.
// Pools, reservations and the node that answers are then those of Services. The Service ends with
// the Gateway, by its owner reference.

// ownerIndex has the Services of Gateways by the name of the Gateway.
const ownerIndex = "barque.gateway"

// ownerOf is the Gateway that controls a Service with addresses.
func ownerOf(obj any) ([]string, error) {
	s, ok := obj.(*corev1.Service)
	if !ok || !balancers.OfGateway(s) {
		return nil, nil
	}
	owner := metav1.GetControllerOf(s)
	if owner == nil || owner.Kind != "Gateway" {
		return nil, nil
	}
	return []string{types.NamespacedName{Namespace: s.Namespace, Name: owner.Name}.String()}, nil
}

// reachable is where clients reach a Gateway.
type reachable struct {
	addresses []string
	missing   translate.Missing
	// fault is the reason in missing, if somebody has to mend it and no other fault has it.
	fault string
}

// ofNodes is a Gateway at the nodes' own addresses.
func ofNodes(addresses []string) reachable {
	of := reachable{addresses: addresses}
	if len(addresses) == 0 {
		of.missing = noNode
	}
	return of
}

var noNode = translate.Missing{Reason: gatewayv1.GatewayReasonAddressNotAssigned, Message: "no node runs the gateway"}

// poolExists reports whether there is an AddressPool. One of which nobody knows yet counts: a class
// must not be refused for the time of a start.
func (s *Statuses) poolExists(name string) bool {
	if s.config.Pool == nil {
		return false
	}
	exists, known := s.config.Pool(name)
	return exists || !known
}

// Poke lets the leader look again: AddressPools have changed.
func (s *Statuses) Poke() { s.poke() }

// addressed makes the Services of Gateways with addresses of their own, and returns where clients
// reach these Gateways.
func (w *statusWriter) addressed(
	ctx context.Context, cluster view, ports translate.Ports, keep func(error),
) map[types.UID]reachable {
	all := map[types.UID]reachable{}
	synced := w.objects.gateways.HasSynced() && w.objects.classes.HasSynced()
	w.early = !synced
	tried := w.tried
	w.tried = map[types.UID]attempt{}
	for _, g := range list[gatewayv1.Gateway](w.objects.gateways) {
		class := cluster.GatewayClass(string(g.Spec.GatewayClassName))
		if class == nil {
			continue // it may come back, and the address stays as long
		}
		request, own := translate.Requested(cluster, g)
		own = own && translate.Ours(class)
		if synced {
			keep(w.removeServices(ctx, g, own))
		}
		if !own {
			continue
		}
		var err error
		if last, failed := tried[g.UID]; failed && last.generation == g.Generation && time.Now().Before(last.until) {
			w.tried[g.UID], err = last, last.err
		} else if synced {
			err = w.service(ctx, cluster, ports, g, request)
		}
		all[g.UID] = w.reach(cluster, g, request, err)
		switch {
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			if w.tried[g.UID].err == nil {
				w.tried[g.UID] = attempt{g.Generation, time.Now().Add(tryAgain), err}
			}
		default:
			keep(err)
		}
	}
	return all
}

// attempt is a refused write of a Service, such as by a quota. Its Gateway has the error in its
// status. The statuses of others do not wait for it.
type attempt struct {
	generation int64
	until      time.Time
	err        error
}

// tryAgain is the time until the API is asked again, and lookAgain that until the informers of the
// Gateway API are looked at again: the end of an empty list is no event.
const (
	tryAgain  = 30 * time.Second
	lookAgain = time.Second
)

// removeServices removes the Services of a Gateway that it does not need any more. own means that
// it needs one.
func (w *statusWriter) removeServices(ctx context.Context, g *gatewayv1.Gateway, own bool) (first error) {
	for _, s := range indexed[corev1.Service](w.objects.services, ownerIndex, nameOf(g).String()) {
		if s.DeletionTimestamp != nil || !metav1.IsControlledBy(s, g) || own && nameOf(s) == translate.ServiceName(g) {
			continue
		}
		first = cmp.Or(first, w.remove(ctx, s))
	}
	return first
}

func (w *statusWriter) remove(ctx context.Context, s *corev1.Service) error {
	err := w.services.CoreV1().Services(s.Namespace).Delete(ctx, s.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// service makes the Service of a Gateway what it should be.
func (w *statusWriter) service(
	ctx context.Context, cluster view, ports translate.Ports, g *gatewayv1.Gateway, request translate.Request,
) error {
	have := cluster.Service(translate.ServiceName(g))
	numbers := translate.ServicePorts(cluster, ports, g)
	if have != nil && !w.objects.listenerSets.HasSynced() { // some ports may be those of sets
		for _, p := range have.Spec.Ports {
			numbers = append(numbers, p.Port)
		}
		slices.Sort(numbers)
		numbers = slices.Compact(numbers)
	}
	if w.config.Pool == nil || g.DeletionTimestamp != nil || request.Problem != "" || translate.Refused(g) != "" ||
		len(numbers) == 0 {
		return nil // it keeps what it has
	}
	want := translate.Service(g, request, numbers, have)
	services := w.services.CoreV1().Services(g.Namespace)
	var err error
	switch {
	case have == nil:
		_, err = services.Create(ctx, want, metav1.CreateOptions{})
	case !metav1.IsControlledBy(have, g) || have.DeletionTimestamp != nil:
	case translate.Renewed(have, want):
		err = w.remove(ctx, have) // its end is an event, after which it is made anew
	case !equality.Semantic.DeepEqual(have, want):
		_, err = services.Update(ctx, want, metav1.UpdateOptions{})
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the informer is late
	}
	return err
}

// reach returns where clients reach a Gateway with addresses of its own. made is the error of its
// Service.
func (w *statusWriter) reach(
	cluster view, g *gatewayv1.Gateway, request translate.Request, made error,
) (at reachable) {
	miss := func(message string, mend bool) reachable {
		at.missing = translate.Missing{Reason: gatewayv1.GatewayReasonAddressNotAssigned, Message: message}
		if mend && (request.Problem != "" || len(request.Addresses) > 0) {
			at.missing.Reason = gatewayv1.GatewayReasonAddressNotUsable
		}
		return at
	}
	fault := func(message string) reachable {
		at = miss(message, true)
		at.fault = message
		return at
	}
	name := translate.ServiceName(g)
	there, s := cluster.Service(name), translate.ServiceOf(cluster, g)
	if s != nil {
		for _, held := range balancers.HeldBy(s) {
			at.addresses = append(at.addresses, held.Address.String())
		}
	}
	switch {
	case request.Problem != "":
		return fault(request.Problem)
	case w.config.Pool == nil:
		return fault("this cluster gives no addresses of pools: a cloud gives addresses (--cloud-provider)")
	case made != nil:
		return fault(fmt.Sprintf("the Service %s for its address: %v", name, made))
	case there != nil && !metav1.IsControlledBy(there, g):
		return fault(
			fmt.Sprintf("the Service for its address would be %s, and there is another one of that name", name))
	case s == nil:
		return miss(fmt.Sprintf("the Service %s has no address yet", name), false)
	}
	// The Service itself is among those that wait.
	if c := meta.FindStatusCondition(s.Status.Conditions, balancers.PoolCondition); c.Status != metav1.ConditionTrue {
		return miss(c.Message, true)
	}
	for _, a := range request.Addresses {
		if !slices.Contains(at.addresses, a.String()) {
			return miss(fmt.Sprintf("the Service %s has no address yet", name), false)
		}
	}
	nodes, err := w.config.Nodes.List(onNodes)
	if err != nil || !slices.ContainsFunc(nodes, balancers.Eligible) {
		return miss(noNode.Message, false)
	}
	return at
}

// indexOwners lets Services be found by their Gateway.
func indexOwners(services cache.SharedIndexInformer) error {
	if services.GetIndexer().GetIndexers()[ownerIndex] != nil {
		return nil
	}
	return services.AddIndexers(cache.Indexers{ownerIndex: ownerOf})
}
