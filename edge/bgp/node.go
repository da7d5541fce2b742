package bgp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/edge/bgp/speaker"
	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/internal/lifecycle"
)

const (
	// StaleAfter is how long a node announces without contact with the cluster. Then it withdraws
	// all routes: pods and nodes may have gone meanwhile, without its notice. The contact is a read
	// that a quorum of the servers confirms. A machine without contact that has a router still is
	// worse than one less for clients, once its pods are replaced elsewhere.
	StaleAfter = 2 * time.Minute
	// probeEvery is the interval of these reads, and probePatience bounds each.
	probeEvery, probePatience = 15 * time.Second, 10 * time.Second
	// settle lies between the node's readiness and the first session of a process. Routers keep the
	// routes meanwhile, and readiness of the node's pods follows that of the node.
	settle = 5 * time.Second
	// lookEvery bounds how often the routes follow the objects, and tellEvery how often the Node
	// follows the sessions.
	lookEvery, tellEvery = 200 * time.Millisecond, 5 * time.Second
	// passwordEvery is the age at which a password is read again, and passwordRetry that of an
	// error.
	passwordEvery, passwordRetry = time.Minute, 10 * time.Second
)

// Reasons of events of a Node.
const (
	SessionEstablished = "BGPSessionEstablished"
	SessionLost        = "BGPSessionLost"
	SessionFailed      = "BGPSessionFailed"
	RoutesWithdrawn    = "BGPRoutesWithdrawn"
)

// NodeConfig of a Node. All but GoesDown, Tell and Logger are needed.
type NodeConfig struct {
	Name      string
	Addresses []netip.Addr // of the node
	// Objects run already, or beside the Node.
	Objects  *Objects
	Nodes    coreinformers.NodeInformer
	Services coreinformers.ServiceInformer
	Slices   discoveryinformers.EndpointSliceInformer
	// Client is the node's.
	Client typedcorev1.CoreV1Interface
	// GoesDown reports whether the machine is about to go down.
	GoesDown func(ctx context.Context) bool
	// Tell makes an event of the node.
	Tell   func(kind, reason, message string)
	Logger *slog.Logger
	// newSpeaker is speaker.New, unless in tests.
	newSpeaker func(speaker.Config) announcer
}

// announcer is a speaker.Speaker.
type announcer interface {
	SetPeers([]speaker.Peer)
	SetRoutes(map[netip.Prefix]speaker.Attributes)
	Sessions() []speaker.Session
	Stop(why error)
}

// Node is the part of BGP on a node. Make it with NewNode and run it once.
type Node struct {
	config  NodeConfig
	speaker announcer
	dirty   chan struct{} // holds a token when there may be something to do
	synced  []cache.InformerSynced
	frozen  atomic.Bool

	// Only the goroutine of follow uses these.
	readySince time.Time // zero while the Node is not Ready
	begun      bool      // sessions may be made
	stale      bool      // the routes are withdrawn for want of contact
	passwords  map[string]password
	said       map[string]Session // by peer, as events told
	toldAt     time.Time

	mu      sync.Mutex
	contact time.Time // the last one with the cluster
	peers   int
	faulty  []Session // of peers without a session
}

// password is one that was read, or the reason why it was not.
type password struct {
	value string
	err   error
	at    time.Time
}

// NewNode asks the informers to run; it is called before their factory is started.
func NewNode(c NodeConfig) (*Node, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Tell == nil {
		c.Tell = func(string, string, string) {}
	}
	if c.GoesDown == nil {
		c.GoesDown = func(context.Context) bool { return false }
	}
	if c.newSpeaker == nil {
		c.newSpeaker = func(of speaker.Config) announcer { return speaker.New(of) }
	}
	n := &Node{config: c, dirty: make(chan struct{}, 1), passwords: map[string]password{}, said: map[string]Session{}}
	n.speaker = c.newSpeaker(speaker.Config{ID: identifier(c.Name, c.Addresses), Logger: c.Logger,
		Changed: func(speaker.Session) { n.touch() }})
	for _, of := range []cache.SharedIndexInformer{c.Nodes.Informer(), c.Services.Informer(), c.Slices.Informer()} {
		registration, err := of.AddEventHandler(anyEvent(n.touch))
		if err != nil {
			return nil, fmt.Errorf("watch for BGP: %w", err)
		}
		n.synced = append(n.synced, registration.HasSynced)
	}
	c.Objects.OnChange(n.touch)
	return n, nil
}

