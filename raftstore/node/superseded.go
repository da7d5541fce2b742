package node

import (
	"errors"
	"fmt"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// Predecessors returns the clusters in whose place this one goes on, as far as this server knows.
func (n *Node) Predecessors() []group.Succession { return group.Predecessors(n.state.Latest()) }

// Succeed returns what writes down that this cluster goes on in place of another one.
func (n *Node) Succeed(cluster string) (kv.Op, error) {
	return group.Succession{Cluster: cluster, Successor: n.id.ClusterID, By: n.id.ServerID, At: n.cfg.Now().UTC()}.Op()
}

// heed looks for a succession in the error of a connection that did not come about. It does not
// block.
func (n *Node) heed(err error) {
	var stranger *peer.StrangerError
	if !errors.As(err, &stranger) || stranger.Succession == nil {
		return
	}
	select {
	case n.successions <- *stranger.Succession:
	default: // one is enough
	}
}

// awaitSuccessor ends with the node, or when this server is superseded.
func (n *Node) awaitSuccessor() {
	select {
	case s := <-n.successions:
		n.supersede(s)
	case <-n.ctx.Done():
	}
}

// supersede takes this server out of service, for good.
func (n *Node) supersede(s group.Succession) {
	e := &group.SupersededError{Dir: n.cfg.Dir, Succession: s}
	n.superseded.Store(&e.Succession)
	n.raft.stream.Cut() // no vote, no entry, no heartbeat from here on
	n.guard.Begin(e.Error())
	n.cfg.Logger.Error("another cluster goes on in place of this server's: this server serves nothing any more, and stops; "+n.cfg.JoinAgain,
		"server", n.id.ServerID, "cluster", s.Cluster, "goesOnAs", s.Successor, "since", s.At, "by", s.By)
	if !n.cfg.InMemory {
		if err := disk.MarkSuperseded(n.cfg.Dir, s); err != nil { // it is told again at the next start
			n.cfg.Logger.Error("cannot mark the directory of a superseded server: do not start it again as it is", "err", err)
		}
	}
	if n.cfg.OnSuperseded != nil {
		n.cfg.OnSuperseded(s)
	}
}

// whySuperseded returns an ErrUnavailable when this server is superseded.
func (n *Node) whySuperseded() error {
	if s := n.superseded.Load(); s != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, &group.SupersededError{Dir: n.cfg.Dir, Succession: *s})
	}
	return nil
}
