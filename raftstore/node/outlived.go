package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

// What a server makes of the word that its cluster was recovered without it, and goes on as another one:
//
//	                                ┌─ it leads, or did until just now, since before the recovery ─▶ disowned
//	told ──by a server of the CA──▶ ├─ it follows a leader, or another member does ─▶ for the leader to judge
//	                                └─ else ─▶ outlived, for good
//
// Outlived it gives no vote and asks for none, takes and sends no entries, and serves nothing; its directory is marked,
// so that a restart changes nothing; and the program is told, and closes it.
//
// A cluster that was never without a leader has lost no quorum. Somebody has recovered a server of its minority
// then, and it is that one which must not go on: the leader writes down that its cluster is no heir, for all members to
// know at their next election. Both sides say loudly what is wrong.
//
// A server asks all members as soon as it is opened, which is before it would stand for election, so as to hear of it before
// it has a majority. It is told again with every connection that it tries.

// claim is somebody's word that the cluster of this server was recovered.
type claim struct {
	Succession
	from string // address
}

// heirs is what a server knows of those who call themselves heirs of its cluster.
type heirs struct {
	claims   chan claim // holds one that is to be judged
	outlived atomic.Pointer[Succession]
	rival    atomic.Pointer[Rival]
}

// Rival is a server of a cluster that was recovered from this one while this one was well.
type Rival struct {
	Succession
	Address string    `json:"address"`
	Heard   time.Time `json:"heard"`
}

// rivalShown is for how long a rival is told of that was not met again.
const rivalShown = time.Minute

// heed looks for such a word in the error of a connection that did not come about. It does not block.
func (n *Node) heed(err error) {
	var stranger *StrangerError
	if !errors.As(err, &stranger) || stranger.Succession == nil || stranger.Succession.Cluster != n.id.ClusterID {
		return
	}
	select {
	case n.heirs.claims <- claim{*stranger.Succession, stranger.Address}:
	default: // one is being judged, and this one comes again
	}
}

// judgeClaims ends with the node, or when this server is outlived.
func (n *Node) judgeClaims() {
	for {
		select {
		case c := <-n.heirs.claims:
			if n.judge(c) {
				return
			}
		case <-n.ctx.Done():
			return
		}
	}
}

// judge returns whether this server is outlived.
func (n *Node) judge(c claim) bool {
	if n.disowned(c.Heir) {
		n.meetRival(c)
		return false
	}
	since := n.followed.inTouchSince()
	wasWell := !since.IsZero() && since.Before(c.At)
	leads := n.leadership.term() != 0
	switch _, leader := n.raft.LeaderWithID(); {
	case leads && wasWell:
		if err := n.disown(c.Succession); err != nil { // it is tried again when the other one is met again
			n.cfg.Logger.Warn("cannot write down that another cluster is not the heir of this one", "its", c.Heir, "err", err)
		}
		n.meetRival(c)
		return false
	case !leads && (leader != "" || wasWell || n.othersFollow()):
		return false
	}
	n.outlive(c)
	return true
}

// meetRival tells of a cluster that was recovered from this one while this one was well.
func (n *Node) meetRival(c claim) {
	n.heirs.rival.Store(&Rival{c.Succession, c.from, time.Now()})
	if n.foreign.note(c.from, c.Heir, time.Now()) {
		n.cfg.Logger.Error("a server was recovered as a cluster of its own while this cluster has a quorum: it is no heir of this one; stop it, and then "+n.cfg.JoinAgain,
			"server", c.By, "address", c.from, "its", c.Heir, "this", n.id.ClusterID, "recovered", c.At)
	}
}

// currentRival returns the rival that was met of late, or nil.
func (n *Node) currentRival() *Rival {
	if r := n.heirs.rival.Load(); r != nil && time.Since(r.Heard) < rivalShown {
		return r
	}
	return nil
}

// othersFollow asks the other members whether they know of a leader. One who does lives in a group that has a quorum without
// this server, which is for the leader to give up.
func (n *Node) othersFollow() bool {
	ctx, cancel := context.WithTimeout(n.ctx, min(n.cfg.Timeouts.Call, n.cfg.Timeouts.Heartbeat/2))
	defer cancel()
	var asking sync.WaitGroup
	var follows atomic.Bool
	for _, m := range n.others() {
		asking.Go(func() {
			var answer hello
			data, err := n.tell(ctx, m, callHello, hello{})
			if err == nil && json.Unmarshal(data, &answer) == nil && answer.Leader != "" && answer.Leader != n.id.ServerID {
				follows.Store(true)
				cancel() // the others need not be waited for
			}
		})
	}
	asking.Wait()
	return follows.Load()
}

// outlive takes this server out of service, for good.
func (n *Node) outlive(c claim) {
	e := &OutlivedError{Dir: n.cfg.Dir, Succession: c.Succession}
	n.heirs.outlived.Store(&e.Succession)
	n.stream.cut() // no vote, no entry, no heartbeat from here on
	n.quarantine.begin(e.Error())
	n.withdraw()
	n.cfg.Logger.Error("this server's cluster was recovered without it: it serves nothing any more, and stops; "+n.cfg.JoinAgain,
		"server", n.id.ServerID, "cluster", c.Cluster, "goesOnAs", c.Heir, "recovered", c.At, "by", c.By, "toldBy", c.from)
	if !n.cfg.InMemory {
		if err := writeJSON(filepath.Join(n.cfg.Dir, outlivedFile), c.Succession); err != nil { // it is told again at the next start
			n.cfg.Logger.Error("cannot mark the directory of a server whose cluster was recovered without it: do not start it again as it is", "err", err)
		}
	}
	if n.cfg.OnOutlived != nil {
		n.cfg.OnOutlived(c.Succession)
	}
}

// whyOutlived returns an ErrUnavailable when this server's cluster was recovered without it.
func (n *Node) whyOutlived() error {
	if s := n.heirs.outlived.Load(); s != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, &OutlivedError{Dir: n.cfg.Dir, Succession: *s})
	}
	return nil
}