// identifier is the node's BGP identifier (RFC 6286): its IPv4 address, or a number out of its name
// on a node without one.
func identifier(name string, addresses []netip.Addr) netip.Addr {
	for _, a := range addresses {
		if a.Is4() {
			return a
		}
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	sum := h.Sum32() | 1 // never 0.0.0.0
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

func (n *Node) touch() {
	select {
	case n.dirty <- struct{}{}:
	default:
	}
}

// Freeze keeps sessions and routes as they are from now on. A process that stops calls it before it
// says so to the others: the leader then marks the Node, by which the routes would go.
func (n *Node) Freeze() { n.frozen.Store(true) }

// Run announces until ctx ends. Then routers keep the routes for their restart time, unless the
// machine goes down.
func (n *Node) Run(ctx context.Context) error {
	n.reached(time.Now())
	defer func() {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if n.config.GoesDown(asking) {
			n.speaker.Stop(speaker.ErrLeaving)
			return
		}
		n.speaker.Stop(speaker.ErrAway)
	}()
	return lifecycle.All(ctx, n.follow, n.probe)
}

// follow leads the speaker by the objects.
func (n *Node) follow(ctx context.Context) error {
	tick := time.NewTicker(settle)
	defer tick.Stop()
	for {
		n.look(ctx)
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-n.dirty:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// probe proves again and again that the cluster can be reached, while it matters.
func (n *Node) probe(ctx context.Context) error {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		began := time.Now()
		if n.anyPeers() {
			asking, cancel := context.WithTimeout(ctx, probePatience)
			// Without a resourceVersion it is a consistent read.
			_, err := n.config.Client.Nodes().Get(asking, n.config.Name, metav1.GetOptions{})
			cancel()
			if err != nil && !apierrors.IsNotFound(err) {
				n.config.Logger.Debug("no contact with the cluster", "err", err)
				n.touch()
				continue
			}
		}
		n.reached(began)
		n.touch()
	}
}

func (n *Node) reached(at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.contact = at
}

func (n *Node) anyPeers() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers > 0
}

// look compares the cluster's objects with what the speaker does.
func (n *Node) look(ctx context.Context) {
	unknown := func(is cache.InformerSynced) bool { return !is() }
	if n.frozen.Load() || !n.config.Objects.Synced() || slices.ContainsFunc(n.synced, unknown) {
		return
	}
	node, err := n.config.Nodes.Lister().Get(n.config.Name)
	if err != nil {
		node = nil // it is not there: the error of a lister
	}
	if !n.mayBegin(node) {
		return
	}
	var peers []peer
	if node != nil {
		peers = n.config.Objects.peersOf(node.Labels)
	}
	good, faulty := n.usable(ctx, peers)
	n.mu.Lock()
	n.peers, n.faulty = len(good), faulty
	last := n.contact
	n.mu.Unlock()
	var announced map[netip.Prefix]speaker.Attributes
	if len(good) > 0 {
		v, err := n.view(node)
		if err != nil {
			n.config.Logger.Error("the routes do not follow the cluster", "err", err)
			return
		}
		announced = routes(v)
	}
	n.checkContact(last, len(announced) > 0)
	if n.stale {
		announced = nil
	}
	if n.frozen.Load() {
		return // this look may have seen the end of the process
	}
	n.speaker.SetRoutes(announced) // first: a new session begins with them
	n.speaker.SetPeers(good)
	n.tell(ctx, node)
}

// mayBegin reports whether sessions may be made. A process that has just started, and tells its
// routers that it has no routes, takes away those that they kept for it.
func (n *Node) mayBegin(node *corev1.Node) bool {
	if n.begun {
		return true
	}
	if node == nil || !balancers.Ready(node) {
		n.readySince = time.Time{}
		return false
	}
	if n.readySince.IsZero() {
		n.readySince = time.Now()
	}
	n.begun = time.Since(n.readySince) >= settle
	return n.begun
}

// checkContact decides whether the routes are those of a cluster that is out of reach.
func (n *Node) checkContact(last time.Time, matters bool) {
	stale := time.Since(last) > StaleAfter
	if stale && !n.stale && matters {
		text := fmt.Sprintf("This node has not reached the cluster for %v, and has withdrawn its routes", StaleAfter)
		n.config.Logger.Warn("no contact with the cluster for long: the routes are withdrawn", "since", last)
		n.config.Tell(corev1.EventTypeWarning, RoutesWithdrawn, text)
	}
	if !stale && n.stale {
		n.config.Logger.Info("the cluster is in reach again: the routes are announced")
	}
	n.stale = stale
}

func (n *Node) view(node *corev1.Node) (*view, error) {
	ways, _ := n.config.Objects.Ways()
	v := &view{node: node, ways: ways}
	var errs [3]error
	v.nodes, errs[0] = n.config.Nodes.Lister().List(labels.Everything())
	v.services, errs[1] = n.config.Services.Lister().List(labels.Everything())
	v.slices, errs[2] = n.config.Slices.Lister().List(labels.Everything())
	return v, errors.Join(errs[:]...)
}

// usable returns the peers with which there may be a session, and the others as sessions with their
// faults.
func (n *Node) usable(ctx context.Context, peers []peer) (good []speaker.Peer, faulty []Session) {
	used := map[string]bool{}
	// One wait for all: the routes wait, too, and their withdrawal.
	asking, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	for _, p := range peers {
		if p.fault == nil && p.secret != "" {
			used[p.secret] = true
			of := n.password(asking, p.secret)
			p.Password, p.fault = of.value, of.err
		}
		if p.fault != nil {
			s := Session{Peer: p.Name, Address: p.Address.Addr().String(), Problem: p.fault.Error()}
			if had, ok := n.said[p.Name]; ok && !had.Established {
				s.Since = had.Since
			} else {
				s.Since = time.Now().UTC().Truncate(time.Second)
			}
			faulty = append(faulty, s)
			continue
		}
		good = append(good, p.Peer)
	}
	for name := range n.passwords {
		if !used[name] {
			delete(n.passwords, name)
		}
	}
	return good, faulty
}

// password returns the password of a Secret. One that cannot be read for the moment stays as it
// was.
func (n *Node) password(ctx context.Context, name string) password {
	had, known := n.passwords[name]
	age := passwordEvery
	if had.err != nil {
		age = passwordRetry
	}
	if known && time.Since(had.at) < age {
		return had
	}
	secret, err := n.config.Client.Secrets(SecretNamespace).Get(ctx, name, metav1.GetOptions{})
	now := password{at: time.Now()}
	switch {
	case apierrors.IsNotFound(err):
		now.err = fmt.Errorf("the Secret %s/%s of the password is not there", SecretNamespace, name)
	case err != nil && known && had.err == nil:
		now.value = had.value
	case err != nil:
		now.err = fmt.Errorf("read the Secret %s/%s: %w", SecretNamespace, name, err)
	default:
		now.value = strings.TrimRight(string(secret.Data[SecretKey]), "\r\n")
		if size := len(now.value); size == 0 || size > speaker.MaxPassword {
			now.value = ""
			now.err = fmt.Errorf("the Secret %s/%s: the key %q has %d bytes; want 1 to %d", SecretNamespace, name,
				SecretKey, size, speaker.MaxPassword)
		}
	}
	n.passwords[name] = now
	return now
}

// sessions are all, in the order of their peers.
func (n *Node) sessions() []Session {
	n.mu.Lock()
	out := slices.Clone(n.faulty)
	n.mu.Unlock()
	for _, s := range n.speaker.Sessions() {
		out = append(out, sessionOf(s))
	}
	slices.SortFunc(out, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	return out
}

// tell makes events of changes, and writes the sessions into the Node.
func (n *Node) tell(ctx context.Context, node *corev1.Node) {
	all := n.sessions()
	now := map[string]Session{}
	for _, s := range all {
		before, known := n.said[s.Peer]
		switch {
		case s.Established && !before.Established:
			n.config.Tell(corev1.EventTypeNormal, SessionEstablished,
				fmt.Sprintf("The BGP session with %s (%s) is established", s.Peer, s.Address))
		case !s.Established && before.Established:
			n.config.Tell(corev1.EventTypeWarning, SessionLost,
				fmt.Sprintf("The BGP session with %s (%s) is lost: %s", s.Peer, s.Address, s.Problem))
		case !s.Established && s.Problem != "" && (!known || before.Problem != s.Problem):
			n.config.Tell(corev1.EventTypeWarning, SessionFailed,
				fmt.Sprintf("There is no BGP session with %s (%s): %s", s.Peer, s.Address, s.Problem))
		}
		if s.Problem == "" && !s.Established && known {
			s.Problem = before.Problem // of the attempt before this one
		}
		now[s.Peer] = s
	}
	n.said = now
	if node == nil || time.Since(n.toldAt) < tellEvery {
		return
	}
	text, err := json.Marshal(all[:min(len(all), mostShown)])
	if err != nil {
		n.config.Logger.Error("the Node does not have its BGP sessions", "err", err)
		return
	}
	value := any(string(text))
	if len(all) == 0 {
		value, text = nil, nil
	}
	if node.Annotations[Annotation] == string(text) {
		return
	}
	n.toldAt = time.Now()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID,
		"annotations": map[string]any{Annotation: value}}})
	if err == nil {
		asking, cancel := context.WithTimeout(ctx, probePatience)
		defer cancel()
		_, err = n.config.Client.Nodes().Patch(asking, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil && ctx.Err() == nil {
		n.config.Logger.Debug("the Node does not have its BGP sessions yet", "err", err)
	}
}

var (
	upDesc = prometheus.NewDesc("barque_edge_bgp_session_established",
		"1 while this node has a BGP session with the peer, and 0 while it has none.", []string{"peer"}, nil)
	routesDesc = prometheus.NewDesc("barque_edge_bgp_routes", "Routes that this node announces to the peer.",
		[]string{"peer"}, nil)
)

// Describe implements prometheus.Collector.
func (n *Node) Describe(to chan<- *prometheus.Desc) { to <- upDesc; to <- routesDesc }

// Collect implements prometheus.Collector.
func (n *Node) Collect(to chan<- prometheus.Metric) {
	for _, s := range n.sessions() {
		up := 0.0
		if s.Established {
			up = 1
		}
		to <- prometheus.MustNewConstMetric(upDesc, prometheus.GaugeValue, up, s.Peer)
		to <- prometheus.MustNewConstMetric(routesDesc, prometheus.GaugeValue, float64(s.Routes), s.Peer)
	}
}
