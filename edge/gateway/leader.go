package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/lifecycle"
)

// NodeLabel is on the Nodes whose gateway is on. A node sets it itself.
const NodeLabel = "barque.io/gateway"

// statusPause gathers changes: statuses are written once for all of them. After each failure in a
// row the pause is twice as long, up to mostPause.
const (
	statusPause = 200 * time.Millisecond
	mostPause   = 30 * time.Second
)

// nextPause returns the pause after a round of writes.
func nextPause(last time.Duration, failed bool) time.Duration {
	if !failed {
		return statusPause
	}
	return min(2*last, mostPause)
}

// StatusConfig of a Statuses.
type StatusConfig struct {
	Objects  *Objects
	Settings Settings
	Nodes    corelisters.NodeLister
	// NodesChanged is the informer of the Nodes.
	NodesChanged cache.SharedIndexInformer
	// Secrets reads Secrets, as the account of the gateway.
	Secrets kubernetes.Interface
	Logger  *slog.Logger
}

// Statuses writes the statuses of Ingresses and of objects of the Gateway API. One server does: the
// leader. So writers with different views cannot write over each other for ever.
type Statuses struct {
	config  StatusConfig
	objects *Objects
	secrets *Secrets
	wake    chan struct{}
}

// NewStatuses returns a writer that does not run yet. Every server has one and follows the objects.
func NewStatuses(config StatusConfig) (*Statuses, error) {
	s := &Statuses{config: config, objects: config.Objects, wake: make(chan struct{}, 1)}
	s.secrets = NewSecrets(config.Secrets, s.poke)
	o := s.objects
	changed := each(func(types.NamespacedName, any) { s.poke() })
	for _, i := range []cache.SharedIndexInformer{o.ingresses, o.ingressClasses, o.classes, o.gateways, o.grants, o.httpRoutes, o.grpcRoutes, o.tlsRoutes, o.services} {
		if _, err := i.AddEventHandler(changed); err != nil {
			return nil, err
		}
	}
	if _, err := o.namespaces.AddEventHandler(relabelled(s.poke)); err != nil {
		return nil, err
	}
	// The kubelet's reports of a Node say nothing new about its addresses.
	_, err := config.NodesChanged.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.poke() }, DeleteFunc: func(any) { s.poke() },
		UpdateFunc: func(before, now any) {
			a, ok := before.(*corev1.Node)
			b, too := now.(*corev1.Node)
			if ok && too && !slices.Equal(addressesOf(a), addressesOf(b)) {
				s.poke()
			}
		},
	})
	return s, err
}

