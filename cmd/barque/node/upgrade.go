package node

import (
	"context"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/cmd/barque/node/upgrading"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/raftstore"
)

// StoreFormat is the newest format of the store that this program reads.
const StoreFormat = raftstore.StoreFormat

// newUpgrades returns this server's part in upgrades of the cluster.
func (s *server) newUpgrades() *upgrading.Server {
	u := &upgrading.Server{Options: s.options, Store: s.store, Pool: s.pool, IDs: s.ids,
		Agents: s.agentNames, IsServer: s.isServer, Rotations: s.rotations, Leads: s.addresses.Leads,
		Logger: s.logger.With("part", "upgrade")}
	u.Fenced = func(lead context.Context) *rest.Config { return s.fenced(lead, s.api.LoopbackConfig()) }
	u.Informers = func() informers.SharedInformerFactory { return s.api.Informers() }
	u.Record = func(path string, annotations map[string]string) { s.auditAct(acts.Leader, nil, path, annotations) }
	return u.Make()
}

// rotations names those that are under way.
func (s *server) rotations() (names []string) {
	if status := s.exchange.Status(); status.UnderWay() {
		names = append(names, "keys are being exchanged")
	}
	if s.keys.UnderWay() {
		names = append(names, "the gossip keys are being rotated")
	}
	if s.encryption.manager.UnderWay() {
		names = append(names, "the data keys are being changed")
	}
	return names
}
