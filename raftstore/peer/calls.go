package peer

import (
	"errors"
	"fmt"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/rpc"
)

// Kinds of requests and answers between servers. A number is never used for something else again.
const (
	CallPropose byte = 1        // a request, as command writes it
	CallRead    byte = 2        // a readindex.Ack
	CallStatus  byte = 3        // a statusQuestion, or nothing
	CallMembers byte = 4        // an autopilot.Change in JSON
	CallPing         = rpc.Ping // nothing; answered at once
	CallTerm    byte = 6        // nothing; answered with the term that the server is in
	CallState   byte = 7        // a stateQuestion in JSON; answered with a stateAnswer
	CallIsolate byte = 8        // a verdict in JSON
	CallHello   byte = 9        // a hello in JSON; answered with one
	CallReach   byte = 10       // a reach in JSON
	CallLost    byte = 11       // a question in JSON; answered with an election.Answer
	// 12 had the reason of a handover.
	CallSendState byte = 13 // the ID of a server in quarantine, in JSON
	// CallEarlier has the term of a new leader. It is answered with the nanoseconds since the
	// server last answered a CallTerm in an earlier one.
	CallEarlier byte = 14

	AnswerOK          byte = 128
	AnswerUnavailable byte = 129 // a text
	answerUnknown     byte = 130 // a text
	answerOverloaded  byte = 131 // nothing
	AnswerRefused     byte = 132 // a text
	answerTooLarge    byte = 133 // a text
	answerInvalid     byte = 134 // a text
	answerDiskFull    byte = 135 // nothing
)

// RefusedError is returned for a change of members that the leader will not make.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// Refusedf returns a RefusedError.
func Refusedf(format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// ErrLeaderChanged is why a call to a leader is given up: it may never answer, as when it was cut
// off, and another one can be asked.
var ErrLeaderChanged = errors.New("another server leads now")

// CallError returns the error that the failure of a call to the leader means; sent is the error
// when the request may have arrived.
func CallError(err, sent error) error {
	switch {
	case errors.Is(err, rpc.ErrTooLarge):
		return fmt.Errorf("%w: %w", kv.ErrTooLarge, err)
	case errors.Is(err, rpc.ErrNotSent):
		return fmt.Errorf("%w: cannot reach the leader: %w", kv.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: lost the leader: %w", sent, err)
}

// AnswerError translates an answer that is not AnswerOK.
func AnswerError(f rpc.Frame) error {
	switch f.Kind {
	case AnswerUnavailable:
		return fmt.Errorf("%w: %s", kv.ErrUnavailable, f.Payload)
	case answerOverloaded:
		return kv.ErrOverloaded
	case answerDiskFull:
		return group.ErrDiskStuck
	case AnswerRefused:
		return &RefusedError{Reason: string(f.Payload)}
	case answerTooLarge:
		return fmt.Errorf("%w: as the leader sees it: %s", kv.ErrTooLarge, f.Payload)
	case answerInvalid:
		return fmt.Errorf("%w: as the leader sees it: %s", kv.ErrInvalid, f.Payload)
	}
	return fmt.Errorf("%w: %s", kv.ErrUnknownOutcome, f.Payload)
}

// Refuse is the way back of AnswerError.
func Refuse(err error) (byte, []byte) {
	var refused *RefusedError
	switch {
	case errors.As(err, &refused):
		return AnswerRefused, []byte(refused.Reason)
	case errors.Is(err, kv.ErrUnknownOutcome): // before ErrClosed, which may be why it is not known
		return answerUnknown, []byte(err.Error())
	case errors.Is(err, kv.ErrOverloaded):
		return answerOverloaded, nil
	case errors.Is(err, kv.ErrDiskFull):
		return answerDiskFull, nil
	case errors.Is(err, kv.ErrTooLarge):
		return answerTooLarge, []byte(err.Error())
	case errors.Is(err, kv.ErrInvalid):
		return answerInvalid, []byte(err.Error())
	case errors.Is(err, kv.ErrUnavailable), errors.Is(err, kv.ErrClosed):
		return AnswerUnavailable, []byte(err.Error())
	}
	return answerUnknown, []byte(err.Error())
}

// Urgent reports whether a call is sent at once: writes come in numbers, and are better sent
// together; one question for a read stands for many readers.
func Urgent(kind byte) bool { return kind == CallTerm || kind == CallRead || kind == CallEarlier }