func (s *Statuses) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// addressesOf are the addresses at which clients reach the gateway of a node: those that are for
// clients outside, or else those of the cluster.
func addressesOf(n *corev1.Node) (all []string) {
	if _, ok := n.Labels[NodeLabel]; !ok {
		return nil
	}
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	if !ready {
		return nil
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind {
				all = append(all, a.Address)
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// maxAddresses is how many addresses the Gateway API lets a status have.
const maxAddresses = 16

func (s *Statuses) addresses() ([]string, error) {
	nodes, err := s.config.Nodes.List(everything)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, n := range nodes {
		all = append(all, addressesOf(n)...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxAddresses)], nil
}

// Lead writes statuses until ctx ends, with the rights of the status writer in the leader's term.
func (s *Statuses) Lead(ctx context.Context, client kubernetes.Interface, gateways gatewayclient.GatewayV1Interface, recorder record.EventRecorder) error {
	w := &statusWriter{Statuses: s, client: client, gateways: gateways, recorder: recorder, told: map[types.UID]string{}}
	return lifecycle.All(ctx, s.secrets.Run, func(ctx context.Context) error {
		if !s.objects.waitForSync(ctx) {
			return nil
		}
		for pause := statusPause; ; {
			err := w.write(ctx)
			pause = nextPause(pause, err != nil)
			if err != nil && ctx.Err() == nil {
				s.config.Logger.Warn("some statuses of routes are not written; trying again", "err", err, "after", pause)
				s.poke()
			}
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-timer.C:
			}
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake:
			}
		}
	})
}

type statusWriter struct {
	*Statuses
	client   kubernetes.Interface
	gateways gatewayclient.GatewayV1Interface
	recorder record.EventRecorder
	// told are the last events about Ingresses.
	told map[types.UID]string
}

// write writes each status that differs from the computed one.
func (w *statusWriter) write(ctx context.Context) error {
	addresses, err := w.addresses()
	if err != nil {
		return err
	}
	o, ports := w.objects, w.config.Settings.ports(w.objects)
	cluster := view{Objects: o, certificate: w.secrets.Problem}
	wanted := map[types.NamespacedName]bool{}
	for _, g := range list[gatewayv1.Gateway](o.gateways) {
		for _, secret := range translate.Secrets(cluster, g) {
			wanted[secret] = true
		}
	}
	for _, in := range list[networkingv1.Ingress](o.ingresses) {
		if o.ours(in) {
			certificates, _ := translate.IngressSecrets(in)
			for _, secret := range certificates {
				wanted[secret] = true
			}
		}
	}
	w.secrets.Want(wanted)
	var first error
	keep := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			first = cmp.Or(first, err)
		}
	}
	for _, c := range list[gatewayv1.GatewayClass](o.classes) {
		keep(w.class(ctx, c, ports))
	}
	attached := map[translate.Attached]int32{}
	count := func(r translate.Route) translate.Route {
		for _, a := range r.Attached {
			attached[a]++
		}
		return r
	}
	for _, r := range list[gatewayv1.HTTPRoute](o.httpRoutes) {
		if status, ok := routeStatus(r.Status.RouteStatus, count(translate.TranslateHTTPRoute(cluster, ports, r)).Parents); ok {
			next := r.DeepCopy()
			next.Status.RouteStatus = status
			_, err := w.gateways.HTTPRoutes(r.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
			keep(err)
		}
	}
	for _, r := range list[gatewayv1.GRPCRoute](o.grpcRoutes) {
		if status, ok := routeStatus(r.Status.RouteStatus, count(translate.TranslateGRPCRoute(cluster, ports, r)).Parents); ok {
			next := r.DeepCopy()
			next.Status.RouteStatus = status
			_, err := w.gateways.GRPCRoutes(r.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
			keep(err)
		}
	}
	for _, r := range list[gatewayv1.TLSRoute](o.tlsRoutes) {
		if status, ok := routeStatus(r.Status.RouteStatus, count(translate.TranslateTLSRoute(cluster, ports, r)).Parents); ok {
			next := r.DeepCopy()
			next.Status.RouteStatus = status
			_, err := w.gateways.TLSRoutes(r.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
			keep(err)
		}
	}
	for _, g := range list[gatewayv1.Gateway](o.gateways) {
		if translate.Ours(cluster.GatewayClass(string(g.Spec.GatewayClassName))) {
			keep(w.gateway(ctx, g, translate.TranslateGateway(cluster, ports, g, len(addresses) > 0), attached, addresses))
		}
	}
	there := map[types.UID]bool{}
	for _, in := range list[networkingv1.Ingress](o.ingresses) {
		there[in.UID] = true
		if o.ours(in) {
			keep(w.ingress(ctx, in, translate.TranslateIngress(cluster, ports, in), addresses))
		}
	}
	maps.DeleteFunc(w.told, func(uid types.UID, _ string) bool { return !there[uid] })
	return first
}

// conditions puts conditions into present ones; false if nothing changes.
func conditions(have, want []metav1.Condition) ([]metav1.Condition, bool) {
	next, changed := slices.Clone(have), false
	for _, c := range want {
		changed = meta.SetStatusCondition(&next, c) || changed
	}
	return next, changed
}

func (w *statusWriter) class(ctx context.Context, c *gatewayv1.GatewayClass, ports translate.Ports) error {
	if !translate.Ours(c) {
		return nil
	}
	next := c.DeepCopy()
	next.Status.Conditions, _ = conditions(c.Status.Conditions, translate.ClassStatus(c))
	next.Status.SupportedFeatures = translate.Features(ports)
	if equality.Semantic.DeepEqual(c.Status, next.Status) {
		return nil
	}
	_, err := w.gateways.GatewayClasses().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func (w *statusWriter) gateway(
	ctx context.Context, g *gatewayv1.Gateway, t translate.Gateway, attached map[translate.Attached]int32, addresses []string,
) error {
	next := g.DeepCopy()
	next.Status.Conditions, _ = conditions(g.Status.Conditions, t.Conditions)
	next.Status.Addresses = nil
	kind := gatewayv1.IPAddressType
	for _, a := range addresses {
		next.Status.Addresses = append(next.Status.Addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: a})
	}
	next.Status.Listeners = nil
	name := types.NamespacedName{Namespace: g.Namespace, Name: g.Name}
	for _, l := range t.Listeners {
		of := gatewayv1.ListenerStatus{Name: gatewayv1.SectionName(l.Name), SupportedKinds: l.Kinds, AttachedRoutes: attached[translate.Attached{Gateway: name, Listener: l.Name}]}
		var have []metav1.Condition
		for _, old := range g.Status.Listeners {
			if old.Name == of.Name {
				have = old.Conditions
			}
		}
		of.Conditions, _ = conditions(have, l.Conditions)
		next.Status.Listeners = append(next.Status.Listeners, of)
	}
	if equality.Semantic.DeepEqual(g.Status, next.Status) {
		return nil
	}
	_, err := w.gateways.Gateways(g.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

// routeStatus puts the conditions of our parents beside those of other controllers; false if
// nothing changes.
func routeStatus(have gatewayv1.RouteStatus, ours []gatewayv1.RouteParentStatus) (gatewayv1.RouteStatus, bool) {
	next := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{}}
	for _, p := range have.Parents {
		if p.ControllerName != translate.GatewayController {
			next.Parents = append(next.Parents, p)
		}
	}
	for _, p := range ours {
		var before []metav1.Condition
		for _, old := range have.Parents {
			if old.ControllerName == translate.GatewayController && equality.Semantic.DeepEqual(old.ParentRef, p.ParentRef) {
				before = old.Conditions
			}
		}
		p.Conditions, _ = conditions(before, p.Conditions)
		next.Parents = append(next.Parents, p)
	}
	return next, !equality.Semantic.DeepEqual(have.Parents, next.Parents) && len(have.Parents)+len(next.Parents) > 0
}

func (w *statusWriter) ingress(ctx context.Context, in *networkingv1.Ingress, t translate.Ingress, addresses []string) error {
	for _, c := range certificatesOf(in) {
		if err := w.secrets.Problem(c); err != nil && err != errNoSecret {
			t.Problems = append(t.Problems, "the Secret "+c.Name+" has no certificate: "+err.Error())
		}
	}
	w.tell(in, t)
	var want []networkingv1.IngressLoadBalancerIngress
	if !t.Refused {
		for _, a := range addresses {
			want = append(want, networkingv1.IngressLoadBalancerIngress{IP: a})
		}
	}
	if equality.Semantic.DeepEqual(in.Status.LoadBalancer.Ingress, want) {
		return nil
	}
	next := in.DeepCopy()
	next.Status.LoadBalancer.Ingress = want
	_, err := w.client.NetworkingV1().Ingresses(in.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func certificatesOf(in *networkingv1.Ingress) []types.NamespacedName {
	certificates, _ := translate.IngressSecrets(in)
	return slices.Compact(certificates)
}

// tell makes an event of the fields without effect, once for each set of problems.
func (w *statusWriter) tell(in *networkingv1.Ingress, t translate.Ingress) {
	text := ""
	for _, p := range slices.Compact(slices.Sorted(slices.Values(t.Problems))) {
		text += p + "; "
	}
	if text == w.told[in.UID] {
		return
	}
	w.told[in.UID] = text
	maps.DeleteFunc(w.told, func(_ types.UID, text string) bool { return text == "" })
	if text == "" {
		return
	}
	reason := "NoEffect"
	if t.Refused {
		reason = "Refused"
	}
	w.recorder.Event(in, corev1.EventTypeWarning, reason, text[:len(text)-2])
}
