package gossip

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// State of a member as the pool sees it.
type State string

const (
	Alive State = "alive"
	Dead  State = "dead" // answered neither a direct nor an indirect probe
	Left  State = "left" // said good-bye
)

// Member is one node of the cluster.
type Member struct {
	Name  string
	Role  string // "server" or "agent"
	Addr  netip.AddrPort
	State State
	Since time.Time // when this node saw the state begin
	Facts Facts
	// ProvenUntil is when the credential ends that the member has shown last.
	ProvenUntil time.Time
	// ProvenBy is the digest of the CA that has signed that credential.
	ProvenBy string
	// GoodbyeSince is when this node saw Facts.Leaving of a living member begin. It is zero without
	// that.
	GoodbyeSince time.Time
}

// Config of a Pool.
type Config struct {
	Name      string
	ClusterID string
	Advertise netip.AddrPort
	Facts     Facts
	// Keys encrypt the pool's traffic; the first one is used for sending. Facts.KeyGeneration
	// numbers them.
	Keys      [][]byte
	Authority Verifier
	// Barred returns the reason why a member is not believed although its credential is genuine, or
	// nil: its certificates are revoked. It must not block; nil bars none.
	Barred func(holder pki.Credential) error
	// Proof is asked whenever the metadata is sent, so that a renewed credential is used.
	Proof func() Proof
	// Seeds are addresses at which other members may be found. They are asked again while members
	// are missing, which is how the halves of a healed partition find each other.
	Seeds func() []netip.AddrPort
	// Rejoin is how often that happens; 5 s when zero.
	Rejoin time.Duration
	// Goodbye is how long this node waits until the others have its departure, or its new
	// credential; 1 s when zero. Otherwise they take the node for dead. Leaving has three steps,
	// each of which may take that long. Then it waits for messages in flight, up to memberlist's
	// TCP timeout of 4 s.
	Goodbye time.Duration
	// About returns this member's report for another member, JSON without secrets. It may be nil.
	About func() json.RawMessage
	// Tune changes memberlist's settings, for tests and for faster detection. It may be nil.
	Tune   func(*memberlist.Config)
	Logger *slog.Logger
	Now    func() time.Time
}

// Pool is this node's view of all nodes.
type Pool struct {
	config  Config
	list    *memberlist.Memberlist
	keyring *memberlist.Keyring
	streams *transport // bounds TCP connections; nil with a transport of the caller
	talk    talk
	proven  proven
	news    chan struct{} // holds one when the metadata may have to be sent again

	mu      sync.Mutex
	facts   Facts
	shown   []byte // this member's metadata in memberlist, which drops an update that arrives while it refutes a rumour
	members map[string]Member
	leaving map[string]time.Time // when living members said good-bye
	heard   map[string]answered
	changed chan struct{} // closed and replaced at every change
}

// New opens the gossip port and joins no member yet.
func New(c Config) (*Pool, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Rejoin == 0 {
		c.Rejoin = 5 * time.Second
	}
	if c.Goodbye == 0 {
		c.Goodbye = time.Second
	}
	p := &Pool{config: c, facts: c.Facts, news: make(chan struct{}, 1), talk: talk{asked: map[string]chan message{}},
		members: map[string]Member{}, leaving: map[string]time.Time{}, heard: map[string]answered{},
		changed: make(chan struct{})}
	var err error
	if p.keyring, err = memberlist.NewKeyring(c.Keys, c.Keys[0]); err != nil {
		return nil, fmt.Errorf("gossip keys: %w", err)
	}
	mc := memberlist.DefaultLANConfig()
	mc.Name = c.Name
	mc.Label = "barque:" + c.ClusterID
	mc.BindAddr, mc.BindPort = c.Advertise.Addr().String(), int(c.Advertise.Port())
	mc.AdvertiseAddr, mc.AdvertisePort = mc.BindAddr, mc.BindPort
	mc.Keyring = p.keyring
	// A node that comes back with another address may take its name again once it is seen dead.
	mc.DeadNodeReclaimTime = 10 * time.Second
	// Also how long a node that stops may have to wait for a seed that does not answer.
	mc.TCPTimeout = 4 * time.Second
	mc.Delegate, mc.Events, mc.Alive, mc.Merge, mc.Conflict, mc.Ping = p, p, p, p, p, p
	mc.Logger = log.New(&lineLogger{logger: c.Logger}, "", 0)
	if c.Tune != nil {
		c.Tune(mc)
	}
	if err := p.provesItself(); err != nil {
		return nil, err
	}
	if p.list, p.streams, err = create(mc, c.Logger); err != nil {
		return nil, fmt.Errorf("open the gossip port %s (TCP and UDP): %w", c.Advertise, err)
	}
	p.talk.open()
	return p, nil
}

