package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/klogs"
	"github.com/barque/barque/cmd/barque/node/addresses"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/cmd/barque/node/upgrading"
	"github.com/barque/barque/cmd/barque/node/worker"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/scheddelay"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/balancer"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/upgrade/part"
)

// agent holds the parts of an agent, in the order of their start.
type agent struct {
	options  *options.Options
	logger   *slog.Logger
	record   *enroll.Record
	named    []join.Server // at the addresses of --server
	settings options.Settings
	ids      *credentials.Agent
	pool     *gossip.Pool
	health   *liveness.Health
	balancer *balancer.Balancer
	stack    *lifecycle.Stack
	cluster  string // ID of the cluster at the start
	meter    scheddelay.Meter
	revoked  *revocation.List
	follower *enroll.Follower
	upgrade  *part.Node
	orders   map[string]http.Handler // of upgrades

	conflicts addresses.Conflicts
}

// RunAgent runs an agent until the context ends.
func RunAgent(ctx context.Context, o options.Options, logger *slog.Logger) (err error) {
	if err := o.AwaitAddress(ctx, logger); err != nil {
		return unlessStopped(ctx, err, logger)
	}
	if err := o.Complete(); err != nil {
		return err
	}
	held, err := enroll.Lock(ctx, o.DataDir)
	if err != nil {
		return err
	}
	defer held.Close()
	klogs.Bridge(logger)
	a := &agent{options: &o, logger: logger, stack: lifecycle.New(logger)}
	a.upgrade, a.orders = upgrading.AgentNode(&o, a.callTLS, logger.With("part", "upgrade"))
	defer func() { err = errors.Join(err, a.stack.Stop()) }()
	for _, step := range []func(context.Context) error{a.enlist, a.startFollowing, a.startGossip, a.startBalancer,
		a.startRemembering, a.startAddresses, a.startMeter, a.startNode} {
		if err := step(ctx); err != nil {
			return unlessStopped(ctx, err, logger)
		}
	}
	logger.Info("agent is ready", "name", o.Name, "cluster", a.cluster)
	return a.stack.Wait(ctx)
}

func (a *agent) enlist(ctx context.Context) (err error) {
	o := a.options
	if a.record, err = enlistAgent(ctx, o, a.logger); err != nil {
		return err
	}
	a.follower = enroll.NewFollower(a.record, a.logger)
	a.cluster = a.record.ClusterID()
	a.named = enroll.NamedServer(ctx, o.Enrolling(), a.logger)
	if err := takeProfile(o, a.record, a.logger); err != nil {
		return err
	}
	if a.settings, err = options.SettingsOf(a.record); err != nil {
		return err
	}
	if err := o.SettleAddresses(a.settings); err != nil {
		return err
	}
	a.ids, err = credentials.LoadAgent(
		credentials.AgentConfig{Address: o.Addr(), DataDir: o.DataDir, Named: a.named, Record: a.record,
			Logger: a.logger})
	if err != nil {
		return err
	}
	return a.ids.Ready(ctx)
}

func (a *agent) startGossip(ctx context.Context) (err error) {
	o, ring := a.options, a.record.GossipRing()
	if a.revoked, err = revocation.Load(o.DataDir, a.logger.With("part", "revocations")); err != nil {
		return err
	}
	a.pool, err = gossip.New(gossip.Config{
		Name: o.Name, ClusterID: a.cluster, Advertise: o.At(o.GossipPort),
		Facts: gossip.Facts{Zone: o.Zone, Version: version.String(), KeyGeneration: ring.Generation},
		Keys:  ring.Keys, Authority: a.ids.Trust, Proof: a.ids.GossipProof, Barred: a.revoked.CheckCredential,
		Seeds:  a.gossipSeeds,
		About:  a.ids.About,
		Logger: a.logger.With("part", "gossip"),
	})
	if err != nil {
		return err
	}
	a.health = liveness.NewHealth(a.pool.SetHealth)
	if err := a.stack.Start(ctx, lifecycle.Component{Name: "certificates", Run: a.ids.Run(a.pool)}); err != nil {
		return err
	}
	refresher := credentials.NewRefresher(o.Name, a.pool, credentials.NewRing(a.record, a.pool), a.fetchKeys,
		keyring.RefresherConfig{Fresh: a.record.Fresh, Logger: a.logger.With("part", "gossip")})
	return a.stack.Start(ctx, lifecycle.Component{Name: "gossip", Run: func(ctx context.Context) error {
		return lifecycle.All(ctx, a.pool.Run, refresher.Run, func(ctx context.Context) error {
			return a.ids.FollowRevoked(ctx, a.pool, a.revoked, a.health.LockedOut, a.logger.With("part", "revocations"))
		})
	}})
}

// startRemembering keeps the agent's record of servers up to date.
func (a *agent) startRemembering(ctx context.Context) error {
	missed := enroll.NewAbsences(a.record)
	gone := func() []string {
		members, now := a.pool.Members(), time.Now()
		servers, err := missed.Look(enroll.SeenServers(members, a.record.Servers(), a.balancer.Living()), now)
		if err != nil {
			a.logger.Warn("cannot write down which servers show no life", "err", err)
		}
		for _, name := range servers {
			a.logger.Info("a server has shown no life for long: it is forgotten", "server", name, "after",
				enroll.ServerAwayAfter)
		}
		return append(enroll.GoneAgents(members, now, enroll.AwayAfter), servers...)
	}
	return a.stack.Start(ctx, lifecycle.Component{Name: "known servers", Run: func(ctx context.Context) error {
		return enroll.RememberServers(ctx, a.record, a.pool, gone, a.logger)
	}})
}

