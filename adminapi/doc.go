// Package adminapi serves operators in a server's API: changes of the store's members, the status,
// the views of gossip, and facts about this machine. It also relays requests to other servers, and
// checks permissions.
//
// It takes no decision about the cluster: the store does. It declares the interfaces that it needs
// of the store, gossip and other servers.
package adminapi
