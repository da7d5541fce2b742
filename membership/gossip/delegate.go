package gossip

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// Pool is all of memberlist's delegates. They are called with its locks held: none may call it back
// or block.

// NotifyAlive implements memberlist.AliveDelegate: it decides which members are believed.
func (p *Pool) NotifyAlive(node *memberlist.Node) error {
	holder, facts, err := p.prove(node)
	if err != nil {
		p.config.Logger.Warn("gossip member not believed", "member", node.Name, "address", addrOf(node), "reason", err)
	} else if facts.Leaving {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hearLate(node, holder, facts)
	}
	return err
}

// lateGoodbye is for how long a good-bye and a death belong together, whichever comes first. Gossip
// takes some seconds to reach everybody; what is told much later may be of another time that the
// member left.
const lateGoodbye = 30 * time.Second

// hearLate takes a good-bye that comes after the death: they travel by themselves, and memberlist
// has no use for what a member said before it died. It went when it was seen dead. The caller holds
// mu.
func (p *Pool) hearLate(node *memberlist.Node, holder pki.Credential, facts Facts) {
	if was, ok := p.members[node.Name]; ok && was.State == Dead && p.config.Now().Sub(was.Since) < lateGoodbye {
		p.record(node, Left, holder, facts)
		m := p.members[node.Name]
		m.Since = was.Since
		p.members[node.Name] = m
	}
}

// NotifyMerge implements memberlist.MergeDelegate. An ended credential does not stop a merge: the
// member that has it is left out by NotifyAlive, and the others must go on hearing of each other.
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
	p.config.Logger.Error("two machines use the same node name; stop one of them", "name", existing.Name, "first", addrOf(existing), "second", addrOf(other))
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
