// Package adminapi has what a server's API serves for operators beside Kubernetes: changes of the
// store's members, the status, the views of gossip, and facts about this machine; the way of a
// request to the server that it is for; and who may ask.
//
// It decides nothing about the cluster: the store does. What it needs of the store, of gossip and
// of other servers are the interfaces that it declares.
package adminapi
