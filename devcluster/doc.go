// Package devcluster makes a real multi-node cluster on one machine: each node is a process of its
// own in its own network namespace, with its own address, data directory and containerd, on a
// bridge that stands for the network between machines. Nothing in a node knows that it is not
// alone.
//
//	host ── proxy on 127.0.0.1 ──▶ API servers          (kubeconfig points here)
//	  │
//	bridge  10.77.0.1 ─┬─ veth ─ [netns barque-s1  10.77.0.11]  barque server
//	                   ├─ veth ─ [netns barque-s2  10.77.0.12]  barque server --join …
//	                   └─ veth ─ [netns barque-a1  10.77.0.21]  barque agent …
//
// What was planned is on disk before any of it is made, and all names follow from it, so that
// Down removes everything after a crash at any moment. Both Up and Down can be repeated.
//
// It is how people play with failures and what the end-to-end tests drive; it is not for
// production: all its nodes share one kernel.
package devcluster
