package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/page"
	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/apiserver/drain"
	"github.com/barque/barque/apiserver/healthchecks"
	"github.com/barque/barque/apiserver/klogs"
	"github.com/barque/barque/apiserver/services"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/node/adapters"
	"github.com/barque/barque/cmd/barque/node/addons"
	"github.com/barque/barque/cmd/barque/node/addresses"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/cmd/barque/node/upgrading"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/edge/pool"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/scheddelay"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/membership/members"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/network"
	"github.com/barque/barque/network/ranges"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/gctuner"
	"github.com/barque/barque/upgrade"
	"github.com/barque/barque/upgrade/part"
)

// server holds the parts of a server, in the order of their start.
type server struct {
	options    *options.Options
	logger     *slog.Logger
	started    time.Time
	stack      *lifecycle.Stack
	ending     ending
	late       lateParts
	record     *enroll.Record
	settings   options.Settings
	ids        *credentials.Server
	meter      scheddelay.Meter
	encryption encryptionParts
	access     accessParts
	mux        *raftstore.Mux // connections of other servers
	backups    *backups.Manager
	store      *raftstore.Server
	joining    joiningParts
	pool       *gossip.Pool
	keys       *keyring.Manager
	life       *liveness.Watch
	conflicts  addresses.Conflicts
	addresses  *addresses.Server
	exchange   *exchange.Exchange
	api        *apiserver.Server
	gateway    gatewayParts
	members    *members.Members
	addons     *addons.Addons
	upgrade    *upgrading.Server
	// dumpScheduler writes the scheduler's state to the log.
	dumpScheduler func()
	packets       atomic.Pointer[network.Network] // nil without a node
	drain         drain.Drain
}

// ending has the reasons for which a server ends by itself.
type ending struct {
	failed  chan error             // the reason of a part that cannot go on; holds one
	why     atomic.Pointer[error]  // that
	removed chan raftstore.Removal // holds why this server is a member no more
}

// lateParts are parts for others that are older than they.
type lateParts struct {
	store atomic.Pointer[raftstore.Server] // for certificates
	pool  atomic.Pointer[gossip.Pool]      // for the store
	// members is for the data keys. membersWithNodes is for the store, and for reports: it is set
	// later, when the Nodes are noted.
	members, membersWithNodes atomic.Pointer[members.Members]
	bgp                       atomic.Pointer[bgp.Objects] // for the API server
}

// ErrRestart means that the node has stopped gracefully, and the caller must start it again in the
// same process. RunServer returns it when the store takes a correct state in place of a wrong one.
// RunAgent returns it when the agent follows a recovered cluster.
var ErrRestart = errors.New("this node must be started again, with its data")

// RunServer runs a server until the context ends.
func RunServer(ctx context.Context, o options.Options, logger *slog.Logger) (err error) {
	if err := o.AwaitAddress(ctx, logger); err != nil {
		return unlessStopped(ctx, err, logger)
	}
	if err := o.Complete(); err != nil {
		return err
	}
	if err := o.Switches.Gates.Apply(); err != nil {
		return err
	}
	held, err := enroll.Lock(ctx, o.DataDir)
	if err != nil {
		return err
	}
	defer held.Close()
	klogs.Bridge(logger)
	s := &server{options: &o, logger: logger, stack: lifecycle.New(logger),
		ending: ending{failed: make(chan error, 1), removed: make(chan raftstore.Removal, 1)}}
	began := time.Now()
	s.started = began
	defer func() {
		// A consequence, such as the closed store, may have ended another part first.
		if why := s.ending.why.Load(); why != nil {
			err = *why
		}
		err = errors.Join(err, s.stack.Stop())
	}()
	for _, step := range []func(context.Context) error{s.enlist, s.keepMemory, s.startMeter, s.startProviders,
		s.loadDataKeys, s.startAudit, s.startStore, s.startRevocations, s.openBook, s.startPublishing, s.startGossip,
		s.startLiveness, s.startAddresses, s.startExchange, s.startHandingOver, s.startLogins, s.startOtherFiles,
		s.startPage, s.startAPI, s.useServices, s.startKubeletRights, s.startBackups, s.startLeaderWork, s.noteNodes,
		s.startForgetting, s.startNode, s.startDrain} {
		if err := step(ctx); err != nil {
			return unlessStopped(ctx, err, logger)
		}
	}
	logger.Info("server is ready", "name", o.Name, "api", o.At(o.APIPort), "cluster", s.record.Cluster.ID, "after",
		time.Since(began).Round(time.Millisecond))
	s.upgrade.Node.Ready()
	o.State.Ready(fmt.Sprintf("server %s of cluster %s serves on %v", o.Name, s.record.Cluster.ID, o.At(o.APIPort)))
	return s.stack.Wait(ctx)
}

