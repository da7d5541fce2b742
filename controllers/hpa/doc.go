// Package hpa scales the targets of HorizontalPodAutoscalers, by the usage of their pods, or by
// metrics of other objects.
//
// All choices are made by decide. Its input is the target's scale, its pods, the present metrics,
// and a memory of the last minutes' recommendations and scalings. That memory ends with the term. A
// new leader begins it with the present replicas, so that it does not scale down before the
// stabilization window has passed.
//
// The algorithm, its defaults, and the reasons of conditions and events are those of Kubernetes
// 1.37 (KEP-853 for behavior, KEP-4951 for tolerances, KEP-2021 for zero replicas). Events are
// recorded when a condition changes, not at each evaluation.
package hpa
