package gateway

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/barque/barque/edge/gateway/endpoints"
	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/edge/gateway/proxy"
	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/lifecycle"
)

// Settings are the same on all nodes.
type Settings struct {
	// HTTPPort and HTTPSPort are those of Ingresses.
	HTTPPort, HTTPSPort uint16
	// Ports are those that listeners of Gateways may have.
	Ports []uint16
	// TrustedHops and Balancers are as in proxy.Config.
	TrustedHops, Balancers []netip.Prefix
	// HTTP3 serves HTTP/3, at the UDP ports of listeners of HTTPS.
	HTTP3 bool
}

func (s *Settings) ports(o *Objects) translate.Ports {
	p := translate.Ports{HTTP: s.HTTPPort, HTTPS: s.HTTPSPort, Allowed: s.Ports}
	var ours []*gatewayv1.Gateway
	cluster := view{Objects: o}
	for _, g := range list[gatewayv1.Gateway](o.gateways) {
		if translate.Ours(cluster.GatewayClass(string(g.Spec.GatewayClassName))) {
			ours = append(ours, g)
		}
	}
	p.Modes, p.Taken = translate.Modes(cluster, p, ours), o.taken(s.mine())
	return p
}

// NodeConfig of a Node.
type NodeConfig struct {
	Objects  *Objects
	Client   kubernetes.Interface // of the account, for Secrets and ConfigMaps
	Settings Settings
	// Exempt is as in proxy.Config.
	Exempt []netip.Prefix
	// AccessLog gets a line for each request; nil is none.
	AccessLog io.Writer
	// Listen opens a port; nil is that of all addresses of the machine.
	Listen func(port uint16) (net.Listener, error)
	// ListenPacket opens a UDP port; nil is that of all addresses of the machine.
	ListenPacket func(port uint16) (net.PacketConn, error)
	// Refused is called when a port of this node cannot be opened.
	Refused func(port uint16, err error)
	// Asked is as in proxy.Config.
	Asked  func(net.Conn) (netip.Addr, error)
	Logger *slog.Logger
}

// Node serves routes on one node.
type Node struct {
	config      NodeConfig
	objects     *Objects
	secrets     *Secrets
	authorities *Authorities
	endpoints   *endpoints.Set
	proxy       *proxy.Proxy

	mu    sync.Mutex
	dirty map[model.Origin]bool
	all   bool                          // everything is to be translated
	moved map[types.NamespacedName]bool // Services with other endpoints or policies
	wake  chan struct{}

	addressed addressed

	// Only the loop touches these.
	listeners map[model.Origin][]model.Listener              // of Ingresses, Gateways and ListenerSets
	wanted    map[model.Origin][]types.NamespacedName        // Secrets
	services  map[model.Origin][]types.NamespacedName        // of routes
	users     map[types.NamespacedName]map[model.Origin]bool // of Services
	left      map[string]int                                 // objects that are not watched, by kind
}

// NewNode returns the gateway of a node.
func NewNode(config NodeConfig) (*Node, error) {
	n := &Node{
		config: config, objects: config.Objects, dirty: map[model.Origin]bool{}, all: true,
		moved: map[types.NamespacedName]bool{}, wake: make(chan struct{}, 1),
		listeners: map[model.Origin][]model.Listener{},
		wanted:    map[model.Origin][]types.NamespacedName{}, services: map[model.Origin][]types.NamespacedName{},
		users: map[types.NamespacedName]map[model.Origin]bool{}, left: map[string]int{},
		addressed: addressed{changed: make(chan struct{})},
	}
	n.endpoints = endpoints.New(n.endpointsOf)
	n.secrets, n.authorities = NewSecrets(config.Client, func() {}), NewAuthorities(config.Client, func() {})
	packets := config.ListenPacket
	switch {
	case !config.Settings.HTTP3:
		packets = nil
	case packets == nil:
		packets = func(port uint16) (net.PacketConn, error) {
			return net.ListenPacket("udp", ":"+strconv.Itoa(int(port)))
		}
	}
	n.proxy = proxy.New(proxy.Config{
		TrustedHops: config.Settings.TrustedHops, Balancers: config.Settings.Balancers, Exempt: config.Exempt,
		Certificate: n.secrets.Certificate, Users: n.secrets.Users, Authority: n.authorities.Authority,
		Listen: config.Listen, ListenPacket: packets, Refused: config.Refused, AccessLog: config.AccessLog,
		Logger: config.Logger, Asked: config.Asked, Open: n.addressed.set,
	}, n.endpoints)
	return n, n.follow()
}