// unlessStopped returns the error of a start, or nil if the start was cancelled. The log then has
// the pending step.
func unlessStopped(ctx context.Context, err error, logger *slog.Logger) error {
	if ctx.Err() == nil {
		return err
	}
	logger.Info("told to stop before it was ready", "reason", context.Cause(ctx), "meanwhile", err)
	return nil
}

func (s *server) enlist(ctx context.Context) (err error) {
	if s.record, err = enlistServer(ctx, s.options, s.logger); err != nil {
		return err
	}
	if err := takeProfile(s.options, s.record, s.logger); err != nil {
		return err
	}
	if s.settings, err = options.SettingsOf(s.record); err != nil {
		return err
	}
	if err := s.options.SettleAddresses(s.settings); err != nil {
		return err
	}
	if err := s.loadRevoked(); err != nil {
		return err
	}
	if s.ids, err = credentials.NewServer(ctx,
		s.options.Certificates(s.settings, s.record, s.storeRevision, s.logger)); err != nil {
		return err
	}
	if s.joining.peers, err = admissions.LoadPeers(s.options.DataDir, s.ids.Trust,
		s.logger.With("part", "peer")); err != nil {
		return err
	}
	return s.stack.Start(ctx, lifecycle.Component{Name: "certificates", Run: s.ids.Run})
}