// provesItself verifies this node's own metadata like the others will. With wrong metadata no node
// would accept it, and memberlist would not list it. Later additions have to fit as well.
func (p *Pool) provesItself() error {
	c := p.config
	proof := c.Proof()
	c.Facts.Leaving, c.Facts.Health = true, 1<<len(healthNames)-1
	c.Facts.KeyGeneration, c.Facts.Trust = max(c.Facts.KeyGeneration, 1_000_000), max(proof.Trust, 1_000_000)
	if c.Facts.APIPort != 0 {
		c.Facts.Revoked, c.Facts.DataKeys = max(c.Facts.Revoked, 1_000_000_000), max(c.Facts.DataKeys, 1_000_000)
		c.Facts.EncryptionFile, c.Facts.PluginKeys, c.Facts.Blind = math.MaxUint32, math.MaxUint16, true
	}
	meta, err := encodeMeta(c.ClusterID, c.Name, c.Advertise, proof, c.Facts)
	if err == nil && len(meta)+signatureSlack > memberlist.MetaMaxSize {
		err = tooLong(c.Name, len(meta)+signatureSlack)
	}
	if err != nil {
		return err
	}
	self := &memberlist.Node{Name: c.Name, Addr: c.Advertise.Addr().AsSlice(), Port: c.Advertise.Port(), Meta: meta}
	if _, _, err := decodeMeta(c.Authority, c.ClusterID, self, c.Now()); err != nil {
		return fmt.Errorf("this node cannot prove itself to the others: %w", err)
	}
	return nil
}

// Run joins the pool, looks for missing members until the context ends, and then says good-bye.
func (p *Pool) Run(ctx context.Context) error {
	p.attend(ctx)
	return p.leave()
}

// attend is the work of a member in the pool.
func (p *Pool) attend(ctx context.Context) {
	var showing sync.WaitGroup
	showing.Go(func() { p.show(ctx) })
	p.seek(ctx)
	showing.Wait()
}

func (p *Pool) seek(ctx context.Context) {
	ticker := time.NewTicker(p.config.Rejoin)
	defer ticker.Stop()
	for {
		p.join(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// AnnounceLeaving announces to the others that this member is about to leave. It stays in the pool:
// its other parts may need some time to stop, and its kubelet stops first. AnnounceLeaving waits
// for the spreading to begin, for Config.Goodbye at most.
func (p *Pool) AnnounceLeaving() {
	p.setLeaving()
	if err := p.list.UpdateNode(p.config.Goodbye); err != nil {
		p.config.Logger.Info("the other nodes may not have heard that this one is about to leave", "reason", err)
	}
}

func (p *Pool) setLeaving() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts.Leaving = true
}

func (p *Pool) leave() error {
	p.setLeaving()
	if err := errors.Join(p.sayGoodbye(), p.list.UpdateNode(p.config.Goodbye),
		p.list.Leave(p.config.Goodbye)); err != nil {
		p.config.Logger.Info("the other nodes may take this one for dead, not for gone on purpose", "reason", err)
	}
	err := p.list.Shutdown()
	p.talk.close()
	return err
}

// SetHealth announces the health of this member to the others.
func (p *Pool) SetHealth(h Health) {
	p.mu.Lock()
	p.facts.Health = h
	p.mu.Unlock()
	p.tell()
}

// SetRevoked announces to the others the version of this server's list of revoked certificates.
// Versions only rise, so of two callers at a time the newer one counts.
func (p *Pool) SetRevoked(version uint64) {
	p.mu.Lock()
	p.facts.Revoked = max(p.facts.Revoked, version)
	p.mu.Unlock()
	p.tell()
}

// tell wakes show.
func (p *Pool) tell() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// show sends this member's metadata again when its health, key generation or credential changes.
// memberlist reads metadata at its start and on request only, and the others reject an expired
// credential. Oscillating values are sent a few times a second at most.
func (p *Pool) show(ctx context.Context) {
	ticker := time.NewTicker(p.config.Rejoin)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.news:
		case <-ticker.C:
		}
		if p.isShown() {
			continue
		}
		if err := p.list.UpdateNode(p.config.Goodbye); err != nil {
			p.config.Logger.Warn("the other nodes may not have heard what is new about this one", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(p.config.Rejoin / 20):
		}
	}
}

func (p *Pool) isShown() bool {
	meta, err := p.metadata()
	p.mu.Lock()
	defer p.mu.Unlock()
	return err == nil && bytes.Equal(meta, p.shown)
}

// metadata returns this member's current metadata.
func (p *Pool) metadata() ([]byte, error) {
	proof := p.config.Proof()
	p.mu.Lock()
	facts := p.facts
	p.mu.Unlock()
	facts.Trust = proof.Trust
	return encodeMeta(p.config.ClusterID, p.config.Name, p.config.Advertise, proof, facts)
}

// join contacts possibly missing members. One without an answer is no fault: it may be down for
// long.
func (p *Pool) join(ctx context.Context) {
	var seeds []netip.AddrPort
	if p.config.Seeds != nil {
		seeds = p.config.Seeds()
	}
	for _, target := range missing(p.config.Advertise, p.Members(), seeds) {
		if ctx.Err() != nil {
			return
		}
		if _, err := p.list.Join([]string{target.String()}); err != nil {
			p.config.Logger.Debug("gossip seed does not answer", "address", target, "err", err)
		}
	}
}

// maxMissingAgents is how many missing agents are contacted at a time. Each may cost a timeout,
// their number is unbounded, and they look for the servers themselves.
const maxMissingAgents = 3

// missing returns the addresses of members that this one, at self, does not see alive: the servers
// and the seeds, then some of the agents, different ones each time.
func missing(self netip.AddrPort, members []Member, seeds []netip.AddrPort) []netip.AddrPort {
	living := map[netip.AddrPort]bool{self: true}
	var first, agents []netip.AddrPort
	for _, m := range members {
		switch {
		case m.State == Alive:
			living[m.Addr] = true
		case m.Role == "server":
			first = append(first, m.Addr)
		default:
			agents = append(agents, m.Addr)
		}
	}
	for _, seed := range seeds {
		if !slices.Contains(first, seed) {
			first = append(first, seed)
		}
	}
	first = slices.DeleteFunc(first, func(a netip.AddrPort) bool { return living[a] })
	agents = slices.DeleteFunc(agents, func(a netip.AddrPort) bool { return living[a] || slices.Contains(first, a) })
	rand.Shuffle(len(agents), func(i, j int) { agents[i], agents[j] = agents[j], agents[i] })
	return append(first, agents[:min(len(agents), maxMissingAgents)]...)
}

// Members returns all nodes that were ever seen, this one included, sorted by name.
func (p *Pool) Members() []Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Member, 0, len(p.members))
	for _, m := range p.members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Member returns one node by name.
