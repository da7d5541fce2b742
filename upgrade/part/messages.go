package part

import (
	"time"

	"github.com/barque/barque/upgrade/versions"
)

// Paths of a node's part, of the archives at a server for other servers and administrators, and of
// the archives for agents.
const (
	NodePath   = "/barque/v1/upgrade/node"
	FilesPath  = "/barque/v1/upgrade/files"
	AgentsPath = "/barque/v1/upgrade/agents"
)

// Do is an order's verb.
type Do string

// Orders.
const (
	Prepare  Do = "prepare"  // get the program
	Try      Do = "try"      // restart with it
	Confirm  Do = "confirm"  // it has passed the gates
	TakeBack Do = "takeBack" // restart with the program before
)

// Order is an order of the leader.
type Order struct {
	Do      Do     `json:"do"`
	Version string `json:"version"`
	// Sums and Signature are the release's files, and From the API addresses of servers that have
	// its archives. Keys are the release keys of the leader, for nodes without their own.
	// Unsigned lets a node without any key believe the checksums.
	Sums      []byte   `json:"sums,omitempty"`
	Signature []byte   `json:"signature,omitempty"`
	From      []string `json:"from,omitempty"`
	Keys      []string `json:"keys,omitempty"`
	Unsigned  bool     `json:"unsigned,omitempty"`
	// Architectures are those whose archives a server keeps for others.
	Architectures []string `json:"architectures,omitempty"`

	ReadySeconds   int    `json:"readySeconds,omitempty"`
	ConfirmSeconds int    `json:"confirmSeconds,omitempty"`
	Why            string `json:"why,omitempty"`
}

// Answer is the state of a node.
type Answer struct {
	Name string `json:"name"`
	Arch string `json:"arch"`
	// Version is that of the program that runs, and Trial is set while it is on trial. Ready is set
	// once the node has done its start, and Stopping while it is about to be started again.
	Version  string    `json:"version"`
	Trial    bool      `json:"trial,omitempty"`
	Ready    bool      `json:"ready,omitempty"`
	Stopping bool      `json:"stopping,omitempty"`
	Started  time.Time `json:"started"`
	// Prepared is the version whose program is there, with the digest of its checksums. Preparing
	// is set while it comes, with the number of bytes so far, and Problem is why it does not.
	Prepared  string `json:"prepared,omitempty"`
	Sums      string `json:"sums,omitempty"`
	Preparing string `json:"preparing,omitempty"`
	Got       int64  `json:"got,omitempty"`
	Problem   string `json:"problem,omitempty"`
	// Lasting is set if another attempt at Problem would fail as well.
	Lasting bool              `json:"lasting,omitempty"`
	Failed  *versions.Failure `json:"failed,omitempty"`
}
