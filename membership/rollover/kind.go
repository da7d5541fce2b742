package rollover

import (
	"context"
	"log/slog"
)

// Envelope begins the value of every Kind. A State embeds it.
type Envelope struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"` // ID
}

// State is the shared state of a cluster's servers, as JSON. Its zero value is none.
type State interface {
	// At returns the generation and the step; an empty step is at rest.
	At() (generation uint64, step string)
}

// Member is a server's view of a member of the cluster.
type Member struct {
	Name       string `json:"name"`
	Role       string `json:"role"`
	Alive      bool   `json:"-"`
	State      string `json:"state"`            // in words: alive, dead, left, or unknown to the pool
	Generation uint64 `json:"generation"`       // of the keys that it has taken over
	Signer     string `json:"-"`                // digest of the CA of its certificates
	Barred     string `json:"barred,omitempty"` // why it gets no keys: it was removed, and is not waited for
}

// Kind is a kind of keys, on this server.
type Kind[S State] interface {
	// Check returns why a state that was read is damaged, or nil. It may be another cluster's.
	Check(s S) error
	// Uses returns the generation that this server uses.
	Uses() uint64
	// Rebuild returns the state that this server uses. The store has the older one, or none.
	Rebuild(older S) (S, error)
	// Waiting names the members that the next step waits for, and Next returns the state after it.
	Waiting(s S) []string
	Next(s S) (S, error)
	// Fetch gets the keys that this server lacks for the state. use writes them down, and then
	// uses them.
	Fetch(ctx context.Context, s S) (use func() error, err error)
	// Tidy drops the keys that this server has no use for any more. It may be repeated.
	Tidy() error
}

// About describes a Kind.
type About struct {
	Name   string // of the rollover, in messages
	Keys   string // in messages
	Format int    // raised when an older Barque could no longer read a State
	Oldest int    // least format that is read; 0 is Format
	First  uint64 // generation with which a cluster begins
	// Kept is set if a value that is damaged, or another cluster's, must stay: it is an error
	// until an operator restores a backup. Otherwise it counts as none, and the leader writes a
	// right one.
	Kept bool
}

// Server is the server that a Manager is part of.
type Server struct {
	Cluster string // ID
	Store   Store
	// Changed returns a channel that is closed when gossip's view of the members has changed.
	Changed func() <-chan struct{}
	// Wrote is called after this server has written a state. It is not if the outcome of the write
	// is unknown, as at the end of a term. nil is never.
	Wrote  func(Written)
	Logger *slog.Logger
}

// Written is a state that a server has written into the store.
type Written struct {
	Before, After State
	Cause         Cause
}

// Cause is the reason for which a state is written.
type Cause int

// Causes.
const (
	Ordered  Cause = iota // an operator wants it
	Advanced              // the leader makes the next step
	Repaired              // the store had an earlier state, or none
)

// Store keeps one value for all servers.
type Store interface {
	// Get returns the newest value and the revision of its last change; 0 is no value.
	Get(ctx context.Context) (value []byte, revision uint64, err error)
	// Put sets the value if its revision is still the one given, and, unless term is 0, only while
	// that term of the leader lasts.
	Put(ctx context.Context, value []byte, revision, term uint64) error
	// Follow calls f with the value that this server has, and then after each change, until ctx
	// ends.
	Follow(ctx context.Context, f func(value []byte, revision uint64)) error
}
