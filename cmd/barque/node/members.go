package node

import (
	"cmp"
	"context"
	"crypto"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/membership/members"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/membership/skew"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

// Keys of the store outside the API's objects: the state of the gossip keys, and of the exchange of
// the CA.
const (
	gossipKeysKey = "/barque/gossip-keys"
	caKey         = "/barque/ca"
)

// versionFits returns an error if a joining node's version does not fit those of the living
// servers.
func (s *server) versionFits(name, role, of string) error {
	servers := []skew.Server{{Name: s.options.Name, Version: version.String()}}
	for _, m := range s.pool.Members() {
		if m.Role == pki.RoleServer && m.State == gossip.Alive && m.Name != s.options.Name && m.Name != name {
			servers = append(servers, skew.Server{Name: m.Name, Version: m.Facts.Version})
		}
	}
	return skew.Join(name, role, of, servers)
}

// newMembers returns the members of the cluster in this server's view, once it has an API.
func (s *server) newMembers() *members.Members {
	return &members.Members{
		Servers: s.storeServers, Pool: s.pool, Nodes: s.api.Informers().Core().V1().Nodes(),
		Marks: members.Marks{IsMember: nodeleases.IsMember, IsServer: isServers},
	}
}

// isServers tells whether the Node is marked as a server's.
func isServers(n *corev1.Node) bool {
	_, marked := n.Labels[noderole.Label]
	return marked
}

// storeServers are the members of the store.
func (s *server) storeServers() []members.Server {
	var out []members.Server
	for _, m := range s.store.Members() {
		at, _ := netip.ParseAddrPort(m.Address) // it may be a name
		out = append(out, members.Server{Name: m.Name, Addr: at.Addr()})
	}
	return out
}

// isServer tells whether a server of that name is a member of the store.
func (s *server) isServer(name string) bool {
	return slices.ContainsFunc(s.store.Members(), func(m raftstore.Member) bool { return m.Name == name })
}

// noteNodes makes the reports of this server include the Nodes from now on.
func (s *server) noteNodes(context.Context) error {
	s.late.membersWithNodes.Store(s.members)
	return nil
}

// synced returns the members of the cluster, nil before the Nodes are synced.
func (s *server) synced() *members.Members {
	if m := s.late.membersWithNodes.Load(); m != nil && m.Synced() {
		return m
	}
	return nil
}

// leavers returns the servers that are no members of the store.
func (s *server) leavers() adminapi.Leavers {
	return adminapi.Leavers{Store: s.store, Member: s.pool.Member, Marked: func() []string {
		if m := s.synced(); m != nil {
			return m.MarkedServers()
		}
		return nil
	}}
}

// apartAfter is the uptime after which a server's view of gossip is taken as complete.
const apartAfter = time.Minute

// apartAgents returns the agents outside the cluster's gossip; none before apartAfter has passed.
func (s *server) apartAgents() (agents []clusterstatus.ApartAgent) {
	m := s.synced()
	if m == nil || time.Since(s.started) < apartAfter {
		return nil
	}
	for _, name := range m.Apart() {
		agents = append(agents, clusterstatus.ApartAgent{Name: name, Cluster: s.joining.unrelated.Cluster(name)})
	}
	return agents
}

// unreadyNodes returns the Nodes that are not Ready.
func (s *server) unreadyNodes() (nodes []clusterstatus.UnreadyNode) {
	if m := s.synced(); m != nil {
		for _, n := range m.Unready() {
			nodes = append(nodes, clusterstatus.UnreadyNode(n))
		}
	}
	return nodes
}

// otherProfiles returns the agents with another profile than this server's.
func (s *server) otherProfiles() []clusterstatus.AgentProfile {
	if m := s.synced(); m != nil {
		return clusterstatus.OtherProfiles(cmp.Or(s.options.Profile, options.NoProfile), m.Profiles())
	}
	return nil
}

// failingCalls returns the objects that need calls of the API server which fail.
func (s *server) failingCalls() (calls []clusterstatus.FailingCall) {
	failing, err := s.api.FailingCalls()
	if err != nil {
		s.logger.Warn("cannot read which calls of the API server fail", "err", err)
	}
	for _, f := range failing {
		calls = append(calls, clusterstatus.FailingCall(f))
	}
	return calls
}

// lostVolumes returns the local volumes whose directory is gone.
func (s *server) lostVolumes() []clusterstatus.LostVolume {
	volumes, err := s.api.Informers().Core().V1().PersistentVolumes().Lister().List(labels.Everything())
	if err != nil {
		s.logger.Error("the status lacks the lost volumes", "err", err)
	}
	return adminapi.Lost(volumes)
}

// startForgetting has this server forget agents that were removed.
func (s *server) startForgetting(ctx context.Context) error {
	return s.stack.Start(ctx, lifecycle.Component{Name: "removed agents", Run: func(ctx context.Context) error {
		return enroll.ForgetRemoved(ctx, s.pool, s.members.NodeNames, s.logger)
	}})
}

// succeeds reports whether this server's cluster is a successor of the one with the ID.
func (s *server) succeeds(cluster string) bool {
	return slices.ContainsFunc(s.store.Predecessors(),
		func(p raftstore.Succession) bool { return p.Cluster == cluster })
}

// rollover is this server, for keys that all share. Their state is in the store at the key.
func (s *server) rollover(key, part string, of acts.Keys) rollover.Server {
	return rollover.Server{Cluster: s.record.Cluster.ID, Store: register.New(s.store, key), Changed: s.pool.Changed,
		Wrote: func(w rollover.Written) { s.auditRotation(of, w) }, Logger: s.logger.With("part", part)}
}

// gossipKeys returns the keys for other nodes.
func (s *server) gossipKeys() join.GossipKeys {
	ring := s.record.GossipRing()
	return join.GossipKeys{Generation: ring.Generation, Keys: ring.Keys}
}

// fetchKeys asks the other servers.
func (s *server) fetchKeys(ctx context.Context, generation uint64) (keyring.Ring, error) {
	others := slices.DeleteFunc(s.record.Servers(), func(k join.Server) bool { return k.Name == s.options.Name })
	keys, err := credentials.FetchKeys(ctx, others, generation,
		credentials.AskKeys(s.ids.Trust, s.ids.Peer.Certificate(), s.record.ClusterID()))
	return keyring.Ring{Generation: keys.Generation, Keys: keys.Keys}, err
}

// startExchange follows the state of the CAs in the store.
func (s *server) startExchange(ctx context.Context) error {
	if err := s.ids.RegisterCA(legacyregistry.Registerer()); err != nil {
		return err
	}
	s.exchange = exchange.New(
		exchange.Config{Server: s.rollover(caKey, "ca", acts.CA), Trust: s.ids.Trust,
			Home: heldCAs{s.ids.Home, s.joining.peers}, Fetch: s.ids.FetchKey,
			Members:      func() ([]rollover.Member, error) { return s.members.CAs() },
			Sealed:       s.encryption.manager.SealedBy,
			Earlier:      s.encryption.manager.Earlier, // data keys came with the exchange of the accounts' key alone
			Unrecorded:   s.unrecorded,
			EarlierCAs:   func(form int) []string { return s.members.EarlierCAs(form) },
			Told:         func(cas []byte) error { return s.api.ToldExtensions(cas) },
			Certificates: func() []pki.Request { return append(s.ids.Requests(), s.members.Requests()...) }})
	return s.stack.Start(ctx, lifecycle.Component{Name: "CAs", Run: s.exchange.Run})
}

// accountsCheck is the name of the check of accountsReady.
const accountsCheck = "service-accounts-key"

// notAtStart are the checks that a start does not wait for. Without the key of new tokens, which
// other servers may not have for it, a server leads, makes backups and runs its pods.
var notAtStart = []string{accountsCheck}

// accountsReady is the check of /readyz that fails while this server lacks the key of new tokens.
func (s *server) accountsReady() healthz.HealthChecker {
	return healthz.NamedCheck(accountsCheck, func(*http.Request) error { return s.exchange.Ready() })
}

// accountKeys returns the current keys of service account tokens.
func (s *server) accountKeys() (sign crypto.Signer, others []crypto.PublicKey) {
	return s.ids.Trust.AccountKeys(time.Now())
}
