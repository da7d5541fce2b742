// Program chaos breaks a whole cluster in all the ways that it knows while people use it, and
// checks that it kept its promises. `make chaos` runs it; its test is a short run.
// docs/reliability.md tells what is promised.
//
// The cluster is a `barque dev` cluster of three servers and two agents, each with a disk of its
// own. It is used through the API of all servers: by the clients and watchers of package verify; by
// a probe, the client whose longest time without an acknowledged write is told for each fault; by
// informers; by a Deployment whose Service is called all the time; and by pods of fixed names, each
// of which whoever made it makes again when it is gone.
//
// The faults come from a seed, which it prints: the same seed makes the same faults of the same
// parameters in the same order. Processes are not deterministic, so what they meet may differ.
//
// What is checked all the time: that no two pods of one name run at once, or are there at once;
// that the Deployment has no more pods than it declares, and none that changes its node or comes
// back from being deleted, by what each server's watch tells; that no pod is evicted or removed by
// force from a node that nothing happened to, or sooner than a dead node is emptied; that no two
// servers have different states at one revision, and none is in quarantine that nobody damaged.
//
// What is checked after each fault: that it happened; that the cluster comes back whole, by itself
// or by what its operators are told to do; that the Deployment has its replicas, which run, and no
// others do, and its Service answers on every node.
//
// What is checked in turns of some faults: all that package verify judges, and that no write of the
// probe is lost. In the end: that all servers have the same state; that every informer has what the
// store has; that nothing is left of pods that are gone, and nothing of the cluster.
package main