// addressed are the addresses of Gateways, with their ports, that the node serves.
type addressed struct {
	mu      sync.Mutex
	all     []netip.AddrPort
	changed chan struct{}
}

func (a *addressed) set(all []netip.AddrPort) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = all
	close(a.changed)
	a.changed = make(chan struct{})
}

// Addressed returns the addresses of Gateways, with their ports, that the node serves, and a
// channel that is closed when they change. Packets for them are to be led to this machine.
func (n *Node) Addressed() ([]netip.AddrPort, <-chan struct{}) {
	n.addressed.mu.Lock()
	defer n.addressed.mu.Unlock()
	return n.addressed.all, n.addressed.changed
}

// Collectors returns the metrics.
func (n *Node) Collectors() []prometheus.Collector { return n.proxy.Collectors() }

// follow notes changes.
func (n *Node) follow() error {
	o := n.objects
	one := func(kind string) cache.ResourceEventHandler {
		return each(func(name types.NamespacedName, _ any) {
			n.note(func() { n.dirty[model.Origin{Kind: kind, NamespacedName: name}] = true })
		})
	}
	everything := each(func(types.NamespacedName, any) { n.note(func() { n.all = true }) })
	service := each(func(name types.NamespacedName, _ any) { n.note(func() { n.moved[name] = true }) })
	policy := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if p, ok := obj.(*gatewayv1.BackendTLSPolicy); ok {
			n.note(func() {
				for _, service := range translate.Targets(p) {
					n.moved[service] = true
				}
			})
		}
	}
	slice := each(func(name types.NamespacedName, obj any) {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			n.note(func() {
				n.moved[types.NamespacedName{Namespace: s.Namespace,
					Name: s.Labels[discoveryv1.LabelServiceName]}] = true
			})
		}
	})
	for _, f := range []struct {
		informer cache.SharedIndexInformer
		handler  cache.ResourceEventHandler
	}{
		{o.ingresses, one("Ingress")}, {o.httpRoutes, one("HTTPRoute")}, {o.grpcRoutes, one("GRPCRoute")},
		{o.tlsRoutes, one("TLSRoute")},
		{o.ingressClasses, everything}, {o.classes, everything}, {o.gateways, everything},
		{o.listenerSets, everything}, {o.grants, everything},
		{o.namespaces, relabelled(func() { n.note(func() { n.all = true }) })},
		{o.services, service}, {o.services, holding(func() { n.note(func() { n.all = true }) })}, {o.slices, slice},
		{o.policies,
			cache.ResourceEventHandlerFuncs{AddFunc: policy, DeleteFunc: policy, UpdateFunc: func(before, now any) {
				if !onlyStatus(before, now) {
					policy(before)
					policy(now)
				}
			}}},
	} {
		if _, err := f.informer.AddEventHandler(f.handler); err != nil {
			return err
		}
	}
	return nil
}

// each calls f for every event of an object but changes of its status.
func each(f func(types.NamespacedName, any)) cache.ResourceEventHandler {
	call := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if name, err := cache.ObjectToName(obj); err == nil {
			f(types.NamespacedName{Namespace: name.Namespace, Name: name.Name}, obj)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: call, DeleteFunc: call, UpdateFunc: func(before, now any) {
		if !onlyStatus(before, now) {
			call(now)
		}
	}}
}

// onlyStatus reports whether nothing that routes are made of has changed. Kinds without a
// generation have no status, or one that counts.
func onlyStatus(before, now any) bool {
	a, err := meta.Accessor(before)
	if err != nil {
		return false
	}
	b, err := meta.Accessor(now)
	if err != nil || b.GetGeneration() == 0 {
		return false
	}
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() &&
		maps.Equal(a.GetAnnotations(), b.GetAnnotations())
}

