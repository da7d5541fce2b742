// Package dns is cluster DNS. On every node it answers for the names of services and pods, by the
// Kubernetes DNS-Based Service Discovery specification 1.1.0, and forwards all other questions to
// the node's resolvers. It asks no pod and no other node.
//
//	query ─▶ users' rules ─▶ cluster's zone ─▶ cache ─▶ other servers
//	          (rewrite,       (state, from       (≤ 30 s)   (the node's resolvers, or
//	           hosts)          the informers)                those of a user's rule)
//
// Invariants:
//
//   - An answer is the informers' last state. It stays the answer while they have no server.
//   - Until the informers have listed everything, a file has the answers of the previous process;
//     without it the cluster's names are answered with SERVFAIL. A name is never denied because it
//     is not known yet.
//   - Wrong rules change nothing: the earlier rules stay, and an event reports the error.
//
// It listens at one address of the node. Package network assigns the address, and package proxy
// redirects packets for the address of the service kube-system/kube-dns to it.
//
// Not here: transfers, DNSSEC signatures, DNS over TLS.
package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/internal/resolvconf"
	"github.com/barque/barque/network/pace"
)

// ServiceNamespace and ServiceName are the service of cluster DNS, RulesName the ConfigMap in the
// same namespace with the users' rules.
const (
	ServiceNamespace = "kube-system"
	ServiceName      = "kube-dns"
	RulesName        = "coredns-custom"
)

// Config is a Server's configuration. All informers belong to the caller, which starts them after
// New.
type Config struct {
	// Domain is the cluster's, without a dot at its end.
	Domain string
	// Listen is the address for queries, by UDP and TCP. It is the node's own, and unreachable for
	// other machines. Addresses are the clients' addresses of it, the cluster DNS service's.
	Listen    netip.AddrPort
	Addresses []netip.Addr
	// Networks are those of pods and services: reverse names in them are not forwarded.
	Networks []netip.Prefix
	// ResolvConf names the node's resolvers (package resolvconf). It is read again when it changes.
	ResolvConf string

	Services       coreinformers.ServiceInformer
	EndpointSlices discoveryinformers.EndpointSliceInformer
	Namespaces     coreinformers.NamespaceInformer
	// Rules holds the ConfigMap with the users' rules, and maybe others. It may be nil.
	Rules coreinformers.ConfigMapInformer
	// File keeps the state for the next process. "" for none.
	File string
	// Refused is called with a ConfigMap whose rules are wrong. It may be nil.
	Refused func(*corev1.ConfigMap, error)

	Logger *slog.Logger
}

// Server is one node's cluster DNS.
type Server struct {
	config   Config
	state    *state
	resolver *resolver
	guard    *loopGuard
	rules    atomic.Pointer[compiled]
	metrics  *metrics
	places   chan struct{} // one for each query that is being answered
	at       atomic.Pointer[net.UDPAddr]
	synced   atomic.Bool

	acceptedMu sync.Mutex
	accepted   map[string]string // the users' rules that are in use
	recalled   bool              // whether they are those of an earlier process

	// The exchanges by which others are asked; tests have their own.
	ask, askTCP exchange

	readyOnce sync.Once
	ready     chan struct{}
}

// listenPace is how an address that cannot be listened at is tried again.
var listenPace = pace.Pace{MinInterval: time.Second, RetryMin: time.Second, RetryMax: 15 * time.Second}

// New prepares a server and asks the informers to be started.
func New(config Config) (*Server, error) { return newServer(config, overNetwork) }

