package node

import (
	"io"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
)

// A server is known by its ID. Where it is, is only a fact about it that may change, also while it
// is stopped, and also for all servers at once: then nobody is at the address that the
// configuration of the group has, or another member is. So
//
//   - a connection is opened to an ID at an address, and whoever answers with another ID refuses
//     it: a vote or an acknowledgement is never counted for the wrong server, nor twice;
//   - Raft remembers its vote by that, too: the address alone could be another candidate's by now;
//   - a server that has heard from a member where that one is believes it, over the configuration,
//     until the configuration has a newer address.

// destination names a server at an address. Without an ID it is whoever answers there.
func destination(id, addr string) string {
	if id == "" {
		return addr
	}
	return id + "@" + addr
}

func splitDestination(d string) (id, addr string) {
	if i := strings.LastIndexByte(d, '@'); i >= 0 { // a name may have one, an address has none
		return d[:i], d[i+1:]
	}
	return "", d
}

// book is where members are that have said so themselves, by ID.
type book struct {
	mu      sync.Mutex
	entries map[string]bookEntry
}

type bookEntry struct {
	addr    string
	instead string // the configuration's address then; a newer one of it ends the entry
}

func newBook() *book { return &book{entries: make(map[string]bookEntry)} }

// learn takes a member's word on its own address and tells whether that is news.
func (b *book) learn(id, addr, configured string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if addr == configured {
		_, moved := b.entries[id]
		delete(b.entries, id)
		return moved
	}
	entry := bookEntry{addr, configured}
	if b.entries[id] == entry {
		return false
	}
	b.entries[id] = entry
	return true
}

// of returns where a member is.
func (b *book) of(id, configured string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.entries[id]; ok && (e.instead == configured || configured == group.Nowhere(id)) {
		return e.addr
	}
	return configured
}

// dial returns how the member is to be connected to.
func (n *Node) dial(m group.Member) string { return destination(m.ID, n.book.of(m.ID, m.Address)) }

// dialed returns the members with that as their addresses.
func (n *Node) dialed() []group.Member {
	members := n.Members()
	for i := range members {
		members[i].Address = n.dial(members[i])
	}
	return members
}

// named is Raft's transport to servers by their IDs.
type named struct {
	*raft.NetworkTransport
	book *book
}

func (t *named) at(id raft.ServerID, configured raft.ServerAddress) raft.ServerAddress {
	_, addr := splitDestination(string(configured)) // it may come from a message of Raft's
	return raft.ServerAddress(destination(string(id), t.book.of(string(id), addr)))
}

// EncodePeer implements raft.Transport. It is how Raft writes down for whom it has voted.
func (t *named) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(destination(string(id), string(addr)))
}

// AppendEntries implements raft.Transport.
func (t *named) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	return t.NetworkTransport.AppendEntries(id, t.at(id, target), args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (t *named) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.NetworkTransport.AppendEntriesPipeline(id, t.at(id, target))
}

// InstallSnapshot implements raft.Transport.
func (t *named) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.NetworkTransport.InstallSnapshot(id, t.at(id, target), args, resp, data)
}

// RequestVote implements raft.Transport.
func (t *named) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.NetworkTransport.RequestVote(id, t.at(id, target), args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *named) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.NetworkTransport.RequestPreVote(id, t.at(id, target), args, resp)
}

// TimeoutNow implements raft.Transport.
func (t *named) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.NetworkTransport.TimeoutNow(id, t.at(id, target), args, resp)
}
