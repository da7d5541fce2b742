// Package speaker announces routes to BGP peers (RFC 4271), and learns none.
//
//	speaker.go  the peers, and a goroutine for each
//	session.go  one session, from its connection to its end
//	message.go  the messages of a session, over gobgp's packet library
//	dial.go     connections: TCP MD5 (RFC 2385), TTL and source address
//
// A session:
//
//	Idle ──pause──▶ Connect ──OPEN──▶ OpenSent ──OPEN──▶ OpenConfirm ──KEEPALIVE──▶ Established
//	  ▲                │                 │                   │                          │
//	  └────────────────┴─────────────────┴───────────────────┴──────────────────────────┘
//
// The speaker connects, and does not listen: there is never a second connection to choose from.
// Routes that a peer sends are passed over unread, so none of them is kept or announced to another
// peer. A session carries the family of its addresses. Its own address is the next hop.
//
// Graceful restart (RFC 4724): the kernel leads packets on while the process is away, so each OPEN
// says that the state of forwarding is preserved. A session that ends without a NOTIFICATION is a
// restart for the peer, which keeps the routes for the restart time. After a NOTIFICATION it drops
// them: the speaker does not announce RFC 8538, by which the two would be the same.
package speaker
