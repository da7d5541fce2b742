// Package raftstore is Barque's datastore: a replicated, revisioned, watchable key-value store that
// lives inside the process that uses it. It takes the place of etcd in a Kubernetes cluster.
//
// It owns the ordered tree of keys, its history, the Raft group that replicates it, and the
// connections between the servers. It does not depend on Kubernetes: keys are strings of bytes,
// values are bytes.
//
// Invariants:
//
//   - an acknowledged Commit is on the disks of a quorum;
//   - every transaction that changes something gets the next revision, the same on every server;
//   - a View is an immutable snapshot, linearizable by default;
//   - a Watcher delivers every revision after its start exactly once, in order and complete, or
//     ends
//     with ErrCompacted;
//   - a server whose state differs from that of most servers stops serving, with ErrQuarantined.
//
// # Embedding it
//
// Open starts a server of a group, NewInMemory a store of one without disk. Both have the same
// front, Store, over the same state machine. A server needs its own directory and a Stream to the
// others. A Stream is a Mux, which is one TLS port with certificates on both sides. In tests it is
// a host of package transport/memnet, a network in memory with faults. The first server is opened
// with Bootstrap. Each other one is opened with the first one's ClusterID and then calls Join once.
// Addresses may change between starts; the identity of a server is in its directory.
//
// Any server takes reads and writes; one that does not lead asks the leader. Get, Put and Delete
// are short for a View and a Commit. A typical program reads a View, watches from its Revision on,
// and commits with a Precondition on the items read. Work for the leader only runs under
// AwaitLeadership and puts the term into its transactions.
//
// # Errors
//
// Each error has the outcome of the request; compare with errors.Is and errors.As.
//
//	*ConflictError      a precondition did not hold; nothing was changed; the error has the item
//	ErrFenced           the term of the transaction is over; it never takes effect
//	ErrTooLarge         a key, value or transaction is over the Limits
//	ErrInvalid          the transaction is malformed
//	ErrNoSpace          the store is full; requests that do not grow it, such as deletes, succeed
//	ErrUnavailable      certainly not executed: it may be repeated
//	  ErrOverloaded     the queue is full: slow down first
//	  ErrLeaderless     there has been no leader for long: repeat it when servers are back
//	  ErrDiskFull       an operator has to make room first; deletes are taken
//	  ErrQuarantined    this server serves nothing any more: ask another one
//	ErrUnknownOutcome   proposed, and the answer was lost: read before you repeat it
//	ErrCompacted        history does not go back so far: list again, and watch from there
//	ErrFutureRevision   no server has reached this revision
//	ErrClosed           this store was closed
//
// A lost leader causes none of these if another one is elected within Config.RetryFor: the store
// repeats the request under the same identity, and it takes effect once. ErrLeaderless comes after
// two seconds.
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
//	backup      a snapshot with all data to rebuild the cluster from nothing
//	transport   connections between servers: one TLS port, several protocols
//	rpc         calls between servers over one connection
//	raftlog     Raft's log lines in the program's log
//	leader      the term in which a server leads, and handing it over
//	autopilot   changes the members of the group, one step at a time
//	group       members, and decisions about them: the vocabulary of the parts of a server
//	peer        greetings, addresses, links and calls between servers
//	disk        the data directory: identity, marks, log, snapshots, a reserve for a full disk
//	raftfix     the workarounds for hashicorp/raft
//	status      a server's report on itself, and the metrics
//	election    detects the loss of the leader, and campaigns
//	succession  detects that another cluster replaces this one
//	readindex   finds the revision for a linearizable read
//	integrity   compares the states of the members, and keeps a wrong one from being served
//	recovery    inspects and recovers the directory of a stopped server
//	node        Raft, proposing; it wires the parts
//	faultpoint  the moments at which a crash would hurt most
//	check       judges clients' records by the store's promises; for tests only
//	storetest   the conformance suite, clusters in memory, histories; for tests only
//	amounts     tests of the store's sizes and waits, without the race detector in `make test`
//	sim         clusters with faults from a seed, in virtual time; for tests only
//
// This package puts them together. It also repeats requests over changes of the leader, limits
// callers' requests, and lets the leader delete expired items.
package raftstore