func (p *Pool) Member(name string) (Member, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[name]
	return m, ok
}

// Changed returns a channel that is closed at the next change of any member.
func (p *Pool) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Forget drops a node that is not alive, after it was removed from the cluster.
func (p *Pool) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, ok := p.members[name]; ok && m.State != Alive {
		delete(p.members, name)
		delete(p.heard, name)
		delete(p.leaving, name)
		p.proven.forget(name)
		p.notify()
	}
}

// HealthScore is memberlist's awareness of this node's own slowness: 0 is healthy.
func (p *Pool) HealthScore() int { return p.list.GetHealthScore() }

// set records that a member is alive or has ended: left, if it has said good-bye. Since is kept if
// only its facts have changed.
func (p *Pool) set(node *memberlist.Node, alive bool) {
	holder, facts, err := p.prove(node)
	if err != nil && !errors.Is(err, pki.ErrCredentialEnded) {
		return // cannot be: NotifyAlive has checked the same bytes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	state := Alive
	if !alive && p.isLeaving(node.Name) {
		state = Left
	} else if !alive {
		state = Dead
	}
	p.record(node, state, holder, facts)
}

// record is set for verified metadata. The caller holds mu.
func (p *Pool) record(node *memberlist.Node, state State, holder pki.Credential, facts Facts) {
	m := Member{Name: node.Name, Role: holder.Role, ProvenUntil: holder.NotAfter, ProvenBy: holder.Signer,
		Addr: addrOf(node), State: state, Since: p.config.Now(), Facts: facts}
	old, ok := p.members[node.Name]
	if state == Alive && facts.Leaving {
		if m.GoodbyeSince = old.GoodbyeSince; m.GoodbyeSince.IsZero() {
			m.GoodbyeSince = p.config.Now()
			p.config.Logger.Info("gossip member is about to leave", "member", m.Name, "role", m.Role)
		}
	}
	if ok && old.State == state {
		m.Since = old.Since
	} else {
		p.config.Logger.Info("gossip member changed", "member", m.Name, "role", m.Role, "address", m.Addr, "state",
			state, "was", old.State)
	}
	if was := old.Facts.Health; was != facts.Health && state == Alive {
		p.config.Logger.Info("gossip member reports its health", "member", m.Name, "ills", facts.Health.Faults(),
			"before", was.Faults())
	}
	p.members[node.Name] = m
	if state != Alive || !facts.Leaving { // it has ended, or it is back already
		delete(p.leaving, node.Name)
	}
	if node.Name == p.config.Name {
		p.shown = bytes.Clone(node.Meta)
	}
	p.notify()
}

func (p *Pool) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}