// relabelled calls f when the labels of a namespace have changed, or a namespace has come or gone.
func relabelled(f func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { f() }, DeleteFunc: func(any) { f() },
		UpdateFunc: func(before, now any) {
			a, ok := before.(*corev1.Namespace)
			b, too := now.(*corev1.Namespace)
			if ok && too && !maps.Equal(a.Labels, b.Labels) {
				f()
			}
		},
	}
}

func (n *Node) note(change func()) {
	n.mu.Lock()
	change()
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run serves until ctx ends, and drains.
func (n *Node) Run(ctx context.Context) error {
	return lifecycle.All(ctx, n.secrets.Run, n.authorities.Run, n.proxy.Run, n.loop)
}

func (n *Node) loop(ctx context.Context) error {
	if !n.objects.waitForSync(ctx) {
		return nil
	}
	for {
		n.reconcile()
		select {
		case <-ctx.Done():
			return nil
		case <-n.wake:
		}
	}
}

// reconcile takes over the changes since the last time.
func (n *Node) reconcile() {
	n.mu.Lock()
	dirty, all, moved := n.dirty, n.all, n.moved
	n.dirty, n.all, n.moved = map[model.Origin]bool{}, false, map[types.NamespacedName]bool{}
	n.mu.Unlock()
	if all {
		for _, origin := range n.everything() {
			dirty[origin] = true
		}
	}
	for service := range moved {
		for origin := range n.users[service] {
			dirty[origin] = true
		}
	}
	ports, cluster := n.config.Settings.ports(n.objects), view{Objects: n.objects}
	changes := map[model.Origin]*model.Route{}
	for origin := range dirty {
		if origin.Kind == "Gateway" || origin.Kind == "ListenerSet" {
			n.listen(cluster, ports, origin)
			continue
		}
		route, services := n.translate(cluster, ports, origin)
		changes[origin] = route
		n.uses(origin, services)
	}
	n.proxy.SetRoutes(changes)
	for service := range moved {
		n.endpoints.Update(service)
	}
	if len(dirty)+len(moved) > 0 {
		n.without("ConfigMaps", n.authorities.Want(n.authoritiesWanted()))
	}
	if len(dirty) > 0 {
		n.without("Secrets", n.secrets.Want(n.secretsWanted()))
		var listeners []model.Listener
		for _, origin := range slices.SortedFunc(maps.Keys(n.listeners), model.Compare) {
			listeners = append(listeners, n.listeners[origin]...)
		}
		n.proxy.SetPacketsTaken(n.objects.packetsTaken(n.config.Settings.mine()))
		n.proxy.SetListeners(listeners)
	}
}

// without logs how many objects of a kind are too many, when that changes.
func (n *Node) without(kind string, left int) {
	if n.left[kind] != left {
		n.config.Logger.Warn("routes name too many objects: the gateway does without the others", "kind", kind, "limit",
			mostWatched, "others", left)
	}
	n.left[kind] = left
}

// everything is all that is translated, and all that was.
func (n *Node) everything() []model.Origin {
	all := map[model.Origin]bool{}
	for origin := range n.services {
		all[origin] = true
	}
	for origin := range n.listeners {
		all[origin] = true
	}
	for kind, informer := range map[string]cache.SharedIndexInformer{
		"Ingress": n.objects.ingresses, "Gateway": n.objects.gateways, "ListenerSet": n.objects.listenerSets,
		"HTTPRoute": n.objects.httpRoutes, "GRPCRoute": n.objects.grpcRoutes, "TLSRoute": n.objects.tlsRoutes,
	} {
		for _, key := range informer.GetStore().ListKeys() {
			if name, err := cache.ParseObjectName(key); err == nil {
				all[model.Origin{Kind: kind,
					NamespacedName: types.NamespacedName{Namespace: name.Namespace, Name: name.Name}}] = true
			}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// listen takes over the listeners of a Gateway or a ListenerSet.
func (n *Node) listen(cluster view, ports translate.Ports, origin model.Origin) {
	delete(n.listeners, origin)
	delete(n.wanted, origin)
	var listeners []translate.Listener
	if origin.Kind == "ListenerSet" {
		s := cluster.ListenerSet(origin.NamespacedName)
		if s == nil {
			return
		}
		g := translate.GatewayOf(cluster, s)
		if g == nil {
			return
		}
		listeners = translate.TranslateListenerSet(cluster, ports, g, s).Listeners
		n.wanted[origin] = translate.SetSecrets(cluster, s)
	} else {
		g := cluster.Gateway(origin.NamespacedName)
		if g == nil || !translate.Ours(cluster.GatewayClass(string(g.Spec.GatewayClassName))) {
			return
		}
		listeners = translate.TranslateGateway(cluster, ports, g).Listeners
		n.wanted[origin] = translate.Secrets(cluster, g)
	}
	for _, l := range listeners {
		if l.Serves && !l.Waits {
			n.listeners[origin] = append(n.listeners[origin], l.Model)
		}
	}
}

// translate returns the route of an object, or nil if there is none.
func (n *Node) translate(
	cluster view, ports translate.Ports, origin model.Origin,
) (*model.Route, []types.NamespacedName) {
	key := origin.String()
	var of translate.Route
	switch origin.Kind {
	case "Ingress":
		delete(n.listeners, origin)
		delete(n.wanted, origin)
		in := get[networkingv1.Ingress](n.objects.ingresses, key)
		if in == nil || !n.objects.ours(in) {
			return nil, nil
		}
		translated := translate.TranslateIngress(cluster, ports, in)
		n.listeners[origin] = translated.Listeners
		certificates, users := translate.IngressSecrets(in)
		n.wanted[origin] = append(certificates, users...)
		return translated.Model, translated.Services
	case "HTTPRoute":
		if r := get[gatewayv1.HTTPRoute](n.objects.httpRoutes, key); r != nil {
			of = translate.TranslateHTTPRoute(cluster, ports, r)
		}
	case "GRPCRoute":
		if r := get[gatewayv1.GRPCRoute](n.objects.grpcRoutes, key); r != nil {
			of = translate.TranslateGRPCRoute(cluster, ports, r)
		}
	case "TLSRoute":
		if r := get[gatewayv1.TLSRoute](n.objects.tlsRoutes, key); r != nil {
			of = translate.TranslateTLSRoute(cluster, ports, r)
		}
	}
	return of.Model, of.Services
}

// uses notes the Services of a route.
func (n *Node) uses(origin model.Origin, services []types.NamespacedName) {
	for _, s := range n.services[origin] {
		delete(n.users[s], origin)
		if len(n.users[s]) == 0 {
			delete(n.users, s)
		}
	}
	delete(n.services, origin)
	if len(services) > 0 {
		n.services[origin] = services
	}
	for _, s := range services {
		if n.users[s] == nil {
			n.users[s] = map[model.Origin]bool{}
		}
		n.users[s][origin] = true
	}
}

// endpointsOf is an endpoints.Lookup.
func (n *Node) endpointsOf(name types.NamespacedName) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	return view{Objects: n.objects}.Service(name),
		indexed[discoveryv1.EndpointSlice](n.objects.slices, serviceIndex, name.String())
}

// authoritiesWanted are the ConfigMaps of the policies whose Services have a route, and those of
// Gateways for their clients.
func (n *Node) authoritiesWanted() map[types.NamespacedName]bool {
	names := map[types.NamespacedName]bool{}
	cluster := view{Objects: n.objects}
	for _, g := range list[gatewayv1.Gateway](n.objects.gateways) {
		for _, m := range translate.GatewayAuthorities(cluster, g) {
			names[m] = true
		}
	}
	for _, p := range list[gatewayv1.BackendTLSPolicy](n.objects.policies) {
		if slices.ContainsFunc(translate.Targets(p), func(s types.NamespacedName) bool { return len(n.users[s]) > 0 }) {
			for _, m := range translate.Authorities(p) {
				names[m] = true
			}
		}
	}
	return names
}

func (n *Node) secretsWanted() map[types.NamespacedName]bool {
	names := map[types.NamespacedName]bool{}
	for _, all := range n.wanted {
		for _, s := range all {
			names[s] = true
		}
	}
	return names
}
