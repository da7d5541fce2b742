// Package liveness knows which nodes live, from gossip, the store and this server's own probes. It
// also knows which API servers are ready, and passes this node's state on to gossip.
package liveness

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/membership/gossip"
)

// Watch shows the node controller which nodes live. It has two sources:
//
//   - gossip knows all nodes, and takes some seconds to declare one dead;
//   - the store, on its leader, misses the answers of another server within a fraction of a second,
//     and does not know agents.
//
// So a server that gossip counts as alive, or does not know yet, is suspect while it does not
// answer the store. Any other state in gossip stands: a node may well have lost its store and run
// its pods.
//
// With fast failure detection this server also probes all nodes, once a second. A node without an
// answer is suspect, too. Gossip's verdict of death adds nothing for a node that answers, or did
// until its last probe: gossip may be wrong, and the next probes decide within a second.
type Watch struct {
	Config
	mu      sync.Mutex
	changed chan struct{}
}

// Config has the sources of evidence.
type Config struct {
	Pool  Pool
	Store Store
	Pulse Pulse // nil without fast failure detection
	// TLS returns the configuration with which the kubelet of a member is called. It accepts no
	// other machine at the member's address.
	TLS func(member string) *tls.Config
	// Labelled reports whether a Node has the label of a member.
	Labelled func(*corev1.Node) bool
	Logger   *slog.Logger // nil for none
}

// Pool is the interface of gossip.
type Pool interface {
	Member(name string) (gossip.Member, bool)
	Changed() <-chan struct{}
}

// Store is the interface of the store.
type Store interface {
	// Silent returns the servers whose answers the store misses, and a channel that is closed when
	// that changes.
	Silent() ([]SilentServer, <-chan struct{})
}

// SilentServer is a server that does not answer the store.
type SilentServer struct {
	Name  string
	Since time.Time
}

// Pulse is the interface of the probes of all nodes.
type Pulse interface {
	Silent(node string) (since time.Time, silent bool)
	Heard(node string) time.Time
	Changed() <-chan struct{}
}

// New returns a Watch; it signals changes while it runs.
func New(c Config) *Watch {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watch{Config: c}
}

// State of a node from all evidence.
type State int

const (
	Alive   State = iota + 1
	Suspect       // some members get its answers and some do not
	Dead          // no member hears of it
	Left          // said good-bye, though parts of it may still run
)

// Life is the evidence about a node.
type Life struct {
	State State
	Since time.Time // when State began, by this server's clock
	// Ill is the fault, in the node's own report, that keeps it from running pods though it is
	// Alive.
	Ill string
}

// kubeletPort is the port of a kubelet that has not reported one.
const kubeletPort = 10250

// Run passes on the changes of all sources until the context ends.
func (l *Watch) Run(ctx context.Context) error {
	for {
		inPool := l.Pool.Changed()
		_, inStore := l.Store.Silent()
		var inPulse <-chan struct{}
		if l.Pulse != nil {
			inPulse = l.Pulse.Changed()
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

// Changed returns a channel that is closed at the next change of any node.
func (l *Watch) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Life returns the evidence about one node; false without any.
func (l *Watch) Life(node string) (Life, bool) {
	m, known := l.Pool.Member(node)
	since, silent := l.silent(node)
	switch {
	case known && m.State == gossip.Alive && !m.GoodbyeSince.IsZero():
		return Life{State: Left, Since: m.GoodbyeSince}, true // its kubelet stops before its gossip
	case silent && (!known || m.State == gossip.Alive):
		return Life{State: Suspect, Since: since}, true
	case !known:
		return Life{}, false
	}
	life := Life{Since: m.Since}
	answered := l.Pulse != nil && !l.Pulse.Heard(node).IsZero()
	switch {
	case m.State == gossip.Left:
		life.State = Left
	case m.State == gossip.Alive || answered && !silent:
		life.State, life.Ill = Alive, illness(m.Facts.Health)
	default:
		life.State = Dead
		if silent && (answered || since.Before(m.Since)) { // gossip was wrong, or took its time
			life.Since = since
		}
	}
	return life, true
}

// Member reports whether a Node is that of a member of the cluster.
func (l *Watch) Member(node *corev1.Node) bool {
	_, silent := l.silent(node.Name)
	return silent || l.Labelled(node) || InPool(node, l.Pool.Member)
}

// InPool reports whether gossip knows the member of a Node, whose kubelet has yet to set the label.
// A member that ended before the Node was made is another machine's.
func InPool(node *corev1.Node, member func(name string) (gossip.Member, bool)) bool {
	m, known := member(node.Name)
	return known && (m.State == gossip.Alive || m.State == gossip.Dead && !node.CreationTimestamp.After(m.Since))
}

// silent reports whether the store or the pulse misses a node's answers, and since when.
func (l *Watch) silent(node string) (since time.Time, silent bool) {
	servers, _ := l.Store.Silent()
	if i := slices.IndexFunc(servers, func(s SilentServer) bool { return s.Name == node }); i >= 0 {
		since, silent = servers[i].Since, true
	}
	if l.Pulse == nil {
		return since, silent
	}
	if asked, is := l.Pulse.Silent(node); is && (!silent || asked.Before(since)) {
		since, silent = asked, true
	}
	return since, silent
}

// illness names the fault that keeps a node from running pods. A shortage of resources is its
// kubelet's to report. The kubelet of a node that is locked out reaches no server.
func illness(h gossip.Health) string {
	return strings.Join((h & (gossip.KubeletIll | gossip.RuntimeIll | gossip.NetworkIll | gossip.LockedOut)).Faults(),
		", ")
}

// LastSeen returns the time of a node's last sign of life; false without any.
func (l *Watch) LastSeen(node string) (time.Time, bool) {
	life, known := l.Life(node)
	if known && life.State == Alive {
		return time.Now(), true
	}
	return life.Since, known
}

// Confirm probes the node itself: its kubelet proves in a TLS handshake that it is that of the
// node. A connection alone would prove too little: the kernel accepts it for a stopped process. So
// would any certificate of the cluster: the address of a dead node may be another one's by now.
func (l *Watch) Confirm(ctx context.Context, node *corev1.Node) bool {
	i := slices.IndexFunc(node.Status.Addresses,
		func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		return false // it has never reported its address
	}
	port := cmp.Or(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port), kubeletPort)
	address := net.JoinHostPort(node.Status.Addresses[i].Address, strconv.Itoa(port))
	conn, err := (&tls.Dialer{Config: l.TLS(node.Name)}).DialContext(ctx, "tcp", address)
	if err != nil {
		l.Logger.Info("a silent node does not prove itself at its address", "node", node.Name, "address", address,
			"err", err)
		return false
	}
	conn.Close()
	return true
}
