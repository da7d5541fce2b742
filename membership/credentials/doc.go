// Package credentials has what a node proves itself with, and keeps it good: a server's CAs and
// their keys on disk, the certificates of servers and agents, their proof for gossip, the gossip
// keys that others have, and the connections that are made with them.
//
// What is written down of the cluster is the node's record, of which it sees an interface. Whom an
// exchange of the CA waits for is decided here, out of what store, API and gossip say.
package credentials
