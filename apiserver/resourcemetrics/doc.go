// Package resourcemetrics serves metrics.k8s.io: what nodes and pods use of CPU and memory, which
// kubectl top shows and horizontal pod autoscalers go by.
//
// It owns the collection (each kubelet's /metrics/resource, every 15 s), the rates between two
// samples, and the two resources made of them. Nothing of it is stored.
//
// Each server collects on its own, and only while somebody asks:
//   - the first request after a pause starts the collection, and waits until two samples of every
//     node are there, 2 s apart, or the node has failed; Patience bounds that wait;
//   - the collection ends when nobody has asked for Idle, and forgets everything.
//
// So a cluster in which nobody asks pays nothing, a leader change costs no figures (the
// autoscalers' questions move to the server of the new leader, which has an answer seconds later),
// and no server needs another one. Where autoscalers are, it is the leader that collects.
//
// What always holds: no figure is older than Stale; a node that has gone is left out at once; at
// most Concurrency kubelets are asked at a time, each for at most Timeout.
package resourcemetrics
