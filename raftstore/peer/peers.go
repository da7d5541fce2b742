package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
	"github.com/barque/barque/raftstore/transport"
)

// Options of Peers. All but Known are needed.
type Options struct {
	Self Identity
	// Name of this server, for people.
	Name        string
	Stream      transport.Stream
	CallTimeout time.Duration
	// Known returns addresses at which other servers may be, beside those of the members.
	Known func() []string
	// JoinAgain is the advice for operators how a server joins again as a new one.
	JoinAgain string
	Logger    *slog.Logger
}

// Server is the Peers' view of the server.
type Server interface {
	Members() []group.Member
	// Leader is the ID of the leader that this server follows, or is; empty while it knows of none.
	Leader() string
	// Succeeded returns how this server's cluster became the successor of another one; nil where it
	// is not.
	Succeeded(cluster string) *group.Succession
	// RemovalOf returns the removal of a server for good; nil where there was none.
	RemovalOf(id string) *group.Removal

	// Refused takes the reason why a connection did not come about, and Removed the removal of this
	// server. Neither blocks.
	Refused(err error)
	Removed(r group.Removal)
	// Move gives this server its new address in the configuration of the group, and JoinBy makes it
	// a member by the server at an address.
	Move(ctx context.Context, addr string) error
	JoinBy(ctx context.Context, addr string) error
}

// Peers are the other servers, and the ways to them.
type Peers struct {
	opts   Options
	server Server

	addresses *addressCache
	members   *clients
	unknown   *clients      // of which only the address is known
	foreign   otherClusters // of other clusters, met where one of this cluster was expected
	callers   otherClusters // that connected to this server, by their host and cluster
	refusal   string        // the last reason why this server, which was dropped, is not let in again; KeepContact's
}

// New returns the ways to the other servers. They are closed with Close.
func New(opts Options, server Server) *Peers {
	p := &Peers{opts: opts, server: server, addresses: newAddressCache()}
	p.members, p.unknown = newClients(p), newClients(p)
	return p
}

// Close closes all links. Wait waits until their goroutines have ended.
func (p *Peers) Close() {
	p.members.close()
	p.unknown.close()
}

// Wait is for after Close.
func (p *Peers) Wait() {
	p.members.running.Wait()
	p.unknown.running.Wait()
}

// Dial opens a connection to a destination.
func (p *Peers) Dial(ctx context.Context, dest, protocol string) (net.Conn, error) {
	return greet(ctx, p.opts.Stream, dest, protocol, p.opts.Self)
}

// Accept returns an accepted connection, whose first Read reads the greeting.
func (p *Peers) Accept(conn net.Conn) net.Conn {
	return &checked{Conn: conn, self: p.opts.Self, succeeded: p.server.Succeeded}
}

// At returns the link to a destination, as Raft has it of the leader.
func (p *Peers) At(dest string) *rpc.Client { return p.members.to(dest) }

// To returns the link to a member.
func (p *Peers) To(m group.Member) *rpc.Client { return p.members.to(p.destination(m)) }

// destination returns how the member is to be connected to.
func (p *Peers) destination(m group.Member) string { return Destination(m.ID, p.AddressOf(m)) }

// AddressOf returns where a member is: its own word counts over the configuration.
func (p *Peers) AddressOf(m group.Member) string { return p.addresses.of(m.ID, m.Address) }

// Dialed returns the members with their destinations as addresses.
func (p *Peers) Dialed() []group.Member {
	members := p.server.Members()
	for i := range members {
		members[i].Address = p.destination(members[i])
	}
	return members
}

// Keep closes the links to servers that are members no more.
func (p *Peers) Keep() { p.members.keep(p.Dialed()) }

// Foreign has, by address, the other clusters to which servers belong that this one met where it
// expected its own.
func (p *Peers) Foreign() map[string]string { return p.foreign.clusters() }

// Tell sends a message in JSON to a member and returns the answer.
func (p *Peers) Tell(ctx context.Context, m group.Member, kind byte, message any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.CallTimeout)
	defer cancel()
	return tell(ctx, p.To(m), kind, message)
}

// TellAt sends a message in JSON to a destination and returns the answer.
func (p *Peers) TellAt(ctx context.Context, dest string, kind byte, message any) ([]byte, error) {
	return tell(ctx, p.At(dest), kind, message)
}

// TellUnknown sends a message in JSON to the server at an address and returns the answer.
func (p *Peers) TellUnknown(ctx context.Context, addr string, kind byte, message any) ([]byte, error) {
	return tell(ctx, p.unknown.to(addr), kind, message)
}

// Ping exchanges a word with a member, over a connection that this server has opened.
func (p *Peers) Ping(ctx context.Context, id string) error {
	m, ok := p.member(id)
	if !ok {
		return fmt.Errorf("%s does not know of it yet", p.opts.Name)
	}
	_, err := p.To(m).Call(ctx, CallPing, nil)
	return err
}

func (p *Peers) member(id string) (group.Member, bool) {
	return group.Find(p.server.Members(), id)
}

func tell(ctx context.Context, c *rpc.Client, kind byte, message any) ([]byte, error) {
	payload, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	f, err := c.Call(ctx, kind, payload)
	if err != nil {
		return nil, err
	}
	if f.Kind != AnswerOK {
		return nil, AnswerError(f)
	}
	return f.Payload, nil
}

// Serve answers calls of the other servers. It ends with ctx, and closes the listener.
func (p *Peers) Serve(ctx context.Context, l net.Listener, handler rpc.Handler) {
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { // ends with the connection, or with ctx
			err := rpc.Serve(ctx, p.Accept(conn), p.guarded(conn, handler))
			if ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				p.noteEnd(conn.RemoteAddr(), err)
			}
		})
	}
}
