// Program addresschaos breaks a cluster while a machine on its link asks who has the cluster's
// addresses. `make chaos-addresses` runs it; its test is a short run. docs/reliability.md has the
// promises.
//
// The cluster is a `barque dev` cluster of three servers and an agent, with an address of its own
// for the API and a pool of both families for Services. The watcher (package neighbours) asks by
// ARP and neighbour discovery, a hundred times a second for each address.
//
// Checked all the time: never two machines answer at overlapping times. Checked at each fault: a
// node that is cut off, and all nodes while there is no quorum, fall silent within the time of
// their holds. No address is without an answer for longer than docs/edge.md states. After each
// fault one machine answers for each address, and the cluster is whole.
//
// The watcher is on the bridge, and no node. While nodes are cut off from each other it hears all
// of them, unless the fault says otherwise.
package main
