package apiserver

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	metricsfeatures "k8s.io/component-base/metrics/features"

	"github.com/barque/barque/apiserver/apiservices"
	"github.com/barque/barque/apiserver/bootstrap"
	"github.com/barque/barque/apiserver/fairness"
	"github.com/barque/barque/apiserver/fieldtypes"
	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/apiserver/healthchecks"
	"github.com/barque/barque/apiserver/leaderterm"
	"github.com/barque/barque/apiserver/nodeproxy"
	"github.com/barque/barque/apiserver/openapi"
	"github.com/barque/barque/apiserver/podparts"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/router"
	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/apiserver/services"
	"github.com/barque/barque/apiserver/watchwriter"
	"github.com/barque/barque/internal/caller"
	"github.com/barque/barque/internal/cutoff"
)

// A server that stops ends watches, which their clients resume at another server, and gives streams
// (exec, logs) a moment; the remaining ones end with the process.
const (
	watchGrace  = 3 * time.Second
	streamGrace = 5 * time.Second
)

// Server is one API server. Make it with New and run it once.
type Server struct {
	cfg          Config
	chain        *chain
	registration *apiservices.Registration
	objects      *bootstrap.Objects
	documents    *openapi.Service
	loopback     *loopback
	port         *secureport.Port
	client       kubernetes.Interface
	kubelets     *nodeproxy.Proxy // nil when nothing leads to nodes
	informers    informers.SharedInformerFactory
	allocator    *services.Allocator
	defaults     func() bool // whether the authorizer knows the default roles and bindings
	caches       []ager
	closers      []func()
	failing      *failing
	synced       atomic.Bool // see unsynced
	leads        atomic.Bool // LeaderRoutine runs
	lasting      []lasting
	logger       *slog.Logger
}

// lasting are requests that end when their credentials count no more.
type lasting struct {
	*cutoff.Requests
	run func(ctx context.Context)
}

// New puts a server together. It needs the store only from Run on.
func New(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	metricsfeatures.ApplyFeatureGates(utilfeature.DefaultFeatureGate) // before a histogram is registered
	s := &Server{cfg: cfg, logger: cfg.Logger}
	var err error
	if s.port, err = s.newPort(); err != nil {
		return nil, err
	}
	if s.loopback, err = newLoopback(cfg.Listener.Addr(), s.port.LoopbackCA()); err != nil {
		return nil, err
	}
	if s.client, err = kubernetes.NewForConfig(s.LoopbackConfig()); err != nil {
		return nil, fmt.Errorf("loopback client: %w", err)
	}
	s.informers = informers.NewSharedInformerFactoryWithOptions(s.client, 0,
		informers.WithTransform(slim(podparts.New(podParts))))

	sec, err := s.newSecurity()
	if err != nil {
		return nil, err
	}
	parts, err := s.newParts(sec)
	if err != nil {
		return nil, err
	}
	config, err := s.genericConfig(s.loopback.overTLS(user.APIServerUser, user.SystemPrivilegedGroup), sec, parts)
	if err != nil {
		return nil, err
	}
	if s.chain, err = s.newChain(config, parts); err != nil {
		return nil, err
	}
	if err := s.installResources(config, parts); err != nil {
		return nil, err
	}
	s.installPaths(sec, parts)
	s.failing = s.newFailing(parts.services)
	if slices.Contains(s.chain.own.ListedPaths(), "/apis/"+metricsVersion.String()) {
		s.chain.listGroups(metricsVersion)
	}
	if s.registration, err = s.newRegistration(parts.scheme); err != nil {
		return nil, err
	}
	s.objects = s.newObjects()
	return s, nil
}

// newPort returns the API's port, which is not open yet. While it is, requests in the process are
// served.
func (s *Server) newPort() (*secureport.Port, error) {
	handler := func() http.Handler { return s.chain.aggregator.GenericAPIServer.Handler }
	return secureport.New(secureport.Config{
		Listener: s.cfg.Listener, Certificate: s.cfg.Certificate, ClientCA: s.cfg.ClientCA, OwnProxyCA: s.cfg.ProxyCA,
		ProxyCA: s.frontProxy().CAs, Renewed: s.cfg.Renewed,
		Handler: handler, Opens: func() { s.loopback.transport.Serve(handler()) },
		Closes:   func() { s.loopback.transport.Refuse() },
		Patience: streamGrace, TLS: s.cfg.TLS, Limits: s.cfg.Connections, HTTP2Streams: s.cfg.Serving.HTTP2Streams,
		Now: s.cfg.Now, Logger: s.cfg.Logger,
	})
}

