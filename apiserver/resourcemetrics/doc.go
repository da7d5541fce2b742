// Package resourcemetrics serves metrics.k8s.io: the CPU and memory usage of nodes and pods, for
// kubectl top and horizontal pod autoscalers.
//
// It owns the collection (each kubelet's /metrics/resource, every 15 s), the rates between two
// samples, and the two resources made of them. Nothing of it is stored.
//
// Each server collects on its own, and only while there are requests:
//   - the first request after a pause starts the collection, and waits until there are two samples
//     of every node, 2 s apart, or the node has failed; Patience bounds that wait;
//   - the collection ends after Idle without a request, and drops everything.
//
// So a cluster without requests pays nothing. A leader change loses no figures: the autoscalers'
// requests move to the server of the new leader, which has an answer seconds later. No server needs
// another one. With autoscalers, the leader collects.
//
// Invariants: no figure is older than Stale; a node that has gone is left out at once; at most
// Concurrency kubelets are read at a time, each for at most Timeout.
package resourcemetrics
