// Package hold decides which node answers for an address, and for how long.
//
// The leader grants addresses to nodes, and a node holds what it was granted for Duration. The node
// counts that time down itself, so a node without a leader stops by itself. The leader gives an
// address to another node only when the time is over, or when the former holder has said that it
// stopped, or when its process is proven to be gone. Nothing is written to the store.
//
//	message.go  the messages, and a Link that carries them
//	holder.go   the addresses that a node holds, with the check at each answer
//	node.go     a node's sessions with the leader
//	ledger.go   the leader's knowledge of grants, without goroutines and without a clock
//	choose.go   the choice of a node, a pure function
//	leader.go   the leader's sessions, proofs and probes
//
// Invariant: at no instant do two nodes hold one address. It follows from these rules:
//
//  1. A node notes its clock before it sends a request. A grant counts from that instant.
//  2. The leader notes its clock after a request arrived. Then a quorum proves that it still leads.
//     It counts the grant from the noted instant, with Margin added for the difference of clocks.
//  3. A new leader knows no grants. What its predecessor granted is over when Duration and Margin
//     have passed since a quorum last proved the predecessor's leadership: that was after the
//     predecessor noted its clock. The servers say how long ago it was. Where they do not, it
//     counts from the beginning of the new term.
//  4. A node has one session at a time. It first ends the old one, and then asks the next leader
//     for a session. It takes no session of a term below the highest that it has met. So once it
//     has reported to a leader its addresses, no earlier leader's grant is taken.
//  5. A request lists all addresses that the node holds. What is not in the list was given back.
//
// By 4 and 5 a new leader need not wait when all nodes that could hold an address have reported to
// it, or are proven to be gone.
//
// Clocks are CLOCK_BOOTTIME: steps of the wall clock do not matter, and it goes on in suspend.
package hold

import "time"

const (
	// Duration is how long a node holds an address after it sent its request. A silent machine is
	// replaced after Duration and Margin, so in less than three seconds.
	Duration = 2 * time.Second
	// Margin is added by the leader before it gives an address to another node. It covers clocks
	// whose rates differ by a fifth. chrony slews a clock by up to a twelfth.
	Margin = Duration / 5
	// Renewal is the interval of a holder's requests. Four in a row may fail or be late, as on a
	// machine that is short of CPU.
	Renewal = 400 * time.Millisecond
	// Idle is the interval of requests of a node that holds nothing. The leader wakes it earlier
	// when it has something for it.
	Idle = 10 * time.Second
)
