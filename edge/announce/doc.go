// Package announce answers for the addresses that this node holds: by ARP for IPv4, by neighbour
// discovery for IPv6.
//
//	frame.go   the bytes of ARP and neighbour discovery
//	socket.go  packets of one link, by AF_PACKET
//	links.go   the links on which an address is announced
//	deadline.go  the kernel's own look at the clock
//	announce.go  answering, and announcing a take-over
//
// Invariants:
//
//   - Each answer asks the Holder first, and is sent right after. So a process that wakes up late
//     answers nothing. While it is sent, no address is given back.
//   - The kernel drops answers that are sent after the end of the holds, if it can: see
//     deadline.go.
//   - No interface gets an address. The kernel answers for the addresses of interfaces, and would
//     go on when this process has died. Packets for a held address are translated by nftables
//     before they are routed.
package announce