func (s *server) startStore(ctx context.Context) error {
	o := s.options
	listener, err := net.Listen("tcp", o.At(o.PeerPort).String())
	if err != nil {
		return fmt.Errorf("open the port for the other servers: %w; choose another with --peer-port", err)
	}
	mux, err := raftstore.NewMux(raftstore.MuxConfig{Listener: listener, Advertise: o.At(o.PeerPort).String(),
		Certificate: s.ids.Peer.Certificate, Roots: func() *x509.CertPool { return s.ids.Trust.PoolFor(pki.Peers) },
		Barred: s.barred, Logger: s.logger.With("part", "peer")})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := s.prepareBackups(); err != nil {
		return errors.Join(err, mux.Close())
	}
	s.store, err = raftstore.Open(raftstore.Config{
		Name: o.Name, Dir: enroll.StoreDir(o.DataDir),
		OnIdentity: func(id string) error { return s.ids.Hold(ctx, id) },
		Bootstrap:  s.record.Phase == enroll.PhaseBootstrap, ClusterID: s.record.Cluster.ID,
		Version: version.String(), Stream: mux, Peers: s.peerHints,
		CleanAfter: o.DeadServerCleanup, MinVoters: o.MinVoters,
		OnRemoved: func(r raftstore.Removal) { s.ending.removed <- r }, OnChange: s.auditMember, Forwards: forwarded,
		OnSuperseded: func(by raftstore.Succession) {
			s.fail(&clusterstatus.SupersededError{Name: o.Name, DataDir: o.DataDir, Succession: by})
		},
		Warnings: s.backups.Warnings, Report: s.report, JoinAgain: clusterstatus.JoinAgain,
		Limits:     raftstore.Limits{StateBytes: gctuner.StateBytes(o.StoreMemory)},
		OnNewState: func() { s.fail(ErrRestart) },
		LogStore:   o.LogStore, DiskReserve: reserveBytes(o.DiskReserve), SnapshotEvery: o.SnapshotEntries,
		TrailingLogs: o.SnapshotEntries / 2,
		Timeouts:     raftstore.Timeouts{DiskWrite: o.DiskWriteTimeout}, SchedulingDelay: s.meter.Delay,
		Logger: s.logger.With("part", "store"), Registerer: legacyregistry.Registerer(),
		OnFatal: func(err error) { s.fail(fmt.Errorf("the store has failed: %w", err)) },
	})
	var removed *raftstore.RemovedError
	if errors.As(err, &removed) {
		err = &clusterstatus.RemovedError{Name: o.Name, Removal: removed.Removal}
	}
	var superseded *raftstore.SupersededError
	if errors.As(err, &superseded) {
		err = &clusterstatus.SupersededError{Name: o.Name, DataDir: o.DataDir, Succession: superseded.Succession}
	}
	if err != nil {
		return errors.Join(err, mux.Close())
	}
	s.backups.Use(s.store)
	s.mux = mux
	if err := s.dateCertificates(ctx); err != nil {
		return errors.Join(err, s.store.Close(), mux.Close())
	}
	err = s.stack.Start(ctx, lifecycle.Component{
		Name: "store",
		Run: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return errors.Join(s.store.Close(), mux.Close())
			case err := <-s.ending.failed:
				return errors.Join(err, s.store.Close(), mux.Close())
			}
		},
		StopTimeout: 15 * time.Second,
	})
	if err == nil {
		err = s.watchPeers(ctx)
	}
	if err == nil {
		err = s.stack.Start(ctx, lifecycle.Component{Name: "membership", Run: s.untilRemoved})
	}
	if err != nil || s.record.Phase == enroll.PhaseMember {
		return err
	}
	if s.record.Phase == enroll.PhaseJoining {
		if err := enroll.BecomeMember(ctx, s.record, s.store); err != nil {
			return err
		}
		return s.ids.RenewAtStart(ctx) // dated as a member's
	}
	if s.record.Restore != nil {
		if err := s.restoreStore(ctx); err != nil {
			return err
		}
	} else if s.record.Restored == "" {
		if err := s.beginEncryption(ctx); err != nil {
			return err
		}
	}
	s.record.Phase = enroll.PhaseMember
	return s.record.Save()
}

// untilRemoved waits until this server has learned that it is a member no more.
func (s *server) untilRemoved(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case r := <-s.ending.removed:
		return &clusterstatus.RemovedError{Name: s.options.Name, Removal: r}
	}
}

// keepMemory keeps the process close to the size of its live memory, as long as that is cheap.
func (s *server) keepMemory(ctx context.Context) error {
	return s.stack.Start(ctx, lifecycle.Component{Name: "memory", Run: func(ctx context.Context) error {
		gctuner.Keep(ctx, gctuner.Policy{})
		return nil
	}})
}

// startMeter measures how late this process is scheduled.
func (s *server) startMeter(ctx context.Context) error { return startMeter(ctx, s.stack, &s.meter) }

func startMeter(ctx context.Context, stack *lifecycle.Stack, meter *scheddelay.Meter) error {
	return stack.Start(ctx, lifecycle.Component{Name: "scheduling delay", Run: func(ctx context.Context) error {
		meter.Run(ctx)
		return nil
	}})
}

// reserveBytes converts MiB to the store's option, for which 0 is the default.
func reserveBytes(mib int) int64 {
	if mib == 0 {
		return -1
	}
	return int64(mib) << 20
}

