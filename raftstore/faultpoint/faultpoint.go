// Package faultpoint names the moments at which a crash would hurt most: before and after the syncs
// of durable data. A test installs a function that is called there, and kills the process or the
// disk.
//
// Invariants: a point is reached on the goroutine that does the work, before or after the step in
// its name, every time. Names are part of the tests' interface: chaos runs give them on a command
// line.
//
// It does not inject errors: WrapLog and WrapSnapshots of raftstore.Config do that.
package faultpoint

// The log: entries of Raft. In the stores that come as libraries the call that syncs is the edge.
const (
	// LogBeforeSync is before entries are passed to the log store: none of them is on disk.
	LogBeforeSync = "log.before-sync"
	// LogAfterSync is when the log store has synced them, and has not acknowledged them yet.
	LogAfterSync = "log.after-sync"
	// LogBeforeTruncate and LogAfterTruncate are around the deletion of entries, which are in a
	// snapshot, or which another leader has overruled.
	LogBeforeTruncate = "log.before-truncate"
	LogAfterTruncate  = "log.after-truncate"
	// LogBeforeSwitch is when a log that replaces another, of another kind, with another end or in
	// a smaller file, is complete and on disk. LogAfterSwitch is when it has replaced it, and the
	// old one still exists.
	LogBeforeSwitch = "log.before-switch"
	LogAfterSwitch  = "log.after-switch"
)

// The stable store: Raft's term and vote.
const (
	// TermBeforeSync and TermAfterSync are around writing the current term.
	TermBeforeSync = "term.before-sync"
	TermAfterSync  = "term.after-sync"
	// VoteBeforeSync and VoteAfterSync are around each of the two writes of a vote: its term, and
	// then its candidate.
	VoteBeforeSync = "vote.before-sync"
	VoteAfterSync  = "vote.after-sync"
)

// Snapshots that this server takes, and those from a leader.
const (
	// SnapshotBeforeSync is when all is written and nothing is synced.
	SnapshotBeforeSync = "snapshot.before-sync"
	// SnapshotBeforeRename is when all is synced, under a name that does not count.
	SnapshotBeforeRename = "snapshot.before-rename"
	// SnapshotAfterRename is when it counts, before the log is cut and the oldest snapshot goes.
	SnapshotAfterRename = "snapshot.after-rename"
)

// Small files: the owner of this directory, and the kind of log in it.
const (
	// IdentityBeforeRename and IdentityAfterRename are around putting the server's identity in
	// place.
	IdentityBeforeRename = "identity.before-rename"
	IdentityAfterRename  = "identity.after-rename"
)

// The transfer of a correct state to a server with a wrong one.
const (
	// TransferWritten is when the state is verified and is the newest snapshot on disk,
	// TransferInstalled when it is the only one, and TransferUnmarked when the mark of the wrong
	// state is gone.
	TransferWritten   = "transfer.written"
	TransferInstalled = "transfer.installed"
	TransferUnmarked  = "transfer.unmarked"
)

// All returns every point, in the order of this file.
func All() []string {
	return []string{
		LogBeforeSync, LogAfterSync, LogBeforeTruncate, LogAfterTruncate,
		LogBeforeSwitch, LogAfterSwitch,
		TermBeforeSync, TermAfterSync, VoteBeforeSync, VoteAfterSync,
		SnapshotBeforeSync, SnapshotBeforeRename, SnapshotAfterRename,
		IdentityBeforeRename, IdentityAfterRename,
		TransferWritten, TransferInstalled, TransferUnmarked,
	}
}

// Func is called with the name of each reached point. A nil one does nothing.
type Func func(name string)

// At is called when the point is reached.
func (f Func) At(name string) {
	if f != nil {
		f(name)
	}
}
