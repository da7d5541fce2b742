package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
	"github.com/barque/barque/raftstore/transport"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// barredConn is a connection of a peer that the transport bars.
type barredConn struct {
	net.Conn
	err error
}

func (c *barredConn) Barred() error { return c.err }

// laterConn is a connection of a peer that the transport bars once the reason is known.
type laterConn struct {
	net.Conn
	why atomic.Pointer[error]
}

func (c *laterConn) Barred() error {
	if why := c.why.Load(); why != nil {
		return *why
	}
	return nil
}

// site is a server of two members, of which s3 was removed.
type site struct{ Server }

func (site) Members() []group.Member {
	return []group.Member{{ID: "s1-x", Name: "s1", Address: "s1"}, {ID: "s2-y", Name: "s2", Address: "s2"}}
}
func (site) Leader() string { return "s2-y" }
func (site) RemovalOf(id string) *group.Removal {
	if id == "s3-z" {
		return &group.Removal{Name: "s3", Why: "an operator removed it"}
	}
	return nil
}

// TestCallsOfOthersThanMembers: a removed server learns of its removal, and a stranger may ask to
// become a member. Neither gets an answer to any other call.
func TestCallsOfOthersThanMembers(t *testing.T) {
	p := New(
		Options{Self: self, Name: "s1", Stream: new(memnet.Network).Host("s1"), Logger: slog.New(slog.DiscardHandler)},
		site{})
	t.Cleanup(p.Close)
	reached := map[byte]bool{}
	handler := rpc.Handler{
		Answer: func(_ context.Context, kind byte, _ []byte) (byte, []byte) {
			reached[kind] = true
			return AnswerOK, nil
		},
		AtOnce: func(kind byte, _ []byte) (byte, []byte, bool) {
			reached[kind] = true
			return AnswerOK, nil, true
		},
	}
	removed, stranger := errors.New("it was removed"), fmt.Errorf("s9: %w", transport.ErrStranger)
	for _, c := range []struct {
		what    string
		barred  error
		kind    byte
		payload string
		answers bool
	}{
		{"a member proposes", nil, CallPropose, "", true},
		{"a removed server proposes", removed, CallPropose, "", false},
		{"a removed server reads", removed, CallRead, "", false},
		{"a removed server asks for the state", removed, CallState, "{}", false},
		{"a removed server asks to join", removed, CallMembers, `{"kind":"add","id":"s3-z"}`, false},
		{"a stranger proposes", stranger, CallPropose, "", false},
		{"a stranger asks for the term", stranger, CallTerm, "", false},
		{"a stranger asks to join", stranger, CallMembers, `{"kind":"add","id":"s9-z"}`, true},
		{"a stranger moves a member", stranger, CallMembers, `{"kind":"add","id":"s2-y"}`, false},
		{"a stranger removes a member", stranger, CallMembers, `{"kind":"remove","id":"s2-y"}`, false},
		{"a stranger says nonsense", stranger, CallMembers, `{`, false},
	} {
		clear(reached)
		guarded := p.guarded(&barredConn{err: c.barred}, handler)
		kind, _, ok := guarded.AtOnce(c.kind, []byte(c.payload))
		if !ok {
			kind, _ = guarded.Answer(t.Context(), c.kind, []byte(c.payload))
		}
		if reached[c.kind] != c.answers || (kind == AnswerOK) != c.answers {
			t.Errorf("%s: answer %d, reached %t", c.what, kind, reached[c.kind])
		}
	}
	clear(reached)
	kind, _ := p.guarded(&barredConn{err: fmt.Errorf("s2: %w", passingReason{})}, handler).Answer(t.Context(),
		CallPropose, nil)
	if kind != AnswerUnavailable || reached[CallPropose] {
		t.Errorf("a member without a new certificate yet: answer %d, reached %t", kind, reached[CallPropose])
	}
	for _, c := range []struct {
		what, id     string
		barred       error
		all, removal bool
	}{{"a removed server", "s3-z", removed, false, true}, {"a stranger", "s9-z", stranger, true, false}} {
		kind, data := p.guarded(&barredConn{err: c.barred}, handler).Answer(t.Context(), CallHello,
			fmt.Appendf(nil, `{"id":%q,"address":"somewhere"}`, c.id))
		var answer hello
		if err := json.Unmarshal(data, &answer); kind != AnswerOK || err != nil {
			t.Fatalf("%s: %d, %v", c.what, kind, err)
		}
		if (len(answer.Known) > 0) != c.all || (answer.Leader != "") != c.all || (answer.Removed != nil) != c.removal {
			t.Errorf("%s hears %+v", c.what, answer)
		}
	}
}

