package node

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
	"github.com/barque/barque/raftstore/peer"
)

// hello is what two servers tell each other when one of them looks for the others.
type hello struct {
	ID      string `json:"id"`
	Address string `json:"address"`
	// Known is where the sender takes the members to be, by ID.
	Known map[string]string `json:"known,omitempty"`
	// Leader, in an answer, is the ID of the one that the sender knows to lead.
	Leader string `json:"leader,omitempty"`
	// Removed, in an answer, tells that the server that asks was taken out of the group for good.
	Removed *group.Removal `json:"removed,omitempty"`
}

// contactEvery is how often a server that is out of touch looks for the others.
const contactEvery = 2 * time.Second

// keepContact looks for the other servers while this one finds no leader, or while they know it at
// an address that is not its own any more. It ends with the node.
//
// After a change of addresses the old ones of the others are tried, and those that Config.Peers
// gives. Who is found tells of more. That is enough for an election, and the leader that comes out
// of it corrects the configuration of the group.
func (n *Node) keepContact() {
	ticker := time.NewTicker(contactEvery)
	defer ticker.Stop()
	lost := true // a server that is started looks for a successor of its cluster before it would stand for election
	for {
		if lost {
			n.rejoin(n.seek())
			n.move()
		} else {
			n.strangers.keep(nil)
			n.foreign.forget()
		}
		select {
		case <-n.ctx.Done():
			return
		case <-ticker.C:
		}
		_, leader := n.leaderWithID()
		lost = leader == "" || n.moved()
	}
}

// moved tells whether the group has another address of this server.
func (n *Node) moved() bool {
	m, ok := n.member(n.id.ServerID)
	return ok && m.Address != n.cfg.Stream.Addr()
}

// move tells the leader, if there is one, that this server has another address.
func (n *Node) move() {
	m, ok := n.member(n.id.ServerID)
	if _, leader := n.leaderWithID(); leader == "" || !ok || m.Address == n.cfg.Stream.Addr() {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timeouts.Call)
	defer cancel()
	if err := n.Apply(ctx, Change{Kind: MoveMember, ID: m.ID, Address: n.cfg.Stream.Addr()}); err != nil {
		n.cfg.Logger.Warn("the group does not have this server's new address yet", "old", m.Address, "new", n.cfg.Stream.Addr(), "err", err)
	}
}

// rejoin makes this server a member again that was dropped while it was away: see Dropped. It is
// told by a server at the address, which has a leader and does not know it; the leader decides.
func (n *Node) rejoin(addr string) {
	if _, was := n.member(n.id.ServerID); addr == "" || !was {
		return // who has never been a member joins when its program says so
	}
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timeouts.Call)
	defer cancel()
	err := n.joinBy(ctx, addr)
	var refused *peer.RefusedError
	switch {
	case err == nil:
		n.cfg.Logger.Warn("another server has a leader and does not know this one as a member, as after a long absence: it has joined again", "by", addr)
	case errors.As(err, &refused) && n.refusal != refused.Reason:
		n.refusal = refused.Reason
		n.cfg.Logger.Error("this server is no member any more, as after a long absence, and is not let in again", "by", addr, "err", err)
	}
}

// seek says hello at all addresses at which a member may be, and at those of which it hears by
// that. It returns the address of one that has a leader, and for which this server is neither a
// member nor one that was removed.
func (n *Node) seek() (outsideOf string) {
	asked := map[string]bool{n.cfg.Stream.Addr(): true}
	next := n.candidates()
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
				answer, err := n.sayHello(addr)
				if err != nil {
					n.noteUnfriendly(addr, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for _, addr := range answer.Known {
					heard[addr] = true
				}
				if _, is := answer.Known[n.id.ServerID]; !is && answer.Leader != "" && answer.Removed == nil {
					outsideOf = addr
				}
			})
		}
		asking.Wait()
		next = slices.Sorted(maps.Keys(heard))
	}
	return outsideOf
}

func (n *Node) candidates() []string {
	var addrs []string
	for _, m := range n.others() {
		addrs = append(addrs, m.Address, n.book.of(m.ID, m.Address))
	}
	if n.cfg.Peers != nil {
		addrs = append(addrs, n.cfg.Peers()...)
	}
	return addrs
}

