// Package announce answers for the addresses that this node holds: by ARP for IPv4, by neighbour
// discovery for IPv6.
//
//	frame.go   the bytes of ARP and neighbour discovery
//	socket.go  packets of one link, by AF_PACKET
//	links.go   the links on which an address is announced
//	announce.go  answering, and announcing a take-over
//
// Invariants:
//
//   - Each answer asks the Holder first, and is sent right after. So a process that wakes up late
//     answers nothing.
//   - No interface gets an address. The kernel answers for the addresses of interfaces, and would
//     go on when this process has died. Packets for a held address are translated by nftables
//     before they are routed.
//
// Between the question and the send lie a few microseconds. A process that is paused exactly there
// for longer than hold.Margin sends one late answer. The other holder sees it as a conflict and
// repeats its own announcement at once.
package announce