// genericConfig fills in the generic server's configuration.
func (s *Server) genericConfig(own *restclient.Config, sec *security, parts *parts) (*genericapiserver.Config, error) {
	c := genericapiserver.NewConfig(parts.codecs)
	c.SecureServing = s.port.ForGeneric()
	c.LoopbackClientConfig = own
	c.ExternalAddress = s.cfg.Advertise.String()
	c.PublicAddress = s.cfg.Advertise.Addr().AsSlice()
	c.EffectiveVersion = newEffectiveVersion(s.cfg.Build)
	c.Authentication.APIAudiences = s.cfg.ServiceAccounts.Audiences
	c.Authentication.RequestHeaderConfig = s.frontProxy().Headers()
	c.Authentication.Authenticator = caller.Authenticator(
		roomyAuthenticator{secureport.Authenticator(sec.authenticator, s.frontProxy().Sent)})
	c.Authorization.Authorizer = sec.authorizer
	c.RuleResolver = sec.rules
	c.AdmissionControl = parts.admission
	c.RESTOptionsGetter = parts.storage
	c.StorageObjectCountTracker = parts.counts
	limits := s.cfg.Limits
	c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight = limits.InFlight, limits.MutatingInFlight
	if limits.Fairness && fairness.Served(s.serves) {
		c.FlowControl = fairness.New(s.informers, s.client, limits.InFlight+limits.MutatingInFlight)
	}
	c.RequestTimeout = s.cfg.RequestTimeout
	c.MinRequestTimeout = s.cfg.Serving.MinRequestTimeout
	c.GoawayChance = s.cfg.Serving.GoawayChance
	c.ShutdownWatchTerminationGracePeriod = watchGrace
	streams := genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	c.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
		return streams(r, info) || !info.IsResourceRequest && slices.Contains(s.cfg.LongRunning, info.Path)
	}
	c.EnableProfiling = s.cfg.Serving.Profiling
	c.ReadyzChecks = append(c.ReadyzChecks, s.cfg.ReadyChecks...)
	c.ReadyzChecks = append(c.ReadyzChecks, healthz.NamedCheck(BootstrapCheck, s.checkBootstrap))
	healthchecks.Add(c, healthchecks.Startup(BootstrapCheck, s.bootstrapped)...)
	c.LivezChecks = append(c.LivezChecks, s.cfg.LiveChecks...)
	c.HealthzChecks = append(c.HealthzChecks, s.cfg.LiveChecks...)
	c.ReadyzChecks, c.HealthzChecks = append(c.ReadyzChecks, s.cfg.Plugins...),
		append(c.HealthzChecks, s.cfg.Plugins...)
	// Each server of the chain is made of a copy of this configuration, and adds checks of its own.
	// With room behind the common ones, it would write into those of the other servers.
	c.HealthzChecks, c.LivezChecks, c.ReadyzChecks = slices.Clip(c.HealthzChecks), slices.Clip(c.LivezChecks),
		slices.Clip(c.ReadyzChecks)
	c.SkipOpenAPIInstallation = true
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	if log := s.cfg.Audit; log != nil {
		c.AuditBackend, c.AuditPolicyRuleEvaluator = log.Backend(), log.Policy
	}
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		handler = s.withoutWritesUntilSynced(
			leaderterm.FromHeader(rawlist.Handler(watchwriter.Handler(s.withDocuments(handler)))), parts.codecs)
		handler = gatewayauth.Bounded(handler)
		for _, l := range s.lastingRequests(sec, c.LongRunningFunc) {
			handler = l.Handler(handler)
		}
		handler = s.withoutRights(
			caller.Handler(cutoff.WithProof(genericapiserver.DefaultBuildHandlerChain(handler, c))))
		return withStackRoom(quietLeavers(withUnauthenticated(handler, s.cfg.Unauthenticated)))
	}
	return c, nil
}

// lastingRequests are the requests that end with their credentials.
func (s *Server) lastingRequests(sec *security, long request.LongRunningRequestCheck) []lasting {
	if s.lasting != nil {
		return s.lasting
	}
	lasts := func(r *http.Request) bool {
		info, ok := request.RequestInfoFrom(r.Context())
		return ok && long(r, info)
	}
	tokens := cutoff.OfTokens(sec.ended, lasts)
	s.lasting = []lasting{{tokens, tokens.RunTokens}}
	add := func(q *cutoff.Requests, changed func() <-chan struct{}) {
		s.lasting = append(s.lasting, lasting{q, func(ctx context.Context) { q.Run(ctx, changed) }})
	}
	if s.cfg.Revoked != nil {
		add(cutoff.New(cutoff.ByCluster, s.cfg.Revoked, s.authorities, lasts), s.cfg.RevokedChanged)
	}
	if proxy := s.frontProxy(); proxy != nil {
		add(
			cutoff.New(cutoff.ByProxy, nil,
				func(*x509.Certificate) (x509.VerifyOptions, bool) { return proxy.Believed() }, lasts), proxy.Changed)
	}
	return s.lasting
}

