package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/barque/barque/raftstore/rpc"
	"github.com/barque/barque/raftstore/transport"
)

// barredBy returns the reason why the transport bars the peer of an accepted connection, or nil. It
// is asked again and again: a server may be removed while it is connected.
func barredBy(conn net.Conn) error {
	if c, ok := conn.(interface{ Barred() error }); ok {
		return c.Barred()
	}
	return nil
}

// callerKey is the key in a context of the caller's name.
type callerKey struct{}

// Caller returns the name in the certificate of the server whose call is answered; false where the
// transport knows none.
func Caller(ctx context.Context) (name string, known bool) {
	name, known = ctx.Value(callerKey{}).(string)
	return name, known
}

// withCaller adds the peer of a connection to a context.
func withCaller(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(interface{ PeerName() string }); ok {
		return context.WithValue(ctx, callerKey{}, c.PeerName())
	}
	return ctx
}

// guarded is the handler for one connection. A server that was removed says hello, by which it
// learns of its removal. A stranger asks to become a member, too. All other calls are for members.
func (p *Peers) guarded(conn net.Conn, handler rpc.Handler) rpc.Handler {
	answer, atOnce := handler.Answer, handler.AtOnce
	handler.Answer = func(ctx context.Context, kind byte, payload []byte) (byte, []byte) {
		var reason interface{ Passing() bool }
		switch err := barredBy(conn); {
		case err == nil:
			return answer(withCaller(ctx, conn), kind, payload)
		case kind == CallHello:
			return p.handleHello(payload, errors.Is(err, transport.ErrStranger))
		case kind == CallMembers && errors.Is(err, transport.ErrStranger) && p.asksToJoin(payload):
			return answer(ctx, kind, payload)
		case errors.As(err, &reason) && reason.Passing(): // the caller repeats it on its next connection
			return AnswerUnavailable, fmt.Appendf(nil, "this call is for members: %v", err)
		default:
			return AnswerRefused, fmt.Appendf(nil, "this call is for members: %v", err)
		}
	}
	handler.AtOnce = func(kind byte, payload []byte) (byte, []byte, bool) {
		if barredBy(conn) != nil {
			return 0, nil, false // Answer refuses it
		}
		return atOnce(kind, payload)
	}
	return handler
}

// asksToJoin reports whether a call for a change of the members adds one. The same change would
// move a member, which is not a stranger's to do. Package autopilot has the whole of it.
func (p *Peers) asksToJoin(payload []byte) bool {
	var change struct {
		Kind string `json:"kind"`
		ID   string `json:"id"`
	}
	if json.Unmarshal(payload, &change) != nil || change.Kind != JoinKind {
		return false
	}
	_, known := p.member(change.ID)
	return !known
}

// JoinKind is the kind of the change that adds a member.
const JoinKind = "add"
