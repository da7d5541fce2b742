package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
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
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/internal/lifecycle"
)

// NodeLabel is on the Nodes whose gateway is on. A node sets it itself.
const NodeLabel = balancers.GatewayNodes

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
	// Secrets reads Secrets and ConfigMaps, as the account of the gateway.
	Secrets kubernetes.Interface
	// Pool reports whether there is an AddressPool; known is false before that is known. Nil means
	// that there are none: a cloud gives addresses.
	Pool   func(name string) (exists, known bool)
	Logger *slog.Logger
}

// Statuses writes the statuses of Ingresses and of objects of the Gateway API. One server does: the
// leader. So writers with different views cannot write over each other for ever.
type Statuses struct {
	config      StatusConfig
	objects     *Objects
	secrets     *Secrets
	authorities *Authorities
	wake        chan struct{}
	// routed are the served objects of the last round; nil while this server does not lead.
	routed atomic.Pointer[[]routed]
}

// NewStatuses returns a writer that does not run yet. Every server has one and follows the objects.
func NewStatuses(config StatusConfig) (*Statuses, error) {
	s := &Statuses{config: config, objects: config.Objects, wake: make(chan struct{}, 1)}
	s.secrets, s.authorities = NewSecrets(config.Secrets, s.poke), NewAuthorities(config.Secrets, s.poke)
	o := s.objects
	changed := each(func(types.NamespacedName, any) { s.poke() })
	for _, i := range append(o.own(), o.services) {
		if _, err := i.AddEventHandler(changed); err != nil {
			return nil, err
		}
	}
	if _, err := o.namespaces.AddEventHandler(relabelled(s.poke)); err != nil {
		return nil, err
	}
	if _, err := o.services.AddEventHandler(holding(s.poke)); err != nil {
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

// addressesOf are the addresses at which clients reach the gateway of a node.
func addressesOf(n *corev1.Node) (all []string) {
	if _, on := n.Labels[NodeLabel]; !on || !balancers.Eligible(n) {
		return nil
	}
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		for _, a := range balancers.AddressesOf(n, family) {
			all = append(all, a.String())
		}
	}
	return all
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
// services makes the Services with the addresses of Gateways, with rights of its own.
func (s *Statuses) Lead(
	ctx context.Context, client kubernetes.Interface, gateways gatewayclient.GatewayV1Interface,
	services kubernetes.Interface, recorder record.EventRecorder,
) error {
	defer s.routed.Store(nil)
	w := &statusWriter{Statuses: s, client: client, gateways: gateways, services: services, recorder: recorder,
		told: map[toldOf]string{}}
	return lifecycle.All(ctx, s.secrets.Run, s.authorities.Run, func(ctx context.Context) error {
		if !s.objects.waitForSync(ctx) {
			return nil
		}
		for pause := statusPause; ; {
			err := w.write(ctx)
			pause = nextPause(pause, err != nil)
			if err != nil && ctx.Err() == nil {
				s.config.Logger.Warn("some statuses of routes are not written; trying again", "err", err, "after",
					pause)
				s.poke()
			}
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-timer.C:
			}
			var again <-chan time.Time
			switch {
			case w.early && len(w.objects.gateways.GetStore().ListKeys()) > 0:
				again = time.After(lookAgain)
			case len(w.tried) > 0:
				again = time.After(tryAgain)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-s.wake:
			case <-again:
			}
		}
	})
}

type statusWriter struct {
	*Statuses
	client   kubernetes.Interface
	gateways gatewayclient.GatewayV1Interface
	services kubernetes.Interface
	recorder record.EventRecorder
	// told are the last events about Ingresses.
	told map[toldOf]string
	// tried are the Gateways whose Service was refused.
	tried map[types.UID]attempt
	// early means that Gateways or their classes had not been read in the last round.
	early bool
}

// toldOf is an Ingress with one of the kinds of its events.
type toldOf struct {
	uid  types.UID
	kind string
}

// write writes each status that differs from the computed one.
func (w *statusWriter) write(ctx context.Context) error {
	addresses, err := w.addresses()
	if err != nil {
		return err
	}
	o, ports := w.objects, w.config.Settings.ports(w.objects)
	cluster := view{Objects: o, certificate: w.secrets.Problem, authority: w.authorities.Problem}
	w.want(cluster)
	var first error
	keep := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			first = cmp.Or(first, err)
		}
	}
	for _, c := range list[gatewayv1.GatewayClass](o.classes) {
		keep(w.class(ctx, c, ports))
	}
	own := w.addressed(ctx, cluster, ports, keep)
	routes := w.routes(ctx, cluster, ports, keep)
	served := routes.served
	for _, g := range list[gatewayv1.Gateway](o.gateways) {
		if translate.Ours(cluster.GatewayClass(string(g.Spec.GatewayClassName))) {
			t, sets := translate.TranslateGateway(cluster, ports, g), translate.TranslateListenerSets(cluster, ports, g)
			at, has := own[g.UID]
			if !has {
				at = ofNodes(addresses)
			}
			served = append(served,
				routed{origin: model.Origin{Kind: "Gateway", NamespacedName: nameOf(g)},
					certificates: certificatesFor(open(t.Listeners)), fault: at.fault})
			keep(w.gateway(ctx, g, t, sets, routes, at))
			for i := range sets {
				set := &sets[i]
				served = append(served, routed{
					origin:       model.Origin{Kind: "ListenerSet", NamespacedName: nameOf(set.Set)},
					certificates: certificatesFor(open(set.Listeners)),
				})
				keep(w.listenerSet(ctx, set, routes, at.missing))
			}
		}
	}
	for _, p := range list[gatewayv1.BackendTLSPolicy](o.policies) {
		keep(w.policy(ctx, cluster, p, routes))
	}
	there := map[types.UID]bool{}
	for _, in := range list[networkingv1.Ingress](o.ingresses) {
		there[in.UID] = true
		if o.ours(in) {
			t := translate.TranslateIngress(cluster, ports, in)
			served = append(served, routed{origin: t.Model.Origin, services: t.Services,
				certificates: certificatesFor(t.Listeners)})
			keep(w.ingress(ctx, in, t, addresses))
		}
	}
	w.routed.Store(&served)
	maps.DeleteFunc(w.told, func(of toldOf, _ string) bool { return !there[of.uid] })
	return first
}