func (s *Server) installResources(config *genericapiserver.Config, parts *parts) error {
	types, err := fieldtypes.New(parts.scheme)
	if err != nil {
		return err
	}
	var installations []resource.Installation
	for _, r := range parts.resources {
		built, err := r.Build(resource.Builder{Scheme: parts.scheme, Options: parts.storage, Now: s.cfg.Now})
		if err != nil {
			return err
		}
		for _, i := range built {
			if s.cfg.Versions.Serves(i.GroupVersion) {
				installations = append(installations, i)
			}
		}
	}
	in := &installer{server: s.chain.own, config: config, scheme: parts.scheme, types: types}
	if err := in.install(installations); err != nil {
		return err
	}
	s.chain.own.Handler.GoRestfulContainer.Router(&router.Router{})
	return nil
}

// Run serves until ctx ends and requests in flight have been answered.
func (s *Server) Run(ctx context.Context) error {
	ended, stop, err := s.start(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	select {
	case err = <-ended:
	case <-ctx.Done():
		// Upstream's start hooks end the process with an error when they are stopped before the
		// definitions of custom resources are known. Nothing was served yet, and there is nothing
		// to drain: a stop this early ends the process, and serving with it.
		if !s.chain.definitionsKnown() {
			return nil
		}
		stop(context.Cause(ctx))
		err = <-ended
	}
	stop(err)
	s.port.Drain()
	s.loopback.transport.Close()
	for _, f := range s.closers {
		f()
	}
	s.informers.Shutdown()
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	return nil
}

// start begins to serve, until stop is called. ended gets the outcome.
func (s *Server) start(ctx context.Context) (<-chan error, context.CancelCauseFunc, error) {
	prepared, err := s.chain.aggregator.PrepareRun()
	if err != nil {
		return nil, nil, err
	}
	serving, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- prepared.Run(serving) }()
	go age(serving, s.caches) // ends with serving
	for _, l := range s.lasting {
		go l.run(serving) // ends with serving
	}
	return ended, stop, nil
}

// ager is a cache that begins a new generation, and drops entries that were not used in the
// last one.
type ager interface{ Age() }

// cacheAge is the time between two calls: an unused entry is dropped after twice that, or earlier
// when the room is needed.
const cacheAge = 2 * time.Minute

// age begins new generations of caches, until ctx ends.
func age(ctx context.Context, caches []ager) {
	wait.UntilWithContext(ctx, func(context.Context) {
		for _, c := range caches {
			c.Age()
		}
	}, cacheAge)
}

// LoopbackConfig is the configuration of a client inside this process that may do everything.
func (s *Server) LoopbackConfig() *restclient.Config {
	return s.loopback.config(user.APIServerUser, user.SystemPrivilegedGroup)
}

// LoopbackConfigAs is the configuration of a client inside this process that is the given user.
func (s *Server) LoopbackConfigAs(name string, groups ...string) *restclient.Config {
	return s.loopback.config(name, groups...)
}

// Identities are the users that other parts of this process have credentials of.
func (s *Server) Identities() []user.Info { return s.loopback.users() }

// Informers are those of this server. Others in the process may add theirs and start them; all end
// with Run. Objects come without managedFields, and pods share their common parts.
func (s *Server) Informers() informers.SharedInformerFactory { return s.informers }

// podParts bounds, in bytes, the parts of pods that are kept for sharing: a thousand
// templates, about.
const podParts = 8 << 20

// slim makes the objects of informers smaller. They drop managedFields, which none of their readers
// uses: an update that is sent without them leaves the stored ones as they are. Pods share their
// common parts.
func slim(parts *podparts.Sharer) cache.TransformFunc {
	return func(obj any) (any, error) {
		if m, err := meta.Accessor(obj); err == nil {
			m.SetManagedFields(nil)
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			parts.Share(pod)
		}
		return obj, nil
	}
}

// withUnauthenticated sends some paths to handlers that authenticate on their own.
func withUnauthenticated(next http.Handler, handlers map[string]http.Handler) http.Handler {
	if len(handlers) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for prefix, h := range handlers {
			if underPrefix(r.URL.Path, prefix) {
				h.ServeHTTP(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// underPrefix reports whether path is prefix or lies below it.
func underPrefix(path, prefix string) bool {
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(prefix, "/"))
	return ok && (rest == "" || rest[0] == '/')
}