// noteUnfriendly tells the operator of a server of another cluster where one of this was expected.
// One of a successor supersedes this server, which says so.
func (n *Node) noteUnfriendly(addr string, err error) {
	var stranger *StrangerError
	if errors.As(err, &stranger) && stranger.Cluster != "" && stranger.Succession == nil {
		if n.foreign.note(addr, stranger.Cluster, time.Now()) {
			n.cfg.Logger.Warn("a server of another cluster is where one of this was expected; if that one took the place of this server's cluster, "+
				n.cfg.JoinAgain, "address", addr, "its", stranger.Cluster, "this", n.id.ClusterID)
		}
		return
	}
	n.cfg.Logger.Debug("nobody of this cluster was found", "address", addr, "err", err)
}

// noteEnd tells why a connection from another server has ended. A server of another cluster tries
// again every two seconds, until a person acts.
func (n *Node) noteEnd(from net.Addr, err error) {
	var stranger *StrangerError
	host, _, splitErr := net.SplitHostPort(from.String())
	if errors.As(err, &stranger) && stranger.Cluster != "" && splitErr == nil {
		if !n.knockers.note(host, stranger.Cluster, time.Now()) {
			return
		}
		if n.succeeded(stranger.Cluster) != nil {
			n.cfg.Logger.Warn("an old server ran, of a cluster in whose place this one goes on: it was told, and stops; "+n.cfg.JoinAgain,
				"from", from, "its", stranger.Cluster, "this", n.id.ClusterID)
			return
		}
	}
	n.cfg.Logger.Info("a connection of another server has ended", "from", from, "err", err)
}

// foreignAgain is how often it is said that a server of another cluster was met. It stays true
// until a person acts.
const foreignAgain = 10 * time.Minute

// foreigners are servers of other clusters that were met.
type foreigners struct {
	mu  sync.Mutex
	met map[string]foreigner // by where they are
}

type foreigner struct {
	cluster string
	told    time.Time
}

// note takes one down and returns whether it is to be told.
func (f *foreigners) note(addr, cluster string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, ok := f.met[addr]; ok && was.cluster == cluster && now.Sub(was.told) < foreignAgain {
		return false
	}
	if f.met == nil {
		f.met = make(map[string]foreigner)
	}
	f.met[addr] = foreigner{cluster, now}
	return true
}

// forget is for when this server is in touch with its own cluster again.
func (f *foreigners) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.met = nil
}

// clusters returns where which other clusters were met.
func (f *foreigners) clusters() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	clusters := make(map[string]string, len(f.met))
	for addr, m := range f.met {
		clusters[addr] = m.cluster
	}
	return clusters
}

// sayHello asks whoever is at the address who it is.
func (n *Node) sayHello(addr string) (hello, error) {
	var answer hello
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.Timeouts.Call)
	defer cancel()
	data, err := n.tellTo(ctx, n.strangers.to(addr), peer.CallHello, hello{ID: n.id.ServerID, Address: n.cfg.Stream.Addr(), Known: n.known()})
	if err == nil {
		err = json.Unmarshal(data, &answer)
	}
	if err != nil {
		return answer, err
	}
	if answer.ID == n.id.ServerID {
		n.cfg.Logger.Error("another process runs with a copy of this server's directory: stop one of them at once and remove its copy", "here", n.cfg.Stream.Addr(), "there", addr)
		return answer, nil
	}
	if answer.Removed != nil {
		n.expelled(*answer.Removed)
	}
	n.learn(answer.ID, addr) // where it was reached, whatever it thinks
	return answer, nil
}

// handleHello answers a server that looks for others.
func (n *Node) handleHello(payload []byte) (byte, []byte) {
	var h hello
	if err := json.Unmarshal(payload, &h); err != nil {
		return peer.AnswerRefused, []byte(err.Error())
	}
	if h.Address != "" && h.ID != n.id.ServerID {
		n.learn(h.ID, h.Address)
	}
	_, leader := n.leaderWithID()
	answer := hello{ID: n.id.ServerID, Address: n.cfg.Stream.Addr(), Known: n.known(), Leader: string(leader)}
	if s := n.standing(h.ID); s.State == group.Removed {
		answer.Removed = new(s.Removal())
	}
	data, err := json.Marshal(answer)
	if err != nil {
		return peer.Refuse(err)
	}
	return peer.AnswerOK, data
}

// learn takes note of where a member is.
func (n *Node) learn(id, addr string) {
	if m, ok := n.member(id); ok && n.book.learn(id, addr, m.Address) && addr != m.Address {
		n.cfg.Logger.Info("a server has another address than the group has for it", "server", id, "is", addr, "was", m.Address)
	}
}

// known is where the members are, as far as this server knows.
func (n *Node) known() map[string]string {
	known := make(map[string]string)
	for _, m := range n.Members() {
		known[m.ID] = n.book.of(m.ID, m.Address)
	}
	known[n.id.ServerID] = n.cfg.Stream.Addr()
	return known
}
