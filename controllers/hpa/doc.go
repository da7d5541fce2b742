// Package hpa scales what HorizontalPodAutoscalers name, by what its pods use, or by metrics of
// something else.
//
// All choices are made by decide: from the target's scale, its pods and the metrics of a moment,
// and from a memory of the last minutes' recommendations and scalings. That memory is lost with
// the term: a new leader begins it with the replicas that there are, so that it does not scale
// down before the stabilization window has passed.
//
// The algorithm, its defaults, and the reasons of conditions and events are those of Kubernetes
// 1.37 (KEP-853 for behavior, KEP-4951 for tolerances, KEP-2021 for zero replicas). Events are
// told when a condition changes, not each time somebody looks.
package hpa
