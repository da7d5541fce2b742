package peer

import (
	"io"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
)

// A server is known by its ID. Its address may change, also while it is stopped, and also for all
// servers at once. Then no server is at the address that the
// configuration of the group has, or another member is. So
//
//   - a connection is opened to an ID at an address, and a server with another ID refuses
//     it: a vote or an acknowledgement is never counted for the wrong server, nor twice;
//   - Raft remembers its vote by that, too: the address alone could be another candidate's by now;
//   - a server that has heard from a member where that one is believes it, over the configuration,
//     until the configuration has a newer address.
//
// Raft's ServerAddressProvider is not used for that: it is asked for an ID alone, and would have to
// find the configuration's address with each message. Where it knows none, Raft goes to an address
// without an ID. docs/benchmarks.md has the losses of a cluster without all of this.

// Destination names a server at an address. Without an ID it is any server that answers there.
func Destination(id, addr string) string {
	if id == "" {
		return addr
	}
	return id + "@" + addr
}

// SplitDestination is the way back of Destination.
func SplitDestination(d string) (id, addr string) {
	if i := strings.LastIndexByte(d, '@'); i >= 0 { // a name may have one, an address has none
		return d[:i], d[i+1:]
	}
	return "", d
}

// addressCache is where members are that have said so themselves, by ID.
type addressCache struct {
	mu      sync.Mutex
	entries map[string]cachedAddress
}

type cachedAddress struct {
	addr    string
	instead string // the configuration's address then; a newer one of it ends the entry
}

func newAddressCache() *addressCache { return &addressCache{entries: make(map[string]cachedAddress)} }

// learn takes a member's word on its own address and reports whether that is news.
func (c *addressCache) learn(id, addr, configured string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if addr == configured {
		_, moved := c.entries[id]
		delete(c.entries, id)
		return moved
	}
	entry := cachedAddress{addr, configured}
	if c.entries[id] == entry {
		return false
	}
	c.entries[id] = entry
	return true
}

// of returns where a member is.
func (c *addressCache) of(id, configured string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[id]; ok && (e.instead == configured || configured == group.Nowhere(id)) {
		return e.addr
	}
	return configured
}

// Transport is Raft's transport to servers by their IDs.
type Transport struct {
	*raft.NetworkTransport
	addresses *addressCache
}

// ByID returns Raft's transport to servers by their IDs.
func (p *Peers) ByID(network *raft.NetworkTransport) *Transport {
	return &Transport{network, p.addresses}
}

func (t *Transport) at(id raft.ServerID, configured raft.ServerAddress) raft.ServerAddress {
	_, addr := SplitDestination(string(configured)) // it may come from a message of Raft's
	return raft.ServerAddress(Destination(string(id), t.addresses.of(string(id), addr)))
}

// EncodePeer implements raft.Transport. Raft records its vote in this form.
func (t *Transport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(Destination(string(id), string(addr)))
}

// AppendEntries implements raft.Transport.
func (t *Transport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	return t.NetworkTransport.AppendEntries(id, t.at(id, target), args, resp)
}

// AppendEntriesPipeline implements raft.Transport.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.NetworkTransport.AppendEntriesPipeline(id, t.at(id, target))
}

// InstallSnapshot implements raft.Transport.
func (t *Transport) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse,
	data io.Reader,
) error {
	return t.NetworkTransport.InstallSnapshot(id, t.at(id, target), args, resp, data)
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return t.NetworkTransport.RequestVote(id, t.at(id, target), args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return t.NetworkTransport.RequestPreVote(id, t.at(id, target), args, resp)
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(
	id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	return t.NetworkTransport.TimeoutNow(id, t.at(id, target), args, resp)
}