// TestRaftIsForMembers: the greeting turns a barred caller away, with the reason.
func TestRaftIsForMembers(t *testing.T) {
	for _, barred := range []error{errors.New("it was removed"), fmt.Errorf("s9: %w", transport.ErrStranger), nil} {
		here, there := net.Pipe()
		server := &checked{Conn: &barredConn{here, barred}, self: self, membersOnly: true}
		ended := make(chan error, 1)
		go func() {
			_, err := server.Read(make([]byte, 1))
			ended <- err
		}()
		err := beWelcome(there, "there", "cluster", "s1-x")
		var refused *BarredError
		if (barred == nil) != (err == nil) ||
			barred != nil && (!errors.As(err, &refused) || !strings.Contains(err.Error(), barred.Error())) {
			t.Errorf("barred because %v, told %v", barred, err)
		}
		there.Close()
		if err := <-ended; barred != nil && !errors.Is(err, barred) || barred == nil && !errors.Is(err, io.EOF) {
			t.Errorf("barred because %v, ended by %v", barred, err)
		}
	}
}

// TestRaftIsForMembersAtAnyTime: a peer that was welcome, because no leader was known yet, is not
// heard any more once it is a stranger, also with bytes that are on their way. The reader gets the
// reason, and the connection ends.
func TestRaftIsForMembersAtAnyTime(t *testing.T) {
	here, there := net.Pipe()
	conn := &laterConn{Conn: here}
	server := &checked{Conn: conn, self: self, membersOnly: true}
	got, ended := make(chan byte, 2), make(chan error, 1)
	go func() {
		for {
			p := make([]byte, 1)
			n, err := server.Read(p)
			if n > 0 {
				got <- p[0]
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	if err := beWelcome(there, "there", "cluster", "s1-x"); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Write([]byte("a")); err != nil || <-got != 'a' {
		t.Fatalf("a member is not heard: %v", err)
	}
	stranger := fmt.Errorf("s9: %w", transport.ErrStranger)
	conn.why.Store(&stranger)
	there.SetDeadline(time.Now().Add(await.Hang))
	_, _ = there.Write([]byte("b"))
	select {
	case heard := <-got:
		t.Fatalf("a stranger is heard: %q", heard)
	case err := <-ended:
		if !errors.Is(err, transport.ErrStranger) {
			t.Errorf("the reader of a stranger's connection gets %v", err)
		}
	}
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection of a stranger: %v", err)
	}
}

// countedConn counts how often it is asked whether its peer is barred.
type countedConn struct {
	net.Conn
	asked atomic.Int32
}

func (c *countedConn) Barred() error {
	c.asked.Add(1)
	return nil
}

// TestWhoIsBarredIsAskedWhereItCounts: the certificate of a barred peer is judged at each question.
// Only connections for members are refused by the answer as they are read.
func TestWhoIsBarredIsAskedWhereItCounts(t *testing.T) {
	for _, membersOnly := range []bool{true, false} {
		here, there := net.Pipe()
		conn := &countedConn{Conn: here}
		server := &checked{Conn: conn, self: self, membersOnly: membersOnly}
		ended := make(chan error, 1)
		go func() {
			_, err := server.Read(make([]byte, 1))
			ended <- err
		}()
		if err := beWelcome(there, "there", "cluster", "s1-x"); err != nil {
			t.Fatal(err)
		}
		if _, err := there.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		there.Close()
		if asked := conn.asked.Load(); (asked > 0) != membersOnly {
			t.Errorf("for members only %t: asked %d times", membersOnly, asked)
		}
	}
}

// passingReason is that of a member whose certificate does not count for a moment.
type passingReason struct{}

func (passingReason) Error() string { return "the CA is exchanged" }

func (passingReason) Passing() bool { return true }
