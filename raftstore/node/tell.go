package node

import (
	"context"
	"encoding/json"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/rpc"
)

// tell sends something in JSON to a member and returns the answer.
func (n *Node) tell(ctx context.Context, m group.Member, kind byte, what any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.Call)
	defer cancel()
	return n.tellTo(ctx, n.peers.to(n.dial(m)), kind, what)
}

func (n *Node) tellTo(ctx context.Context, c *rpc.Client, kind byte, what any) ([]byte, error) {
	payload, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	f, err := c.Call(ctx, kind, payload)
	if err != nil {
		return nil, err
	}
	if f.Kind != peer.AnswerOK {
		return nil, peer.AnswerError(f)
	}
	return f.Payload, nil
}
