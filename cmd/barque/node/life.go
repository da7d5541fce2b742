package node

import (
	"context"
	"crypto/tls"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/membership/pulse"
	"github.com/barque/barque/raftstore"
)

// startLiveness collects the signs of life of all nodes. With fast failure detection every server
// probes all nodes, also one that does not lead.
func (s *server) startLiveness(ctx context.Context) error {
	config := liveness.Config{Pool: s.pool, Store: silentServers{s.store}, TLS: s.ids.KubeletTLS(),
		Labelled: nodeleases.IsMember, Logger: s.logger.With("part", "liveness")}
	if !s.options.Times.Fast {
		s.life = liveness.New(config)
		return nil
	}
	p := pulse.New(pulse.Config{
		Nodes:   func() []string { return liveness.Others(s.pool, s.options.Name) },
		Changed: s.pool.Changed,
		Ask:     s.pool.Ping,
		Logger:  s.logger.With("part", "pulse"),
	})
	config.Pulse = p
	s.life = liveness.New(config)
	return s.stack.Start(ctx, lifecycle.Component{Name: "pulse", Run: p.Run})
}

// isKubelet returns why a peer is not the kubelet of the node.
func isKubelet(node *corev1.Node, peer tls.ConnectionState) error {
	if nodeleases.IsMember(node) {
		return join.IsKubelet(node.Name, peer)
	}
	return join.IsForeignKubelet(node.Name, peer)
}

// lives adapts the liveness of nodes to the node controller.
type lives struct{ *liveness.Watch }

var lifeStates = map[liveness.State]nodelifecycle.State{
	liveness.Alive: nodelifecycle.Alive, liveness.Suspect: nodelifecycle.Suspect,
	liveness.Dead: nodelifecycle.Dead, liveness.Left: nodelifecycle.Left,
}

// Life implements nodelifecycle.Liveness.
func (l lives) Life(node string) (nodelifecycle.Life, bool) {
	life, known := l.Watch.Life(node)
	return nodelifecycle.Life{State: lifeStates[life.State], Since: life.Since, Ill: life.Ill}, known
}

// silentServers are the members of the store whose heartbeat responses its leader misses.
type silentServers struct {
	store interface {
		Silent() ([]raftstore.SilentMember, <-chan struct{})
		Members() []raftstore.Member
	}
}

// Silent implements liveness.Store.
func (s silentServers) Silent() ([]liveness.SilentServer, <-chan struct{}) {
	silent, changed := s.store.Silent()
	var out []liveness.SilentServer
	for _, m := range silent {
		out = append(out, liveness.SilentServer{Name: m.Name, Since: m.Since})
	}
	return out, changed
}

// at reports whether the member of the store at this address misses its heartbeats, in the leader's
// view.
func (s silentServers) at(addr netip.Addr) bool {
	silent, _ := s.store.Silent()
	if len(silent) == 0 {
		return false
	}
	members := s.store.Members()
	return slices.ContainsFunc(silent, func(one raftstore.SilentMember) bool {
		return slices.ContainsFunc(members, func(m raftstore.Member) bool {
			at, err := netip.ParseAddrPort(m.Address)
			return err == nil && m.Name == one.Name && at.Addr() == addr
		})
	})
}