// want watches the Secrets and ConfigMaps that the statuses speak of.
func (w *statusWriter) want(cluster view) {
	secrets, authorities := map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	add := func(to map[types.NamespacedName]bool, names []types.NamespacedName) {
		for _, n := range names {
			to[n] = true
		}
	}
	for _, g := range list[gatewayv1.Gateway](w.objects.gateways) {
		add(secrets, translate.Secrets(cluster, g))
		add(authorities, translate.GatewayAuthorities(cluster, g))
	}
	for _, s := range list[gatewayv1.ListenerSet](w.objects.listenerSets) {
		add(secrets, translate.SetSecrets(cluster, s))
	}
	for _, in := range list[networkingv1.Ingress](w.objects.ingresses) {
		if w.objects.ours(in) {
			certificates, _ := translate.IngressSecrets(in)
			add(secrets, certificates)
		}
	}
	for _, p := range list[gatewayv1.BackendTLSPolicy](w.objects.policies) {
		add(authorities, translate.Authorities(p))
	}
	w.secrets.Want(secrets)
	w.authorities.Want(authorities)
}

// reached is what other statuses have from the routes.
type reached struct {
	served   []routed
	attached map[translate.Attached]int32
	// gateways are those through which a Service is reached.
	gateways map[types.NamespacedName]map[types.NamespacedName]bool
}

