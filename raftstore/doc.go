// Package raftstore is Barque's datastore: a replicated, revisioned, watchable key-value store
// that lives inside the process that uses it. It stands where a Kubernetes cluster usually has
// etcd.
//
// It owns the ordered tree of keys, its history, the Raft group that replicates it, and the
// connection between the servers that carries both. It knows nothing of Kubernetes: keys are
// strings of bytes, values are bytes.
//
// What always holds:
//   - an acknowledged Commit is on the disks of a quorum;
//   - every transaction that changes something gets the next revision, the same on every server;
//   - a View is an immutable snapshot, linearizable unless asked otherwise;
//   - a Watcher delivers every revision after its start exactly once, in order and whole, or ends
//     with ErrCompacted;
//   - a server whose state is found to differ from that of most servers stops serving, with
//     ErrQuarantined.
//
// # Embedding it
//
// Open starts a server of a group, NewInMemory a store of one without disk. Both have the same
// front, Store, over the same state machine. A server needs a directory of its own and a Stream to
// the others: a Mux, which is one TLS port with certificates on both sides, or in tests a host of
// package transport/memnet, a network in memory with faults. The first server is opened with
// Bootstrap; each other one is opened with the first one's ClusterID and then calls Join once.
// Addresses may change between starts; the identity of a server is in its directory.
//
// Any server takes reads and writes; one that does not lead asks the leader. Get, Put and Delete
// are short for a View and a Commit. A typical program reads a View, watches from its Revision on,
// and commits with a Precondition on what it has read. Work that only the leader should do runs
// under AwaitLeadership and puts the term into its transactions.
//
// # Errors
//
// Each says what became of the request; compare with errors.Is and errors.As.
//
//	*ConflictError      a precondition did not hold; nothing was changed; the error has the item
//	ErrFenced           the term of the transaction is over; it never takes effect
//	ErrTooLarge         a key, value or transaction is over the Limits
//	ErrInvalid          the transaction cannot mean anything
//	ErrNoSpace          the store is full; what does not make it grow, such as a delete, goes through
//	ErrUnavailable      certainly not executed: repeat it when you like
//	  ErrOverloaded     the queue is full: slow down first
//	  ErrLeaderless     there has been no leader for long: repeat it when servers are back
//	  ErrDiskFull       an operator has to make room first; deletes are taken
//	  ErrQuarantined    this server serves nothing any more: ask another one
//	ErrUnknownOutcome   proposed, and the answer was lost: read before you repeat it
//	ErrCompacted        history does not go back so far: list anew, and watch from there
//	ErrFutureRevision   no server has come to this revision
//	ErrClosed           this store was closed
//
// A lost leader shows as none of these as long as another one is elected within Config.RetryFor:
// the store repeats the request under the same identity, and it takes effect once. ErrLeaderless
// comes after two seconds.
//
// # The parts, from the inside
//
//	kv          the vocabulary: items, transactions, events, errors
//	mvcc        the state of one replica: tree, history, watchers
//	gctuner     how much memory the garbage collector may leave unused
//	command     log entries, and the answers to them
//	fsm         the one path by which log entries become state
//	snapshot    the whole state as a file
//	snapdir     the snapshots that a server keeps
//	logstore    Raft's log on disk, verified and watched over
//	backup      a snapshot with all that it takes to rebuild the cluster from nothing
//	transport   connections between servers: one TLS port, several protocols
//	rpc         calls between servers over one connection
//	raftlog     Raft's own words in the log of the program
//	leader      the time in which a server leads, and how it hands over
//	autopilot   changes the members of the group, one step at a time
//	group       members, and what is decided about them: the vocabulary of the parts of a server
//	peer        greetings, addresses, links and calls between servers
//	disk        the data directory: identity, marks, log, snapshots, room for the time when it is full
//	raftfix     the workarounds for hashicorp/raft
//	status      what a server tells of itself, and the metrics
//	election    finds out that there is no leader, and campaigns
//	succession  finds out that another cluster goes on in place of this one
//	readindex   finds the revision that a linearizable read needs
//	integrity   compares the states of the members, and keeps a wrong one from being served
//	recovery    inspects and recovers the directory of a server that does not run
//	node        Raft, proposing; it wires the parts
//	faultpoint  the moments at which a crash would hurt most
//	check       what clients were told, against what the store promises; for tests only
//	storetest   the conformance suite, clusters in memory, histories; for tests only
//	amounts     tests about how much the store holds and how long it waits, without the race detector in `make test`
//	sim         clusters with faults from a seed, in virtual time; for tests only
//
// This package puts them together. It also repeats requests over changes of the leader, limits
// what callers may ask, and lets the leader delete what has expired.
package raftstore