// prepareBackups runs before the store, whose status shows the faults of backups.
func (s *server) prepareBackups() (err error) {
	s.backups, err = backups.New(
		backups.Config{Options: s.options.Backups, Server: s.options.Name, CheckRestored: s.checkRestored,
			CheckSaved: checkSaved, Scheduled: s.auditBackup,
			Cluster: enroll.BackedUp{Record: s.record, DataDir: s.options.DataDir},
			Logger:  s.logger.With("part", "backup"), Now: time.Now}, legacyregistry.Registerer())
	return err
}

func (s *server) startBackups(ctx context.Context) error {
	return s.stack.Start(ctx, lifecycle.Component{Name: "backups", Run: s.backups.Run})
}

// fail makes the server stop with the error; of several the first one counts.
func (s *server) fail(err error) {
	if s.ending.why.CompareAndSwap(nil, &err) {
		s.ending.failed <- err
	}
}

func (s *server) startGossip(ctx context.Context) (err error) {
	o, ring := s.options, s.record.GossipRing()
	s.pool, err = gossip.New(gossip.Config{
		Name: o.Name, ClusterID: s.record.Cluster.ID, Advertise: o.At(o.GossipPort),
		Facts: gossip.Facts{Revoked: s.joining.revoked.Entries().Version, Zone: o.Zone, Version: version.String(),
			APIPort: o.APIPort, PeerPort: o.PeerPort, PeerID: s.store.ID(), KeyGeneration: ring.Generation,
			Tokens: token.Kept, DataKeys: s.encryption.keys.Generation(),
			EncryptionFile: s.encryption.providers.Digest(),
			PluginKeys:     s.encryption.providers.Keys(), Blind: true, CAs: pki.BundleForm},
		Keys: ring.Keys, Authority: s.ids.Trust, Proof: s.ids.GossipProof, Barred: s.joining.revoked.CheckCredential,
		Seeds:  func() []netip.AddrPort { return append(o.GossipHints(), s.record.GossipSeeds()...) },
		Tune:   liveness.Tune(o.Times.Fast),
		Logger: s.logger.With("part", "gossip"),
	})
	if err != nil {
		return err
	}
	s.late.pool.Store(s.pool)
	s.pool.SetRevoked(s.joining.revoked.Entries().Version) // which may have changed since New was called
	keys := credentials.NewRing(s.record, s.pool)
	s.keys = keyring.New(
		keyring.Config{Server: s.rollover(gossipKeysKey, "gossip", acts.Gossip), Own: keys, Sealer: s.ids.Trust,
			Members: func() []rollover.Member { return s.members.GossipKeys() }})
	s.encryption.manager = s.newEncryption()
	refresher := credentials.NewRefresher(o.Name, s.pool, keys, s.fetchKeys,
		keyring.RefresherConfig{Logger: s.logger.With("part", "gossip")})
	return s.stack.Start(ctx, lifecycle.Component{Name: "gossip", Run: func(ctx context.Context) error {
		return lifecycle.All(ctx, s.pool.Run, s.keys.Run, s.encryption.manager.Run, refresher.Run,
			func(ctx context.Context) error {
				return enroll.RememberServers(ctx, s.record, s.pool, s.leavers().Gone, s.logger)
			})
	}})
}

// peerHints returns addresses of other servers from the operator, the last start and gossip.
func (s *server) peerHints() []string {
	hints := slices.Clone(s.options.Peers)
	known := s.record.Servers()
	if pool := s.late.pool.Load(); pool != nil {
		known = append(known, liveness.KnownServers(pool)...)
	}
	for _, k := range known {
		if k.Name != s.options.Name {
			hints = append(hints, k.Peer.String())
		}
	}
	return hints
}