// routes writes the statuses of all routes.
func (w *statusWriter) routes(ctx context.Context, cluster view, ports translate.Ports, keep func(error)) reached {
	o, all := w.objects,
		reached{attached: map[translate.Attached]int32{},
			gateways: map[types.NamespacedName]map[types.NamespacedName]bool{}}
	count := func(r translate.Route) []gatewayv1.RouteParentStatus {
		for _, a := range r.Attached {
			all.attached[a]++
		}
		for _, s := range r.Services {
			if all.gateways[s] == nil {
				all.gateways[s] = map[types.NamespacedName]bool{}
			}
			for _, g := range r.Gateways {
				all.gateways[s][g] = true
			}
		}
		if len(r.Attached) > 0 {
			all.served = append(all.served, routed{origin: r.Model.Origin, services: r.Services})
		}
		return r.Parents
	}
	for _, r := range list[gatewayv1.HTTPRoute](o.httpRoutes) {
		if status, ok := routeStatus(r.Status.RouteStatus, count(translate.TranslateHTTPRoute(cluster, ports, r))); ok {
			next := r.DeepCopy()
			next.Status.RouteStatus = status
			_, err := w.gateways.HTTPRoutes(r.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
			keep(err)
		}
	}
	for _, r := range list[gatewayv1.GRPCRoute](o.grpcRoutes) {
		if status, ok := routeStatus(r.Status.RouteStatus, count(translate.TranslateGRPCRoute(cluster, ports, r))); ok {
			next := r.DeepCopy()
			next.Status.RouteStatus = status
			_, err := w.gateways.GRPCRoutes(r.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
			keep(err)
		}
	}
	for _, r := range list[gatewayv1.TLSRoute](o.tlsRoutes) {
		if status, ok := routeStatus(r.Status.RouteStatus, count(translate.TranslateTLSRoute(cluster, ports, r))); ok {
			next := r.DeepCopy()
			next.Status.RouteStatus = status
			_, err := w.gateways.TLSRoutes(r.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
			keep(err)
		}
	}
	return all
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
	next.Status.Conditions, _ = conditions(c.Status.Conditions, translate.ClassStatus(c, w.poolExists))
	next.Status.SupportedFeatures = translate.Features(c, ports)
	if equality.Semantic.DeepEqual(c.Status, next.Status) {
		return nil
	}
	_, err := w.gateways.GatewayClasses().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func (w *statusWriter) gateway(
	ctx context.Context, g *gatewayv1.Gateway, t translate.Gateway, sets []translate.ListenerSet, routes reached,
	at reachable,
) error {
	next := g.DeepCopy()
	want := t.Conditions(sets, at.missing)
	next.Status.Conditions, _ = conditions(g.Status.Conditions, want)
	if insecure := string(gatewayv1.GatewayConditionInsecureFrontendValidationMode); !meta.IsStatusConditionTrue(want,
		insecure) {
		meta.RemoveStatusCondition(&next.Status.Conditions, insecure)
	}
	next.Status.Addresses = nil
	kind := gatewayv1.IPAddressType
	for _, a := range at.addresses {
		next.Status.Addresses = append(next.Status.Addresses, gatewayv1.GatewayStatusAddress{Type: &kind, Value: a})
	}
	next.Status.Listeners = nil
	name := nameOf(g)
	for _, l := range t.Listeners {
		of := gatewayv1.ListenerStatus{
			Name: gatewayv1.SectionName(l.Name), SupportedKinds: l.Kinds,
			AttachedRoutes: routes.attached[translate.Attached{Kind: "Gateway", Holder: name, Listener: l.Name}],
		}
		var have []metav1.Condition
		for _, old := range g.Status.Listeners {
			if old.Name == of.Name {
				have = old.Conditions
			}
		}
		of.Conditions, _ = conditions(have, l.Conditions)
		next.Status.Listeners = append(next.Status.Listeners, of)
	}
	var accepted int32
	for i := range sets {
		if sets[i].Accepted {
			accepted++
		}
	}
	// A definition of the cluster that is older than ListenerSets has no such field.
	if next.Status.AttachedListenerSets = nil; g.Spec.AllowedListeners != nil {
		next.Status.AttachedListenerSets = &accepted
	}
	if equality.Semantic.DeepEqual(g.Status, next.Status) {
		return nil
	}
	_, err := w.gateways.Gateways(g.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func (w *statusWriter) listenerSet(
	ctx context.Context, t *translate.ListenerSet, routes reached, missing translate.Missing,
) error {
	s := t.Set
	next := s.DeepCopy()
	next.Status.Conditions, _ = conditions(s.Status.Conditions, t.Conditions(missing))
	next.Status.Listeners = nil
	name := nameOf(s)
	for _, l := range t.Listeners {
		of := gatewayv1.ListenerEntryStatus{
			Name: gatewayv1.SectionName(l.Name), SupportedKinds: l.Kinds,
			AttachedRoutes: routes.attached[translate.Attached{Kind: "ListenerSet", Holder: name, Listener: l.Name}],
		}
		var have []metav1.Condition
		for _, old := range s.Status.Listeners {
			if old.Name == of.Name {
				have = old.Conditions
			}
		}
		of.Conditions, _ = conditions(have, l.Conditions)
		next.Status.Listeners = append(next.Status.Listeners, of)
	}
	if equality.Semantic.DeepEqual(s.Status, next.Status) {
		return nil
	}
	_, err := w.gateways.ListenerSets(s.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

// maxAncestors is how many Gateways the Gateway API lets the status of a policy have.
const maxAncestors = 16

// policy writes the status of a policy: it has the Gateways through which its Services are reached.
func (w *statusWriter) policy(ctx context.Context, cluster view, p *gatewayv1.BackendTLSPolicy, routes reached) error {
	gateways := map[types.NamespacedName]bool{}
	for _, s := range translate.Targets(p) {
		maps.Copy(gateways, routes.gateways[s])
	}
	next := p.DeepCopy()
	next.Status.Ancestors = []gatewayv1.PolicyAncestorStatus{}
	for _, a := range p.Status.Ancestors {
		if a.ControllerName != translate.GatewayController {
			next.Status.Ancestors = append(next.Status.Ancestors, a)
		}
	}
	t := translate.TranslatePolicy(cluster, p)
	for _, g := range slices.SortedFunc(maps.Keys(gateways), compareNames) {
		if len(next.Status.Ancestors) == maxAncestors {
			break
		}
		ref := gatewayv1.ParentReference{
			Group: ptr.To(gatewayv1.Group(gatewayv1.GroupName)), Kind: ptr.To(gatewayv1.Kind("Gateway")),
			Namespace: ptr.To(gatewayv1.Namespace(g.Namespace)), Name: gatewayv1.ObjectName(g.Name),
		}
		var before []metav1.Condition
		for _, old := range p.Status.Ancestors {
			if old.ControllerName == translate.GatewayController && equality.Semantic.DeepEqual(old.AncestorRef, ref) {
				before = old.Conditions
			}
		}
		of := gatewayv1.PolicyAncestorStatus{AncestorRef: ref, ControllerName: translate.GatewayController}
		of.Conditions, _ = conditions(before, t.Conditions)
		next.Status.Ancestors = append(next.Status.Ancestors, of)
	}
	if len(p.Status.Ancestors)+len(next.Status.Ancestors) == 0 || equality.Semantic.DeepEqual(p.Status, next.Status) {
		return nil
	}
	_, err := w.gateways.BackendTLSPolicies(p.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return err
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
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
			if old.ControllerName == translate.GatewayController &&
				equality.Semantic.DeepEqual(old.ParentRef, p.ParentRef) {
				before = old.Conditions
			}
		}
		p.Conditions, _ = conditions(before, p.Conditions)
		next.Parents = append(next.Parents, p)
	}
	return next, !equality.Semantic.DeepEqual(have.Parents, next.Parents) && len(have.Parents)+len(next.Parents) > 0
}

func (w *statusWriter) ingress(
	ctx context.Context, in *networkingv1.Ingress, t translate.Ingress, addresses []string,
) error {
	reason := "NoEffect"
	if t.Refused {
		reason = "Refused"
	}
	w.tell(in, "problems", reason, t.Problems)
	w.tell(in, "ports", portInUse, t.Taken)
	w.tell(in, "certificates", certificateProblem, w.certificateEvents(t.Listeners, time.Now()))
	var want []networkingv1.IngressLoadBalancerIngress
	if nowhere := len(t.Taken) > 0 && len(t.Listeners) == 0; !t.Refused && !nowhere {
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

// Reasons of events about a port of the nodes that the gateway lacks, and about certificates that
// clients refuse.
const (
	portInUse          = "GatewayPortInUse"
	certificateProblem = "CertificateProblem"
)

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// tell makes an event of problems of one kind, once for each set of them.
func (w *statusWriter) tell(in *networkingv1.Ingress, kind, reason string, problems []string) {
	of, text := toldOf{in.UID, kind}, ""
	for _, p := range slices.Compact(slices.Sorted(slices.Values(problems))) {
		text += p + "; "
	}
	if text == w.told[of] {
		return
	}
	w.told[of] = text
	maps.DeleteFunc(w.told, func(_ toldOf, text string) bool { return text == "" })
	if text != "" {
		w.recorder.Event(in, corev1.EventTypeWarning, reason, text[:len(text)-2])
	}
}
