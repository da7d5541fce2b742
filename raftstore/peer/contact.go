package peer

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// hello is the message of a server that looks for the others, and the answer.
type hello struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	// Known is where the sender takes the members to be, by ID.
	Known map[string]string `json:"known,omitempty"`
	// Leader, in an answer, is the ID of the one that the sender knows to lead.
	Leader string `json:"leader,omitempty"`
	// Removed, in an answer, has the removal of the caller from the group for good.
	Removed *group.Removal `json:"removed,omitempty"`
}

// contactEvery is how often a server without contact to the others looks for them.
const contactEvery = 2 * time.Second

// KeepContact looks for the other servers while this one finds no leader, or while they know it at
// an address that is not its own any more. It ends with ctx.
//
// After a change of addresses it tries the old ones of the others, and those that Options.Known
// gives. A server that is found gives more addresses. That is enough for an election, and the
// elected leader corrects the configuration of the group.
func (p *Peers) KeepContact(ctx context.Context) {
	ticker := time.NewTicker(contactEvery)
	defer ticker.Stop()
	lost := true // a server that is started looks for a successor of its cluster before it would campaign
	for {
		if lost {
			p.rejoin(ctx, p.seek(ctx))
			p.move(ctx)
		} else {
			p.unknown.keep(nil)
			p.foreign.forget()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		lost = p.server.Leader() == "" || p.moved()
	}
}

// moved reports whether the group has another address of this server.
func (p *Peers) moved() bool {
	m, ok := p.member(p.opts.Self.ServerID)
	return ok && m.Address != p.opts.Stream.Addr()
}

// move reports to the leader, if there is one, that this server has another address.
func (p *Peers) move(ctx context.Context) {
	m, ok := p.member(p.opts.Self.ServerID)
	if p.server.Leader() == "" || !ok || m.Address == p.opts.Stream.Addr() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.CallTimeout)
	defer cancel()
	if err := p.server.Move(ctx, p.opts.Stream.Addr()); err != nil {
		p.opts.Logger.Warn("the group does not have this server's new address yet", "old", m.Address, "new",
			p.opts.Stream.Addr(), "err", err)
	}
}

// rejoin makes this server a member again that was dropped while it was away: see Dropped. The
// server at the address has a leader, and does not know this server; the leader decides.
func (p *Peers) rejoin(ctx context.Context, addr string) {
	if _, was := p.member(p.opts.Self.ServerID); addr == "" || !was {
		return // a server that was never a member joins when its program says so
	}
	ctx, cancel := context.WithTimeout(ctx, p.opts.CallTimeout)
	defer cancel()
	err := p.server.JoinBy(ctx, addr)
	var refused *RefusedError
	switch {
	case err == nil:
		p.opts.Logger.Warn(
			"another server has a leader and does not know this one as a member, as after a long absence: it has joined again", "by", addr)
	case errors.As(err, &refused) && p.refusal != refused.Reason:
		p.refusal = refused.Reason
		p.opts.Logger.Error("this server is no member any more, as after a long absence, and is not let in again", "by",
			addr, "err", err)
	}
}