func (s *server) startAPI(ctx context.Context) error {
	o := s.options
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", o.APIPort))
	if err != nil {
		return fmt.Errorf("open the API's port: %w; choose another with --api-port", err)
	}
	joining := join.NewHandler(join.Config{
		Authority:    s.ids.Trust,
		Lifetime:     func() time.Duration { return o.CertificateLifetime },
		Grace:        o.CertificateGrace,
		StillNode:    s.stillNode,
		Current:      s.current,
		SharedKey:    s.ids.Home.Key,
		CheckToken:   s.joining.tokens.Check,
		UseToken:     s.joining.tokens.Use,
		Decided:      s.decided,
		NameTaken:    s.nameTaken,
		VersionFits:  s.versionFits,
		Encrypts:     s.encryption.manager.Encrypts,
		Replace:      adminapi.Replacing{Store: s.store, Pool: s.pool}.Replace,
		AddressTaken: s.addressTaken,
		OfAPI:        s.ofAPI,
		AgentCIDRs:   o.AgentPrefixes,
		IsAt: func(name string, addr netip.Addr) bool {
			m, ok := s.pool.Member(name)
			return ok && m.State == gossip.Alive && m.Addr.Addr() == addr
		},
		Cluster:    s.cluster,
		Keys:       func() (map[string][]byte, error) { return credentials.ClusterKeys(o.DataDir) },
		PeerKeys:   s.joining.peers.Grant,
		GossipKeys: s.gossipKeys,
		Barred:     func(name, role string) error { return s.members.Barred(name, role) },
		Inherited:  s.succeeds,
		Unrelated:  s.joining.unrelated.Note,
		Admit:      s.joining.judge.Admit,
		Revoked:    s.joining.judge.Check,
		OwnKey:     s.joining.judge.OwnKey,
		Entries:    s.joining.revoked.Entries,
		Audit:      s.auditJoining,
		Logger:     s.logger.With("part", "join"),
		Now:        time.Now,
	})
	s.upgrade = s.newUpgrades()
	s.api, err = apiserver.New(apiserver.Config{
		Name: o.Name, Store: s.store, Listener: listener, Advertise: o.At(o.APIPort),
		Certificate:    func() (*tls.Certificate, error) { return s.ids.API.Certificate(), nil },
		ClientCA:       func() ([]byte, error) { return s.ids.Trust.PEM(), nil },
		ProxyCA:        func() ([]byte, error) { return s.ids.Trust.PEMFor(pki.FrontProxy), nil },
		Renewed:        s.ids.Renewed,
		Revoked:        s.joining.judge.Check,
		RevokedChanged: s.joining.revoked.Changed,
		KubeletClient:  s.ids.KubeletClientTLS(),
		IsKubelet:      adapters.IsKubelet,
		NodeAddress:    s.nodeAddress,
		ProxyClient:    apiserver.CertificateFiles(s.ids.ProxyFiles()),
		ServiceAccounts: apiserver.ServiceAccounts{Issuer: s.settings.AccountIssuer(), Keys: s.accountKeys,
			MaxLifetime: o.Tokens.MaxExpiration, NoExtension: !o.Tokens.Extend},
		ServiceCIDR: s.settings.ServiceCIDRs.Primary(), SecondaryServiceCIDR: s.settings.ServiceCIDRs.Secondary(),
		Definitions:       append(addons.Definitions(), pool.Definition, bgp.Definition, upgrade.Definition),
		TolerationSeconds: o.Times.Tolerations(),
		Admission:         o.Admission,
		AnonymousPaths:    o.AnonymousPaths,
		Limits:            o.Limits,
		Serving:           o.Serving.API,
		TLS:               o.Serving.TLS,
		Versions:          o.Switches.Versions,
		Connections:       o.Serving.Limits(),
		Audit:             s.access.audit,
		Logins:            s.access.logins,
		Authorizers:       s.access.authorizers,
		GatewayNames:      s.gatewayNames,
		NeedsPassword:     s.needsPassword,
		IngressProblems:   s.ingressProblems,
		Transformers:      s.encryption.transformers,
		Plugins:           s.pluginChecks(),
		SignsOfLife:       s.life,
		Unauthenticated: map[string]http.Handler{join.Prefix: joining, hold.Path: s.addresses.Handler(joining.Agent),
			part.AgentsPath: s.upgrade.ForAgents(joining.Agent), page.Prefix: page.Files()},
		PageSessions: s.access.page.Sessions,
		Extra:        s.handlers(),
		LongRunning:  []string{backups.SnapshotSavePath, backups.SnapshotRestorePath, part.FilesPath},
		ReadyChecks: append(healthchecks.OfStore(s.store.Ready), s.encryptionReady(), s.accountsReady(),
			s.drain.Check()),
		NotAtStart: notAtStart,
		LiveChecks: []healthz.HealthChecker{healthchecks.OfReplica(func() { s.store.Status() })},
		Build:      version.Version,
		Logger:     s.logger.With("part", "api"),
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := s.makeGateway(); err != nil {
		return err
	}
	if err := s.makeBGP(); err != nil {
		return err
	}
	if err := s.upgrade.Follow(s.api.LoopbackConfig()); err != nil {
		return err
	}
	s.members = s.newMembers()
	s.late.members.Store(s.members)
	close(s.encryption.apiMade)
	return s.stack.Start(ctx,
		lifecycle.Component{Name: "API server", Run: s.api.Run, Ready: s.waitReady, StopTimeout: 15 * time.Second})
}

// waitReady waits until the API server is ready for the leader's work.
func (s *server) waitReady(ctx context.Context) error {
	if err := s.api.AwaitReady(ctx); err != nil {
		return err
	}
	return s.ids.Serving(ctx)
}

// nameTaken keeps a machine from taking the name of another one, or one by which clients call the
// API or a Service: it gets a certificate for its name.
func (s *server) nameTaken(name string) error {
	if why := options.OfServices(name, s.settings.Domain); why != "" {
		return fmt.Errorf("%q %s: give this machine another name with --name", name, why)
	}
	if name != s.options.Name && slices.Contains(options.APINames(s.options, s.settings), name) {
		return fmt.Errorf("%q is a name of the API: give this machine another name with --name", name)
	}
	return s.members.NameTaken(name)
}

// addressTaken keeps a machine from getting certificates for the address of another one, or for an
// address of services or pods.
func (s *server) addressTaken(name string, addr netip.Addr) error {
	if slices.Contains(s.options.APIAddresses, addr) {
		return fmt.Errorf(
			"the node address %s is that of the API by --api-address: give this machine's own with --node-ip", addr)
	}
	for what, addrs := range map[string]ranges.Prefixes{"services": s.settings.ServiceCIDRs,
		"pods": s.settings.ClusterCIDRs} {
		if addrs.Contains(addr) {
			return fmt.Errorf(
				"the node address %s lies among the addresses of %s, %s: give this machine's own with --node-ip", addr,
				what, addrs)
		}
	}
	return s.members.AddressTaken(name, addr)
}

// ofAPI keeps agents from getting certificates for further names and addresses of the API: those of
// --tls-san, such as a load balancer's, and those that only the Node of a server has. Servers may
// have them: each may be given those of all.
func (s *server) ofAPI(name string, addr netip.Addr) error {
	if san, ok := s.options.Serving.SANOf(name); ok {
		return fmt.Errorf("%q may be a name of the API by --tls-san %s of server %s: "+
			"give this machine another name with --name, or name the API's own names one by one in --tls-san", name,
			san, s.options.Name)
	}
	if san, ok := s.options.Serving.SANOf(addr.String()); ok {
		return fmt.Errorf(
			"the node address %s is one of the API by --tls-san %s of server %s: give this machine's own with --node-ip", addr, san, s.options.Name)
	}
	return s.members.OfServer(name, addr)
}

// nodeAddress keeps a node from writing the address of a Service, or of another member, into its
// Node. Foreign nodes may run in pods. Several nodes may have one external address.
func (s *server) nodeAddress(name string, kind corev1.NodeAddressType, addr netip.Addr) error {
	if s.settings.ServiceCIDRs.Contains(addr) {
		return fmt.Errorf("it is among the addresses of services, %s", s.settings.ServiceCIDRs)
	}
	if slices.Contains(s.options.APIAddresses, addr) {
		return errors.New("it is that of the API by --api-address")
	}
	if err := s.notOfService(addr); err != nil {
		return err
	}
	if err := s.members.AddressTaken(name, addr); err != nil || kind != corev1.NodeInternalIP || s.isServer(name) {
		return err
	}
	return s.members.OfServer(name, addr)
}

// notOfService keeps a node from the addresses that a pool has given to Services. Nodes answer for
// their own addresses, so nobody would announce it any more.
func (s *server) notOfService(addr netip.Addr) error {
	view, err := s.store.View(context.Background(), raftstore.ViewOptions{Stale: true})
	if err != nil {
		return err
	}
	owner, err := services.BalancedOwner(view, addr)
	if err == nil && owner != "" {
		err = fmt.Errorf("a pool of addresses has given it to the Service %s: take it out of the pool first", owner)
	}
	return err
}

// startAddresses starts what answers for addresses that are no machine's own.
func (s *server) startAddresses(ctx context.Context) (err error) {
	s.addresses, err = addresses.StartServer(ctx, s.stack, addresses.ServerConfig{
		Options: s.options, Store: s.store, Pool: s.pool, Mux: s.mux, Trust: s.ids.Trust, Check: s.joining.judge.Check,
		Changed:   []func() <-chan struct{}{s.joining.revoked.Changed, s.ids.Trust.Changed},
		Conflicts: &s.conflicts, Logger: s.logger.With("part", "addresses"),
	})
	return err
}

// useServices begins to read the Services, for their addresses.
func (s *server) useServices(context.Context) error {
	return s.addresses.Use(s.api.Informers(), s.late.bgp.Load())
}

// startDrain is the last step of a start, so that it is the first one of a stop.
func (s *server) startDrain(ctx context.Context) error {
	return s.stack.Start(ctx, lifecycle.Component{Name: "service", Run: func(ctx context.Context) error {
		<-ctx.Done()
		s.leaveService()
		return nil
	}, StopTimeout: s.options.Serving.ShutdownDelay() + 2*drain.AtMost})
}

// leaveService returns when this server can close its port.
func (s *server) leaveService() {
	if !liveness.HasOtherServer(s.pool, s.options.Name) { // no other server takes the clients over
		return
	}
	o := s.options
	endpoints := s.api.Informers().Discovery().V1().EndpointSlices().Lister()
	drain.Departure{Least: o.Serving.ShutdownDelay(), Ready: s.store.Ready, HandOver: s.store.HandOver,
		Logger: s.logger,
		Listed: func() bool { return drain.Listed(endpoints, o.Addr()) }}.Run(&s.drain)
}

// cluster returns the cluster's data for a joining machine.
func (s *server) cluster() join.Cluster {
	c, keys := &s.record.Cluster, s.gossipKeys()
	return join.Cluster{ID: c.ID, CA: s.record.CA(), GossipKeys: keys.Keys, KeyGeneration: keys.Generation,
		GossipPort: c.GossipPort,
		Settings:   c.Settings, Servers: liveness.KnownServers(s.pool)}
}

// stillNode asks this server's own API.
func (s *server) stillNode(ctx context.Context, name string, ended time.Time) error {
	client, err := kubernetes.NewForConfig(s.api.LoopbackConfig())
	if err != nil {
		return err
	}
	return credentials.StillNode(ctx, client, name, ended)
}

// enlistServer returns this server's record of its cluster.
func enlistServer(ctx context.Context, o *options.Options, logger *slog.Logger) (*enroll.Record, error) {
	if err := backups.FinishRecovery(enroll.Directory(o.DataDir), logger); err != nil {
		return nil, err
	}
	r, err := enroll.Server(ctx, o.Enrolling(), logger)
	if err != nil {
		return nil, err
	}
	o.GossipPort = r.GossipPort(o.GossipPort) // the cluster determines it
	return r, nil
}
