package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/controllers/nodelifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// liveness shows to the node controller who lives. It has two sources, and asks nodes themselves:
//
//   - gossip knows of all nodes, and takes some seconds to call one dead;
//   - the store, on its leader, misses the answers of another server within a fraction of a second,
//     and tells nothing of agents.
//
// So a server that gossip takes for alive, or has not heard of yet, is suspect while it does not
// answer the store. What gossip says otherwise stands: a node may well have lost its store and run
// its pods.
//
// With fast failure detection there is a third one: this server asks all nodes itself, once a
// second. One that does not answer is suspect, too. What gossip says of the death of one that
// answers, or did until it was asked last, adds nothing: gossip may be wrong, and the next
// questions tell within a second.
type liveness struct {
	pool interface {
		Member(name string) (gossip.Member, bool)
		Changed() <-chan struct{}
	}
	store interface {
		Silent() ([]raftstore.SilentMember, <-chan struct{})
	}
	pulse interface { // nil without fast failure detection
		Silent(node string) (since time.Time, silent bool)
		Heard(node string) time.Time
		Changed() <-chan struct{}
	}
	tls func() *tls.Config // with which kubelets are called

	mu      sync.Mutex
	changed chan struct{}
}

// kubeletPort is where a kubelet is that has not told.
const kubeletPort = 10250

// run passes on the changes of all sources until the context ends.
func (l *liveness) run(ctx context.Context) error {
	for {
		inPool := l.pool.Changed()
		_, inStore := l.store.Silent()
		var inPulse <-chan struct{}
		if l.pulse != nil {
			inPulse = l.pulse.Changed()
		}
		l.mu.Lock()
		if l.changed != nil {
			close(l.changed)
			l.changed = nil
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-inPool:
		case <-inStore:
		case <-inPulse:
		}
	}
}

// Changed implements nodelifecycle.Liveness.
func (l *liveness) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Life implements nodelifecycle.Liveness.
func (l *liveness) Life(node string) (nodelifecycle.Life, bool) {
	m, known := l.pool.Member(node)
	since, silent := l.silent(node)
	switch {
	case silent && (!known || m.State == gossip.Alive):
		return nodelifecycle.Life{State: nodelifecycle.Suspect, Since: since}, true
	case !known:
		return nodelifecycle.Life{}, false
	}
	life := nodelifecycle.Life{Since: m.Since}
	answered := l.pulse != nil && !l.pulse.Heard(node).IsZero()
	switch {
	case m.State == gossip.Left:
		life.State = nodelifecycle.Left
	case m.State == gossip.Alive || answered && !silent:
		life.State, life.Ill = nodelifecycle.Alive, illness(m.Facts.Health)
	default:
		life.State = nodelifecycle.Dead
		if silent && (answered || since.Before(m.Since)) { // gossip was wrong, or took its time
			life.Since = since
		}
	}
	return life, true
}

// Member implements nodelifecycle.Liveness.
func (l *liveness) Member(node *corev1.Node) bool {
	_, silent := l.silent(node.Name)
	return silent || isMember(node, l.pool.Member)
}

// isMember reports whether a Node is that of a member: it says so, or gossip knows the member,
// whose kubelet has yet to put the label on. What gossip remembers of one that went before the Node
// was made is another machine's.
func isMember(node *corev1.Node, inPool func(name string) (gossip.Member, bool)) bool {
	if nodeleases.IsMember(node) {
		return true
	}
	m, known := inPool(node.Name)
	return known && (m.State == gossip.Alive || m.State == gossip.Dead && !node.CreationTimestamp.After(m.Since))
}

// runsBarque reports whether a Node's kubelet has said that it is Barque's. By that a Node counts
// as a member's where it was made before there was the label and its machine has been away since:
// whoever waits for all members must not forget one, and a foreign node that says so has itself
// waited for.
func runsBarque(node *corev1.Node) bool {
	return strings.Contains(node.Status.NodeInfo.KubeletVersion, "+barque.")
}

// silent tells whether the store or the pulse misses a node's answers, and since when.
func (l *liveness) silent(node string) (since time.Time, silent bool) {
	servers, _ := l.store.Silent()
	if i := slices.IndexFunc(servers, func(s raftstore.SilentMember) bool { return s.Name == node }); i >= 0 {
		since, silent = servers[i].Since, true
	}
	if l.pulse == nil {
		return since, silent
	}
	if asked, is := l.pulse.Silent(node); is && (!silent || asked.Before(since)) {
		since, silent = asked, true
	}
	return since, silent
}

// illness names what keeps a node from running pods. Where it is short of something, its kubelet
// says so.
func illness(h gossip.Health) string {
	return strings.Join((h & (gossip.KubeletIll | gossip.RuntimeIll | gossip.NetworkIll)).Ills(), ", ")
}

// LastSeen implements apiserver.Config's SignsOfLife.
func (l *liveness) LastSeen(node string) (time.Time, bool) {
	life, known := l.Life(node)
	if known && life.State == nodelifecycle.Alive {
		return time.Now(), true
	}
	return life.Since, known
}

// Confirm implements nodelifecycle.Liveness: the node's kubelet proves itself in a TLS handshake. A
// connection alone would prove too little: the kernel accepts it for a process that is stopped.
func (l *liveness) Confirm(ctx context.Context, node *corev1.Node) bool {
	i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		return false // it has never told where it is
	}
	port := cmp.Or(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port), kubeletPort)
	dialer := &tls.Dialer{Config: l.tls()}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(node.Status.Addresses[i].Address, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// apiServers shows the living servers to the controller of the kubernetes Service's endpoints.
type apiServers struct{ pool *gossip.Pool }

func (a apiServers) Servers() []netip.AddrPort {
	var out []netip.AddrPort
	for _, m := range a.pool.Members() {
		if m.Role == pki.RoleServer && m.State == gossip.Alive {
			out = append(out, netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort))
		}
	}
	return out
}

func (a apiServers) Changed() <-chan struct{} { return a.pool.Changed() }

// roles tells who is a server, by the role that each member has proven. A node that is no member is
// none.
type roles struct{ pool *gossip.Pool }

func (r roles) IsServer(node *corev1.Node) (server, known bool) {
	m, known := r.pool.Member(node.Name)
	return m.Role == pki.RoleServer, known || !nodeleases.IsMember(node)
}

// knownServers returns all servers that gossip has heard of and that have not left.
func knownServers(pool *gossip.Pool) []join.Server {
	var out []join.Server
	for _, m := range pool.Members() {
		if m.Role == pki.RoleServer && m.State != gossip.Left {
			out = append(out, join.Server{
				Name:   m.Name,
				API:    netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort),
				Peer:   netip.AddrPortFrom(m.Addr.Addr(), m.Facts.PeerPort),
				Gossip: m.Addr,
			})
		}
	}
	return out
}
