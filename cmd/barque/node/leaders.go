package node

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/apiserver/admission/quota"
	"github.com/barque/barque/apiserver/leaderterm"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/cmd/barque/node/adapters"
	"github.com/barque/barque/cmd/barque/node/addons"
	"github.com/barque/barque/controllers"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/membership/members"
	"github.com/barque/barque/scheduler"
)

// fenced returns a client configuration for the term of lead; apiserver/storage fences the writes.
// Tests may insert a transport.
func (s *server) fenced(lead context.Context, config *rest.Config) *rest.Config {
	term := runtime.TermFrom(lead)
	if wrap := s.options.WrapLeaderClient; wrap != nil {
		config = rest.CopyConfig(config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return wrap(term, next) })
	}
	return runtime.Fenced(lead, term, leaderterm.Header, config)
}

// startLeaderWork runs the controllers and the scheduler while this server leads. Their informers
// run on every server, so that a new leader has nothing to fetch.
func (s *server) startLeaderWork(ctx context.Context) error {
	routines, err := s.routines(adapters.Liveness{Watch: s.life})
	if err != nil {
		return err
	}
	// They are the API server's own, for the default objects: nobody else has rights before these
	// are there, and no webhook or policy can refuse it.
	clients := func(lead context.Context) (kubernetes.Interface, error) {
		return kubernetes.NewForConfig(s.fenced(lead, s.api.LoopbackConfig()))
	}
	began, err := runtime.NewStartMetrics(legacyregistry.Registerer())
	if err != nil {
		return err
	}
	runner, err := runtime.New(runtime.Config{
		Leadership: s.store,
		OnStarted:  began.Started,
		OnEnded:    began.Ended,
		ClientsFor: clients,
		Prepare: func(ctx context.Context, client kubernetes.Interface) error {
			return s.api.Prepare(leaderterm.With(ctx, runtime.TermFrom(ctx)), client)
		},
		Routines: routines,
		Logger:   s.logger.With("part", "leader"),
	})
	if err != nil {
		return err
	}
	// Rollovers wait for no informer but that of the Nodes: those of the others may never be synced
	// before a rollover has made objects readable again.
	rollovers, err := runtime.New(
		runtime.Config{Leadership: s.store, ClientsFor: clients, Routines: s.rollovers(),
			Logger: s.logger.With("part", "rollovers")})
	if err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "leader work", Run: func(ctx context.Context) error {
		informers := s.api.Informers()
		informers.Start(ctx.Done())
		return lifecycle.All(ctx, func(ctx context.Context) error {
			cache.WaitForCacheSync(ctx.Done(), s.members.Synced)
			return rollovers.Run(ctx)
		}, func(ctx context.Context) error {
			informers.WaitForCacheSync(ctx.Done())
			return lifecycle.All(ctx, s.life.Run, runner.Run, s.dumps)
		}, s.gateway.shared.Objects.Run, s.late.bgp.Load().Run, s.addons.Run, s.upgrade.Objects.Run)
	}})
}

// rollovers returns the leader's parts in the changes of keys.
func (s *server) rollovers() (all []runtime.Routine) {
	for _, r := range []struct {
		name string
		lead func(ctx context.Context, term uint64) error
	}{{"gossip keys", s.keys.Lead}, {"ca", s.exchange.Lead}, {"data keys", s.encryption.manager.Lead}} {
		all = append(all, runtime.Routine{Name: r.name, Run: func(ctx context.Context, _ kubernetes.Interface) error {
			return r.lead(ctx, runtime.TermFrom(ctx))
		}})
	}
	return all
}

// dumps writes the scheduler's queue and cache to the log at each SIGUSR2, as kube-scheduler does.
// All servers handle the signal: unhandled, it would end the process.
func (s *server) dumps(ctx context.Context) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	defer signal.Stop(asked)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-asked:
			s.dumpScheduler()
		}
	}
}

// routines returns the work of the leader, in the order of its start.
func (s *server) routines(life nodelifecycle.Liveness) ([]runtime.Routine, error) {
	informers, logger := s.api.Informers(), s.logger
	devices, err := quota.FollowDevices(informers)
	if err != nil {
		return nil, err
	}
	balancers, err := s.loadBalancers(informers)
	if err != nil {
		return nil, err
	}
	s.addons, err = addons.New(addons.Config{DataDir: s.options.DataDir, Server: s.options.Name, API: s.api,
		Servers: adapters.ServerNames{Store: s.store}, Metrics: legacyregistry.Registerer(), Logger: logger})
	if err != nil {
		return nil, err
	}
	list, err := controllers.New(controllers.Config{
		Informers:    informers,
		ClientsOf:    s.clientsOf,
		Logger:       logger.With("part", "controllers"),
		Serves:       adapters.Serves,
		Settings:     s.options.Controllers,
		CA:           s.ids.Trust,
		Signer:       s.ids.Trust,
		OwnUser:      rbac.IsOwnUser,
		ClusterCIDRs: s.settings.ClusterCIDRs,
		Liveness:     life,
		NodeSettings: s.options.Times.ForNodes(),
		MemberLabel:  nodeleases.MemberLabel,
		Servers:      liveness.APIServers{Pool: s.pool},
		ServerReady:  liveness.NewReadiness(adapters.SilentServers{Store: s.store}.At, s.ids.Trust).Ready,
		Roles:        members.Roles{Pool: s.pool, IsMember: nodeleases.IsMember},
		QuotaEvaluators: func(list quotav1.ListerForResourceFunc) []quotav1.Evaluator {
			return quota.Evaluators(list, devices, time.Now)
		},
		QuotaIgnored:        quota.Ignored(),
		DefaultStorageClass: s.options.StorageClass(),
		LoadBalancers:       balancers,
		Addons:              s.addons.Controllers(),
	})
	if err != nil {
		return nil, err
	}
	scheduling := scheduler.Config{Informers: informers, Identity: s.options.Name, OnStarted: runtime.Started,
		Logger: logger.With("part", "scheduler"), Metrics: legacyregistry.Registerer()}
	if policy := s.options.Scheduling; policy != nil {
		policy.Apply(&scheduling)
		for _, note := range policy.Notes {
			scheduling.Logger.Warn("a setting of the scheduling policy is not as expected", "note", note)
		}
	}
	pods, err := scheduler.New(scheduling)
	if err != nil {
		return nil, err
	}
	s.dumpScheduler = func() { pods.Dump(scheduling.Logger) }
	schedule := runtime.Routine{Name: "scheduler", Run: s.clientsOf(user.KubeScheduler).Run(pods)}
	// Direct writes of the API server to the store are fenced by the term in its context.
	ensure := runtime.Routine{Name: "apiserver", Run: func(ctx context.Context, client kubernetes.Interface) error {
		return s.api.LeaderRoutine(leaderterm.With(ctx, runtime.TermFrom(ctx)), client)
	}}
	own := []runtime.Routine{ensure, {Name: "join tokens", Run: s.joinUpkeep},
		{Name: "revocations", Run: s.revocationUpkeep}, s.addresses.Routine(), {Name: "upgrades", Run: s.upgrade.Lead}}
	return slices.Concat(own, list, []runtime.Routine{schedule}, s.gatewayRoutines()), nil
}