// startBalancer gives this node one local address of the API, which leads to a living server.
func (a *agent) startBalancer(ctx context.Context) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", a.options.APIPort))
	if err != nil {
		return fmt.Errorf("open the local port that leads to the API: %w; choose another with --api-port", err)
	}
	a.balancer = balancer.New(balancer.Config{
		Listener: listener,
		Servers:  a.apiServers,
		Probe:    a.ids.ReadyProbe(),
		Lost:     func(server netip.AddrPort) bool { return liveness.Lost(a.pool, server) },
		Return:   returnAfter,
		Logger:   a.logger.With("part", "balancer"),
	})
	return a.stack.Start(ctx, lifecycle.Component{Name: "balancer", Run: a.balancer.Run})
}

// returnAfter is how long a restored server must be up before agents that prefer it return to it.
const returnAfter = 2 * time.Minute

// apiServers returns all servers from gossip, the record and --server, in this agent's own order.
// The balancer checks which of them live. A server that gossip has lost stays in the list.
func (a *agent) apiServers() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range append(liveness.KnownServers(a.pool), a.servers()...) {
		if !slices.Contains(out, s.API) {
			out = append(out, s.API)
		}
	}
	return balancer.Spread(a.options.Name, out)
}

// callTLS is how this agent calls servers.
func (a *agent) callTLS() *tls.Config { return a.ids.CallTLS() }

// servers returns the recorded servers and those of --server, which may be new.
func (a *agent) servers() []join.Server { return append(a.record.Servers(), a.named...) }

func (a *agent) gossipSeeds() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range a.servers() {
		out = append(out, s.Gossip)
	}
	return out
}

// startAddresses starts what answers for addresses of Services.
func (a *agent) startAddresses(ctx context.Context) error {
	part := &addresses.Agent{Own: a.options.Addresses.All(), Servers: a.apiServers, TLS: a.ids.CallTLS,
		Conflicts: &a.conflicts, Logger: a.logger.With("part", "addresses")}
	return part.Start(ctx, a.stack)
}

// startMeter measures how late this process is scheduled.
func (a *agent) startMeter(ctx context.Context) error { return startMeter(ctx, a.stack, &a.meter) }

func (a *agent) startNode(ctx context.Context) error {
	w := &worker.Worker{
		Options: a.options, Settings: a.settings,
		Client: &rest.Config{
			Host: fmt.Sprintf("https://127.0.0.1:%d", a.options.APIPort),
			QPS:  -1,
			// The client's own TLS set-up would read certificate and CAs once.
			Transport: credentials.NewTransport(a.ids),
		},
		TLS: credentials.KubeletServerTLS(a.ids.Serving, a.ids.Trust, a.options.KubeletTLS()), Revoked: a.revoked.Check,
		Changed: []func() <-chan struct{}{a.revoked.Changed, a.ids.Trust.Changed},
		Health:  a.health,
		Leaving: a.pool.AnnounceLeaving,
		Certs:   a.ids.Collectors(),
		Made:    a.conflicts.TellBy,
		Logger:  a.logger,
		Delay:   a.meter.Delay,

		ForServers: a.orders,
		Gateway: worker.Gateway{Config: &rest.Config{
			Host: fmt.Sprintf("https://127.0.0.1:%d", a.options.APIPort), QPS: -1,
			Transport: credentials.NewAnonymousTransport(a.ids),
		}},
	}
	if err := w.Start(ctx, a.stack); err != nil {
		return err
	}
	return a.stack.Start(ctx, lifecycle.Component{Name: "service state", Run: func(ctx context.Context) error {
		select {
		case <-w.Registered:
			if err := a.record.Registered(); err != nil {
				a.logger.Warn(
					"cannot note that this agent is registered: it may see newer gossip keys some seconds later at its next start", "err", err)
			}
			a.upgrade.Ready()
			a.options.State.Ready(fmt.Sprintf("node %s is registered in cluster %s", a.options.Name, a.cluster))
			<-ctx.Done()
		case <-ctx.Done():
		}
		return nil
	}})
}

// fetchKeys asks all servers in gossip, the record and --server.
func (a *agent) fetchKeys(ctx context.Context, generation uint64) (keyring.Ring, error) {
	keys, err := credentials.FetchKeys(ctx, append(liveness.KnownServers(a.pool), a.servers()...), generation,
		credentials.AskKeys(a.ids.Trust, a.ids.Client.Certificate(), a.cluster))
	return a.follower.Take(keys, err, liveness.SeesServer(a.pool))
}

// startFollowing ends the agent when it is to be started again in another cluster.
func (a *agent) startFollowing(ctx context.Context) error {
	return a.stack.Start(ctx, lifecycle.Component{Name: "cluster", Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-a.follower.Follows:
			return ErrRestart
		}
	}})
}

// enlistAgent is enlistServer for an agent: it also gets its certificates.
func enlistAgent(ctx context.Context, o *options.Options, logger *slog.Logger) (*enroll.Record, error) {
	r, err := enroll.Agent(ctx, o.Enrolling(), logger)
	if err != nil {
		return nil, err
	}
	o.GossipPort = r.GossipPort(o.GossipPort)
	return r, nil
}
