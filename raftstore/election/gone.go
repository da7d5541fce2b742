package election

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// Is the leader's process gone? A follower stays connected with its leader. When the leader's
// process dies, the kernel breaks the connection and refuses new ones, long before the heartbeats
// have been missing for so long that Raft gives the leader up:
//
//	connected ──the connection breaks──▶ in doubt ──the address refuses, for a quorum too──▶ gone
//	    ▲                                   │
//	    └────────a connection comes about───┘
//
// A live leader is deposed only if its port is closed and its connections are broken to a quorum,
// itself not counted. That happens once: a server suspects only a leader with which it has been
// connected.

const (
	// gonePause lies between the first two attempts to find out whether a leader is gone. Each
	// pause is a tenth longer than the one before, up to goneSettled: it may live, as others hear.
	gonePause   = 10 * time.Millisecond
	goneSettled = time.Second
)

// attend stays connected with the leader, and asks the question when the connection breaks and the
// address refuses. It ends with ctx, which ends when another leader is known.
func (e *Elector) attend(ctx context.Context, leader raft.Server) {
	connected := false
	e.refusing.Store(raft.ServerID(""))
	for pause := gonePause; ctx.Err() == nil; pause = min(pause+pause/10, goneSettled) {
		link, err := e.peers.At(string(leader.Address)).Connect(ctx)
		switch {
		case err == nil:
			connected, pause = true, gonePause
			e.refusing.Store(raft.ServerID(""))
			select {
			case <-link.Done():
			case <-ctx.Done():
			}
			continue
		case connected && errors.Is(err, syscall.ECONNREFUSED):
			e.refusing.Store(leader.ID)
			e.campaignFor(ctx, question{Leader: leader.ID, Why: gone})
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}
