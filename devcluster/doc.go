// Package devcluster makes a real multi-node cluster on one machine. Each node is a separate
// process in its own network namespace, with its own address, data directory and containerd. A
// bridge stands for the network between machines. A node does not know that it shares a machine.
//
//	host ── proxy on 127.0.0.1 ──▶ API servers          (kubeconfig points here)
//	  │
//	bridge  10.77.0.1 ─┬─ veth ─ [netns barque-s1  10.77.0.11]  barque server
//	                   ├─ veth ─ [netns barque-s2  10.77.0.12]  barque server --join …
//	                   └─ veth ─ [netns barque-a1  10.77.0.21]  barque agent …
//
// The plan is on disk before any part of it is made, and all names follow from it. Therefore Down
// can remove everything after a crash at any moment. Up and Down can both be repeated.
//
// Users try failures with it, and the end-to-end tests drive it. It is not for production: all its
// nodes share one kernel.
package devcluster