func newServer(config Config, ask exchange) (*Server, error) {
	if _, ok := dns.IsDomainName(config.Domain); !ok || config.Domain == "" {
		return nil, fmt.Errorf("cluster DNS: %q is no domain", config.Domain)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		config: config, state: newState(), metrics: newMetrics(), places: make(chan struct{}, maxQueries),
		ready: make(chan struct{}),
		ask:   ask,
		askTCP: func(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
			return over(ctx, "tcp", server, query)
		},
	}
	node := newUpstream((&nodeResolvers{path: config.ResolvConf, own: config.own}).servers, ask)
	s.guard = &loopGuard{told: s.tellLoop, show: s.metrics.loop}
	s.resolver = &resolver{
		zone:  &zone{state: s.state, origin: dns.CanonicalName(config.Domain), server: config.Addresses},
		own:   config.Networks,
		cache: newAnswers(cacheSize), node: node, loops: s.guard.looping, failed: s.forwardFailed,
		rules: s.rules.Load, waiting: newLimiter(maxForwarded, maxForwardedOfOne), ready: s.synced.Load,
	}
	s.guard.upstreams = s.resolver.upstreams
	s.setRules(&Rules{})
	s.recall()
	_ = s.sources() // asking for them makes their factory start them
	if config.Rules != nil {
		_ = config.Rules.Informer()
	}
	return s, nil
}

// own tells whether an address is this server's.
func (c *Config) own(addr netip.Addr) bool {
	return addr == c.Listen.Addr() || slices.Contains(c.Addresses, addr)
}

func (s *Server) setRules(rules *Rules) {
	s.rules.Store(compile(rules, s.resolver.node, s.ask, s.askTCP))
}

// source is an informer with the consumer of its objects.
type source struct {
	informer cache.SharedIndexInformer
	set      func(any)
	drop     func(any)
}

func (s *Server) sources() []source {
	return []source{
		{s.config.Services.Informer(),
			func(o any) { s.state.setService(o.(*corev1.Service)) },
			func(o any) { service := o.(*corev1.Service); s.state.deleteService(keyOf(service, service.Name)) }},
		{s.config.EndpointSlices.Informer(),
			func(o any) { s.state.setSlice(o.(*discoveryv1.EndpointSlice)) },
			func(o any) { slice := o.(*discoveryv1.EndpointSlice); s.state.deleteSlice(keyOf(slice, slice.Name)) }},
		{s.config.Namespaces.Informer(),
			func(o any) { s.state.setNamespace(o.(*corev1.Namespace).Name, true) },
			func(o any) { s.state.setNamespace(o.(*corev1.Namespace).Name, false) }},
	}
}

// handler follows an informer. An unobserved deletion comes in a wrapper.
func (f source) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    f.set,
		UpdateFunc: func(_, o any) { f.set(o) },
		DeleteFunc: func(o any) {
			if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			f.drop(o)
		},
	}
}

// Ready is closed when queries are answered, the cluster's names among them, for the first time.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run answers until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	all := s.sources()
	if s.config.Rules != nil {
		all = append(all, s.rulesSource())
	}
	var synced []cache.InformerSynced
	var rulesSynced cache.InformerSynced
	for i, f := range all {
		registration, err := f.informer.AddEventHandler(f.handler())
		if err != nil {
			return pace.EndOr(ctx, fmt.Errorf("cluster DNS: watch: %w", err))
		}
		defer func() { _ = f.informer.RemoveEventHandler(registration) }() // fails only for another informer's
		if i < len(s.sources()) {
			synced = append(synced, registration.HasSynced)
		} else {
			rulesSynced = registration.HasSynced
		}
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	if rulesSynced != nil {
		parts.Go(func() {
			if cache.WaitForCacheSync(ctx.Done(), rulesSynced) && !s.rulesExist() {
				s.forgetRecalled()
			}
		})
	}
	listens := make(chan struct{})
	parts.Go(func() {
		if !cache.WaitForCacheSync(ctx.Done(), synced...) {
			return
		}
		s.synced.Store(true)
		select {
		case <-listens:
			s.readyOnce.Do(func() { close(s.ready) })
		case <-ctx.Done():
		}
	})
	parts.Go(func() { s.guard.run(ctx) })
	if s.config.File != "" {
		parts.Go(func() { s.remember(ctx) })
	}
	listening := sync.OnceFunc(func() { close(listens) })
	pace.Run(ctx, listenPace, pace.NewTrigger(), func(ctx context.Context) error { return s.serve(ctx, listening) },
		func(err error) {
			s.config.Logger.Error("cluster DNS: cannot listen, trying again", "address", s.config.Listen, "err", err)
		})
	return nil
}

// accept uses rules, which were made of these files.
func (s *Server) accept(rules *Rules, files map[string]string) {
	s.acceptedMu.Lock()
	defer s.acceptedMu.Unlock()
	s.use(rules, files)
}

