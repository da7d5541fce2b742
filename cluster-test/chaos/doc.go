// Program chaos breaks a whole cluster in all the ways that it knows while people use it, and
// checks that it kept its promises. `make chaos` runs it; its test is a short run.
// docs/reliability.md has the promises.
//
// The cluster is a `barque dev` cluster of three servers and two agents, each with a disk of its
// own. It is used through the API of all servers: by the clients and watchers of package verify; by
// a probe, the client whose longest time without an acknowledged write is reported for each fault;
// by informers; by a Deployment whose Service is called all the time; and by pods of fixed names,
// each of which its owner makes again when it is gone.
//
// The faults come from a seed, which it prints: the same seed makes the same faults of the same
// parameters in the same order. Processes are not deterministic, so the effects may differ.
//
// Checked all the time: no two pods of one name run at once, or are there at once. By each server's
// watch, the Deployment has no more pods than it declares, and none that changes its node or comes
// back from being deleted. No pod is evicted or removed by force from a node without a fault, or
// sooner than a dead node is emptied. No two servers have different states at one revision, and no
// undamaged server is in quarantine.
//
// Checked after each fault: it happened. The cluster comes back whole, by itself or by the
// documented acts of its operators. The Deployment has its replicas, which run, and no others do,
// and its Service answers on every node.
//
// Checked in turns of some faults: all that package verify judges, and that no write of the probe
// is lost. Checked in the end: all servers have the same state; every informer has the store's
// objects; nothing is left of pods that are gone, and nothing of the cluster.
package main
