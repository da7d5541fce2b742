package election

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/raftfix"
	"github.com/barque/barque/raftstore/rpc"
	"github.com/barque/barque/raftstore/status"
)

// Options of an Elector. All are needed.
type Options struct {
	ID       raft.ServerID
	Name     string // of this server, for people
	Timeouts group.Timeouts
	Stats    *status.Metrics
	Logger   *slog.Logger
}

// Raft is an Elector's view of Raft. It is a *raft.Raft.
type Raft interface {
	State() raft.RaftState
	CurrentTerm() uint64
	LastIndex() uint64
	LastContact() time.Time
	LeaderWithID() (raft.ServerAddress, raft.ServerID)
	Reload(change func(*raft.ReloadableConfig)) error
	RegisterObserver(*raft.Observer)
	DeregisterObserver(*raft.Observer)
}

// Peers are the links to the other servers.
type Peers interface {
	At(dest string) *rpc.Client
	// Tell sends a message in JSON to a member and returns the answer.
	Tell(ctx context.Context, m group.Member, kind byte, message any) ([]byte, error)
}

// Server is an Elector's view of the server.
type Server interface {
	Members() []group.Member
	// MayLead reports whether nothing but the members' votes is in the way of this server's
	// leadership, and DiskHangs whether a write to its log hangs.
	MayLead() bool
	DiskHangs() bool
	// Writing reports whether a write to the log is under way, and TermAt the term of its
	// newest entry.
	Writing() bool
	TermAt(newest uint64) uint64
	// Campaign makes Raft begin an election if it is still wanted then, and TellToCampaign makes
	// another server begin one.
	Campaign(ctx context.Context, still func() error) error
	TellToCampaign(m group.Member) error
	// Extension is by how much the time-outs of exchanges with a server are extended now.
	Extension(id string) time.Duration
	// WhyFirst is why this server leads, when it has known of no other leader.
	WhyFirst() string
}

// Elector finds out whether there is a leader, and makes this server campaign if its log is the
// longest. It also knows, while this server leads, which members do not answer, and the last
// changes of leaders.
type Elector struct {
	opts   Options
	server Server
	peers  Peers
	raft   Raft

	followers *followers
	refusing  atomic.Value // raft.ServerID of the leader whose address refuses; see gone.go
	silence   *silence
	absence   absence
	campaign  atomic.Uint64 // term of this server's newest campaign by a question
	history   leaderHistory
	followed  followed
	hung      chan struct{} // holds a token when the disk of this server, which led, has begun to hang
}

// New returns an Elector, which does nothing before Attach.
func New(opts Options, peers Peers, server Server) *Elector {
	return &Elector{
		opts: opts, server: server, peers: peers,
		followers: newFollowers(opts.Timeouts.Heartbeat, opts.Logger), silence: newSilence(opts.Timeouts),
		followed: followed{count: opts.Stats.Leaders},
		hung:     make(chan struct{}, 1),
	}
}

// Attach is called once, when Raft runs. From then on elections are logged and counted.
func (e *Elector) Attach(r Raft) {
	e.raft = r
	e.observeElections()
}

// Disk is called when a write to the log of this server, which leads, has begun to hang: another
// one is asked to lead.
func (e *Elector) Disk() {
	select {
	case e.hung <- struct{}{}:
	default: // a token is there
	}
}

// Leads records that this server leads. Only the leader knows it at once.
func (e *Elector) Leads(term uint64) {
	if last := e.raft.LastContact(); !last.IsZero() {
		e.history.lastSign(last)
	}
	e.history.leads(term, string(e.opts.ID), e.whyElected())
}

// Lost records that this server leads no more.
func (e *Elector) Lost(term uint64, why string) {
	e.history.lastSign(time.Now())
	e.history.lost(term, string(e.opts.ID), e.opts.Name+" gave it up: "+why)
}

// Changes are the last changes of leaders, newest first.
func (e *Elector) Changes() []status.LeaderChange { return e.history.newest() }

// Silent returns the members that do not answer this server's heartbeats, and a channel that is
// closed when that changes. There are none while this server does not lead: then it does not know.
func (e *Elector) Silent() ([]SilentMember, <-chan struct{}) { return e.followers.members() }

// WatchFollowers finds the silent members while this server leads. It ends with ctx, the context of
// the term.
func (e *Elector) WatchFollowers(ctx context.Context) { e.followers.watch(ctx, e.others) }

// Listen returns Raft's transport, which notes the members that answer.
func (e *Elector) Listen(inner raftfix.Transport) raftfix.Transport {
	return &heard{inner, e.followers}
}

// LeaderChanged returns a channel that is closed when another server is known to lead than that of
// the destination.
func (e *Elector) LeaderChanged(dest string) <-chan struct{} {
	id, _ := peer.SplitDestination(dest)
	return e.followed.changed(raft.ServerID(id), func() raft.ServerID {
		_, leader := e.leader()
		return leader
	})
}

// LeaderlessSince returns since when no leader is known; zero while one is.
func (e *Elector) LeaderlessSince() time.Time { return e.followed.leaderless() }

func (e *Elector) leader() (raft.ServerAddress, raft.ServerID) { return raftfix.Leader(e.raft) }

func (e *Elector) member(id string) (group.Member, bool) { return group.Find(e.server.Members(), id) }

func (e *Elector) voters() int { return group.Voters(e.server.Members()) }

func (e *Elector) others() []group.Member {
	return slices.DeleteFunc(e.server.Members(), func(m group.Member) bool { return m.Self })
}

// ElectAlone spares the only voter of a group the wait for a leader that cannot exist.
func (e *Elector) ElectAlone(ctx context.Context) {
	members := e.server.Members()
	if len(members) != 1 || !members[0].Self || !members[0].Voter {
		return
	}
	term := e.raft.CurrentTerm()
	if err := e.Campaign(ctx, func() error { return e.unmoved("", term) }); err != nil {
		e.opts.Logger.Debug("the election is left to Raft", "err", err)
	}
}