// use is accept, with acceptedMu held.
func (s *Server) use(rules *Rules, files map[string]string) {
	s.setRules(rules)
	s.accepted, s.recalled = files, false
	s.state.touch()
}

// forgetRecalled drops an earlier process's rules that users have deleted since: informers do not
// report absent objects.
func (s *Server) forgetRecalled() {
	s.acceptedMu.Lock()
	defer s.acceptedMu.Unlock()
	if s.recalled {
		s.use(&Rules{}, nil)
		s.config.Logger.Info("cluster DNS: the earlier rules are gone", "configmap", RulesName)
	}
}

// rulesExist tells whether the servers have the users' rules, right or wrong ones.
func (s *Server) rulesExist() bool {
	_, exists, err := s.config.Rules.Informer().GetStore().GetByKey(ServiceNamespace + "/" + RulesName)
	return exists || err != nil
}

// rulesSource follows the users' rules.
func (s *Server) rulesSource() source {
	wanted := func(o any) bool {
		m := o.(*corev1.ConfigMap)
		return m.Namespace == ServiceNamespace && m.Name == RulesName
	}
	var last string // the last examined version
	return source{
		informer: s.config.Rules.Informer(),
		set: func(o any) {
			m := o.(*corev1.ConfigMap)
			if !wanted(o) || m.ResourceVersion != "" && m.ResourceVersion == last {
				return
			}
			last = m.ResourceVersion
			rules, err := ParseRules(m.Data, s.config.Domain, s.config.own)
			if err != nil {
				s.config.Logger.Error("cluster DNS: the rules are wrong, those before stay", "configmap", RulesName,
					"err", err)
				s.metrics.refused.Inc()
				if s.config.Refused != nil {
					s.config.Refused(m, err)
				}
				return
			}
			s.accept(rules, m.Data)
			s.config.Logger.Info("cluster DNS: the rules have changed", "configmap", RulesName)
		},
		drop: func(o any) {
			if wanted(o) {
				s.accept(&Rules{}, nil)
				s.config.Logger.Info("cluster DNS: there are no rules any more", "configmap", RulesName)
			}
		},
	}
}

// forwardFailed records that no outside server answered.
func (s *Server) forwardFailed(to *upstream) {
	s.metrics.silent.Inc()
	s.guard.failed(to)
}

func (s *Server) tellLoop(of *upstream, loops bool) {
	if of != s.resolver.node {
		if loops {
			s.config.Logger.Error(
				"cluster DNS: the servers of a rule ask cluster DNS itself, so that its names have no answer; "+
					"let the rule name others", "configmap", RulesName, "servers", of.servers(), "zones", of.zones)
			return
		}
		s.config.Logger.Info("cluster DNS: the servers of a rule no longer ask cluster DNS itself", "servers",
			of.servers(), "zones", of.zones)
		return
	}
	if loops {
		s.config.Logger.Error(
			"cluster DNS: the node's resolvers ask cluster DNS itself, so that names outside of the cluster have no answer; "+
				"let them ask a server outside", "file", s.config.ResolvConf)
		return
	}
	s.config.Logger.Info("cluster DNS: the node's resolvers no longer ask cluster DNS itself")
}

// nodeResolvers reads which servers the node asks.
type nodeResolvers struct {
	path string
	own  func(netip.Addr) bool

	mu   sync.Mutex
	read time.Time
	list []netip.AddrPort
}

// readEvery is how long the contents of the file are used without a check.
const readEvery = 5 * time.Second

// servers returns the node's resolvers, without this one. A file that cannot be read changes
// nothing.
func (n *nodeResolvers) servers() []netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.read.IsZero() && time.Since(n.read) < readEvery {
		return n.list
	}
	n.read = time.Now()
	config, err := resolvconf.Read(n.path)
	if err != nil {
		return n.list
	}
	var list []netip.AddrPort
	for _, text := range config.Nameservers {
		if addr, err := netip.ParseAddr(text); err == nil && !n.own(addr) {
			list = append(list, netip.AddrPortFrom(addr, 53))
		}
	}
	n.list = list
	return list
}
