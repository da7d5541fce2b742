package gossip

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// Pool implements all of memberlist's delegates. memberlist calls them with its locks held: they
// must not block or call it back.

// NotifyAlive implements memberlist.AliveDelegate: it decides which members are believed.
func (p *Pool) NotifyAlive(node *memberlist.Node) error {
	holder, facts, err := p.prove(node)
	if err == nil {
		if why := p.barred(holder); why != nil {
			// It tries again every few seconds, for as long as it runs.
			p.config.Logger.Debug("gossip member is barred", "member", node.Name, "address", addrOf(node), "reason",
				why)
			return why
		}
	}
	if err != nil {
		p.config.Logger.Warn("gossip member not believed", "member", node.Name, "address", addrOf(node), "reason", err)
	} else if facts.Leaving {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hearLate(node, holder, facts)
	}
	return err
}

// barred returns the reason why a proven member is not believed. A member that is barred itself
// still sees the others.
func (p *Pool) barred(holder pki.Credential) error {
	if p.config.Barred == nil || holder.Name == p.config.Name {
		return nil
	}
	return p.config.Barred(holder)
}

// lateGoodbye is the time between a good-bye and a death in which they belong together, in either
// order. Gossip takes some seconds to spread. A later good-bye may be of an earlier departure.
const lateGoodbye = 30 * time.Second

// hearLate takes a good-bye that arrives after the death: both spread independently, and memberlist
// ignores messages of a dead member. The departure counts from the time of the death. The caller
// holds mu.
func (p *Pool) hearLate(node *memberlist.Node, holder pki.Credential, facts Facts) {
	if was, ok := p.members[node.Name]; ok && was.State == Dead && p.config.Now().Sub(was.Since) < lateGoodbye {
		p.record(node, Left, holder, facts)
		m := p.members[node.Name]
		m.Since = was.Since
		p.members[node.Name] = m
	}
}

// NotifyMerge implements memberlist.MergeDelegate. An expired credential does not stop a merge:
// NotifyAlive skips its member, and the others must still learn of each other.
func (p *Pool) NotifyMerge(peers []*memberlist.Node) error {
	for _, peer := range peers {
		if peer.State != memberlist.StateAlive {
			continue // dead members may be remembered without metadata, or with a credential of a CA that is gone
		}
		if _, _, err := p.prove(peer); err != nil && !errors.Is(err, pki.ErrCredentialEnded) {
			return fmt.Errorf("gossip merge refused: %w", err)
		}
	}
	return nil
}

// NotifyConflict implements memberlist.ConflictDelegate: two machines use one name.
func (p *Pool) NotifyConflict(existing, other *memberlist.Node) {
	p.config.Logger.Error("two machines use the same node name; stop one of them", "name", existing.Name, "first",
		addrOf(existing), "second", addrOf(other))
}

// NotifyJoin implements memberlist.EventDelegate.
func (p *Pool) NotifyJoin(node *memberlist.Node) { p.set(node, true) }

// NotifyUpdate implements memberlist.EventDelegate.
func (p *Pool) NotifyUpdate(node *memberlist.Node) { p.set(node, true) }

// NotifyLeave implements memberlist.EventDelegate.
func (p *Pool) NotifyLeave(node *memberlist.Node) { p.set(node, false) }

// NotifyPingComplete implements memberlist.PingDelegate: a member has answered a probe directly.
func (p *Pool) NotifyPingComplete(other *memberlist.Node, rtt time.Duration, _ []byte) {
	p.hear(other.Name, rtt)
}

// AckPayload implements memberlist.PingDelegate.
func (p *Pool) AckPayload() []byte { return nil }

// NodeMeta implements memberlist.Delegate.
func (p *Pool) NodeMeta(int) []byte {
	meta, err := p.metadata()
	if err != nil { // New has tried it with all facts, so only a renewed credential could have grown
		p.config.Logger.Error("gossip metadata cannot be sent", "err", err)
		return nil
	}
	return meta
}

// GetBroadcasts implements memberlist.Delegate.
func (p *Pool) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (p *Pool) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (p *Pool) MergeRemoteState([]byte, bool) {}
