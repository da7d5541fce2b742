package members

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// registering is how long an agent may be alive before it has its Node.
const registering = 2 * time.Minute

// away is the state of a member that this server has not met since it started.
const away = "not in the pool"

// sharers are the facts of which the members that share keys follow.
type sharers struct {
	Marks
	servers []Server // members of the store
	nodes   []*corev1.Node
	synced  bool // these are all
	pool    []gossip.Member
}

func (m *Members) sharers() sharers {
	return sharers{m.Marks, m.Servers(), m.nodes(), m.Synced(), m.Pool.Members()}
}

// GossipKeys are all members, by the keys of gossip that they use.
func (m *Members) GossipKeys() []rollover.Member {
	return m.sharers().list(time.Now(), func(f gossip.Facts) uint64 { return f.KeyGeneration })
}

// DataKeys are all members, by the data keys that they have taken over. Only servers have any.
func (m *Members) DataKeys() []rollover.Member {
	return m.sharers().list(time.Now(), func(f gossip.Facts) uint64 { return f.DataKeys })
}

// Readers returns which servers show in gossip that they have the data keys of the generation, and
// read all objects, by their IDs in the consensus group.
func Readers(members []gossip.Member, generation uint64) func(id string) bool {
	ids := map[string]bool{}
	for _, m := range members {
		if m.State == gossip.Alive && m.Facts.PeerID != "" && !m.Facts.Blind &&
			m.Facts.DataKeys >= max(generation, datakeys.First) {
			ids[m.Facts.PeerID] = true
		}
	}
	return func(id string) bool { return ids[id] }
}

// EncryptionFiles are all members. Their generations are the digests of their files of providers,
// from bit 32 on those of the keys of their plugins, and bit 48 is set of one that cannot read all
// objects. Only servers have any.
func (m *Members) EncryptionFiles() []rollover.Member {
	return m.sharers().list(time.Now(), func(f gossip.Facts) uint64 {
		is := uint64(f.PluginKeys)<<32 | uint64(f.EncryptionFile)
		if f.Blind {
			is |= 1 << 48
		}
		return is
	})
}

// EarlierCAs names the servers of a version that does not handle bundles of CAs of the form, and
// those whose version is unknown.
func (m *Members) EarlierCAs(form int) []string { return m.sharers().earlierCAs(form, time.Now()) }

func (s sharers) earlierCAs(form int, now time.Time) (names []string) {
	for _, is := range s.list(now, func(f gossip.Facts) uint64 { return uint64(f.CAs) }) {
		if is.Role == pki.RoleServer && is.Barred == "" && is.Generation < uint64(form) {
			names = append(names, is.Name)
		}
	}
	return names
}

// CAs are the members that the exchange of the CA waits for, by the CAs that they have taken over.
// An agent that registers just now is one. So is a server that is none any more, if gossip does not
// know it: people may have marked an agent.
func (m *Members) CAs() ([]rollover.Member, error) {
	if !m.Synced() {
		return nil, join.ErrNotYet
	}
	return m.sharers().cas(time.Now()), nil
}

func (s sharers) cas(now time.Time) []rollover.Member {
	all := s.list(now.Add(-registering), func(f gossip.Facts) uint64 { return f.Trust })
	return slices.DeleteFunc(all, func(is rollover.Member) bool { return is.Barred != "" && is.State != away })
}

// list adds to the pool's members those that the pool does not know. A removed node is barred: it
// gets no keys, so that waiting for it would be for ever. An agent has its Node or is alive since
// the time. The Node of a foreign node is no member's.
func (s sharers) list(since time.Time, generation func(gossip.Facts) uint64) []rollover.Member {
	var all []rollover.Member
	listed := map[string]bool{}
	add := func(is rollover.Member, barred error) {
		if barred != nil {
			is.Barred = barred.Error()
		}
		if !listed[is.Name] {
			listed[is.Name], all = true, append(all, is)
		}
	}
	made := map[string]time.Time{}
	for _, n := range s.nodes {
		made[n.Name] = n.CreationTimestamp.Time
	}
	for _, p := range s.pool {
		alive := p.State == gossip.Alive
		registered, known := made[p.Name]
		if !alive && registered.After(p.Since) {
			continue // the Node is another machine's
		}
		var barred error
		switch {
		case slices.ContainsFunc(s.servers, func(s Server) bool { return s.Name == p.Name }):
		case p.Role == pki.RoleServer:
			barred = noServer(p.Name)
		case s.synced && !known && !(alive && p.Since.After(since)):
			barred = noNode(p.Name)
		}
		add(
			rollover.Member{Name: p.Name, Role: p.Role, Alive: alive, State: string(p.State),
				Generation: generation(p.Facts), Signer: p.ProvenBy}, barred)
	}
	for _, server := range s.servers {
		add(rollover.Member{Name: server.Name, Role: pki.RoleServer, State: away}, nil)
	}
	for _, n := range s.nodes {
		switch {
		case s.IsServer(n):
			add(rollover.Member{Name: n.Name, Role: pki.RoleServer, State: away}, noServer(n.Name))
		case s.IsMember(n) || runsBarque(n):
			add(rollover.Member{Name: n.Name, Role: pki.RoleAgent, State: away}, nil)
		}
	}
	return all
}

func noServer(name string) error { return fmt.Errorf("%q is no server of this cluster any more", name) }

func noNode(name string) error {
	return fmt.Errorf("%q is no node of this cluster any more: it has no Node object", name)
}

// Barred returns the reason why a node gets no gossip keys: it was taken out of the cluster.
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
		return noNode(name)
	}
	return nil
}
