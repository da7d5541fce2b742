package members

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
)

// Keys are all members that get the keys of gossip: those in the pool, and those that the store or
// the API know of and the pool does not, because they have been away since before this server
// started.
func (m *Members) Keys() []keyring.Member {
	var out []keyring.Member
	for _, p := range m.Pool.Members() {
		member := keyring.Member{Name: p.Name, Role: p.Role, Alive: p.State == gossip.Alive, State: string(p.State), Generation: p.Facts.KeyGeneration}
		if err := m.Barred(p.Name, p.Role); err != nil && !errors.Is(err, join.ErrNotYet) {
			member.Barred = err.Error()
		}
		out = append(out, member)
	}
	nodes, err := m.Nodes.Lister().List(labels.Everything())
	if err != nil {
		m.Logger.Warn("cannot list nodes", "err", err)
	}
	return m.addAway(out, m.Servers(), nodes)
}

// addAway adds the members that the pool does not know. Whose Node is that of a server and who is
// no member of the store is a former server: it gets no keys, and nobody waits for it. The Node of
// a foreign node is no member's.
func (m Marks) addAway(pool []keyring.Member, store []Server, nodes []*corev1.Node) []keyring.Member {
	add := func(name, role, barred string) {
		if !slices.ContainsFunc(pool, func(m keyring.Member) bool { return m.Name == name }) {
			pool = append(pool, keyring.Member{Name: name, Role: role, State: "not in the pool", Barred: barred})
		}
	}
	for _, s := range store {
		add(s.Name, pki.RoleServer, "")
	}
	for _, n := range nodes {
		switch {
		case m.IsServer(n):
			add(n.Name, pki.RoleServer, noServer(n.Name).Error())
		case m.IsMember(n) || runsBarque(n):
			add(n.Name, pki.RoleAgent, "")
		}
	}
	return pool
}

func noServer(name string) error { return fmt.Errorf("%q is no server of this cluster any more", name) }

// Barred tells why a node gets no gossip keys: it was taken out of the cluster.
func (m *Members) Barred(name, role string) error {
	if role == pki.RoleServer {
		if m.ServerNamed(name) {
			return nil
		}
		return noServer(name)
	}
	if !m.Synced() {
		return join.ErrNotYet
	}
	if _, err := m.Nodes.Lister().Get(name); apierrors.IsNotFound(err) {
		return fmt.Errorf("%q is no node of this cluster any more: it has no Node object", name)
	}
	return nil
}