// seek says hello at all addresses at which a member may be, and at those of which it hears by
// that. It returns the address of one that has a leader, and for which this server is neither a
// member nor one that was removed.
func (p *Peers) seek(ctx context.Context) (outsideOf string) {
	asked := map[string]bool{p.opts.Stream.Addr(): true}
	next := p.candidates()
	for range 2 {
		var mu sync.Mutex
		var asking sync.WaitGroup
		heard := make(map[string]bool)
		for _, addr := range next {
			if asked[addr] {
				continue
			}
			asked[addr] = true
			asking.Go(func() {
				answer, err := p.sayHello(ctx, addr)
				if err != nil {
					p.noteRefusal(addr, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, addr := range answer.Known {
					heard[addr] = true
				}
				if _, is := answer.Known[p.opts.Self.ServerID]; !is && answer.Leader != "" && answer.Removed == nil {
					outsideOf = addr
				}
			})
		}
		asking.Wait()
		next = slices.Sorted(maps.Keys(heard))
	}
	return outsideOf
}

func (p *Peers) candidates() []string {
	var addrs []string
	for _, m := range p.server.Members() {
		if !m.Self {
			addrs = append(addrs, m.Address, p.AddressOf(m))
		}
	}
	if p.opts.Known != nil {
		addrs = append(addrs, p.opts.Known()...)
	}
	return addrs
}

// noteRefusal logs a server of another cluster where one of this cluster was expected. A server of
// a successor supersedes this one, which logs that itself.
func (p *Peers) noteRefusal(addr string, err error) {
	var wrong *WrongServerError
	if errors.As(err, &wrong) && wrong.Cluster != "" && wrong.Succession == nil {
		if p.foreign.note(addr, wrong.Cluster, time.Now()) {
			p.opts.Logger.Warn(
				"a server of another cluster is where one of this was expected; if that one took the place of this server's cluster, this server joins anew",
				"mend", p.opts.JoinAgain, "address", addr, "its", wrong.Cluster, "this", p.opts.Self.ClusterID)
		}
		return
	}
	p.opts.Logger.Debug("no server of this cluster was found", "address", addr, "err", err)
}

// noteEnd logs why a connection from another server has ended. A server of another cluster tries
// again every two seconds, until a person acts.
func (p *Peers) noteEnd(from net.Addr, err error) {
	var wrong *WrongServerError
	host, _, splitErr := net.SplitHostPort(from.String())
	if errors.As(err, &wrong) && wrong.Cluster != "" && splitErr == nil {
		// one address may have servers of several
		if !p.callers.note(host+" of "+wrong.Cluster, wrong.Cluster, time.Now()) {
			return
		}
		if p.server.Succeeded(wrong.Cluster) != nil {
			p.opts.Logger.Warn(
				"an old server ran, of a cluster in whose place this one goes on: it was told, and stops", "mend",
				p.opts.JoinAgain, "from", from, "its", wrong.Cluster, "this", p.opts.Self.ClusterID)
			return
		}
	}
	p.opts.Logger.Info("a connection of another server has ended", "from", from, "err", err)
}

// foreignAgain is how often a server of another cluster is logged again. It stays until a person
// acts.
const foreignAgain = 10 * time.Minute

// otherClusters are the servers of other clusters that were met.
type otherClusters struct {
	mu  sync.Mutex
	met map[string]metServer // by where they are
}

type metServer struct {
	cluster string
	logged  time.Time
}

// note records a peer and returns whether to log it.
func (f *otherClusters) note(addr, cluster string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, ok := f.met[addr]; ok && was.cluster == cluster && now.Sub(was.logged) < foreignAgain {
		return false
	}
	if f.met == nil {
		f.met = make(map[string]metServer)
	}
	f.met[addr] = metServer{cluster, now}
	return true
}

// forget is for when this server is in touch with its own cluster again.
func (f *otherClusters) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.met = nil
}

// clusters returns the other clusters that were met, by address.
func (f *otherClusters) clusters() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	clusters := make(map[string]string, len(f.met))
	for addr, m := range f.met {
		clusters[addr] = m.cluster
	}
	return clusters
}

// sayHello asks the server at the address for its identity.
func (p *Peers) sayHello(ctx context.Context, addr string) (hello, error) {
	var answer hello
	ctx, cancel := context.WithTimeout(ctx, p.opts.CallTimeout)
	defer cancel()
	data, err := p.TellUnknown(ctx, addr, CallHello,
		hello{ID: p.opts.Self.ServerID, Address: p.opts.Stream.Addr(), Known: p.known()})
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	if err != nil {
		return answer, err
	}
	if answer.ID == p.opts.Self.ServerID {
		p.opts.Logger.Error(
			"another process runs with a copy of this server's directory: stop one of them at once and remove its copy",
			"here", p.opts.Stream.Addr(), "there", addr)
		return answer, nil
	}
	if answer.Removed != nil {
		p.server.Removed(*answer.Removed)
	}
	p.learn(answer.ID, addr) // where it was reached, whatever it answers
	return answer, nil
}

// HandleHello answers a server that looks for the others.
func (p *Peers) HandleHello(payload []byte) (byte, []byte) { return p.handleHello(payload, true) }

// handleHello answers a server that was removed with that only.
func (p *Peers) handleHello(payload []byte, all bool) (byte, []byte) {
	var h hello
	if err := json.Unmarshal(payload, &h); err != nil {
		return AnswerRefused, []byte(err.Error())
	}
	answer := hello{ID: p.opts.Self.ServerID, Address: p.opts.Stream.Addr()}
	if all {
		if h.Address != "" && h.ID != p.opts.Self.ServerID {
			p.learn(h.ID, h.Address)
		}
		answer.Known, answer.Leader = p.known(), p.server.Leader()
	}
	answer.Removed = p.server.RemovalOf(h.ID)
	data, err := json.Marshal(answer)
	if err != nil {
		return Refuse(err)
	}
	return AnswerOK, data
}

// learn records a member's address.
func (p *Peers) learn(id, addr string) {
	if m, ok := p.member(id); ok && p.addresses.learn(id, addr, m.Address) && addr != m.Address {
		p.opts.Logger.Info("a server has another address than the group has for it", "server", id, "is", addr, "was",
			m.Address)
	}
}

// known is where the members are, as far as this server knows.
func (p *Peers) known() map[string]string {
	known := make(map[string]string)
	for _, m := range p.server.Members() {
		known[m.ID] = p.addresses.of(m.ID, m.Address)
	}
	known[p.opts.Self.ServerID] = p.opts.Stream.Addr()
	return known
}
