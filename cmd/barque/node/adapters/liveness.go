// Package adapters gives the parts of a server the shapes in which other rooms want them. Rooms do
// not know each other, so each declares the interface that it needs.
package adapters

import (
	"crypto/tls"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/raftstore"
)

// IsKubelet returns why a peer is not the kubelet of the node.
func IsKubelet(node *corev1.Node, peer tls.ConnectionState) error {
	if nodeleases.IsMember(node) {
		return join.IsKubelet(node.Name, peer)
	}
	return join.IsForeignKubelet(node.Name, peer)
}

// Liveness adapts the liveness of nodes to the node controller.
type Liveness struct{ *liveness.Watch }

var lifeStates = map[liveness.State]nodelifecycle.State{
	liveness.Alive: nodelifecycle.Alive, liveness.Suspect: nodelifecycle.Suspect,
	liveness.Dead: nodelifecycle.Dead, liveness.Left: nodelifecycle.Left,
}

// Life implements nodelifecycle.Liveness.
func (l Liveness) Life(node string) (nodelifecycle.Life, bool) {
	life, known := l.Watch.Life(node)
	return nodelifecycle.Life{State: lifeStates[life.State], Since: life.Since, Ill: life.Ill}, known
}

// SilentServers are the members of the store whose heartbeat responses its leader misses.
type SilentServers struct {
	Store interface {
		Silent() ([]raftstore.SilentMember, <-chan struct{})
		Members() []raftstore.Member
	}
}

// Silent implements liveness.Store.
func (s SilentServers) Silent() ([]liveness.SilentServer, <-chan struct{}) {
	silent, changed := s.Store.Silent()
	var out []liveness.SilentServer
	for _, m := range silent {
		out = append(out, liveness.SilentServer{Name: m.Name, Since: m.Since})
	}
	return out, changed
}

// At reports whether the member of the store at this address misses its heartbeats, in the leader's
// view.
func (s SilentServers) At(addr netip.Addr) bool {
	silent, _ := s.Store.Silent()
	if len(silent) == 0 {
		return false
	}
	members := s.Store.Members()
	return slices.ContainsFunc(silent, func(one raftstore.SilentMember) bool {
		return slices.ContainsFunc(members, func(m raftstore.Member) bool {
			at, err := netip.ParseAddrPort(m.Address)
			return err == nil && m.Name == one.Name && at.Addr() == addr
		})
	})
}

// ServerNames are the names of the members of the store, for the controller of manifests.
type ServerNames struct {
	Store interface{ Members() []raftstore.Member }
}

// Names implements manifests.Servers.
func (s ServerNames) Names() (names []string) {
	for _, m := range s.Store.Members() {
		names = append(names, m.Name)
	}
	return names
}

// Serves tells whether this server's API has a resource.
func Serves(gvr schema.GroupVersionResource) bool {
	for _, r := range apiserver.DefaultResources() {
		if r.GroupVersionResource() == gvr {
			return true
		}
	}
	return false
}
