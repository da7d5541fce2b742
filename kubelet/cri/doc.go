// Package cri is the kubelet's door to the container runtime: a narrow interface over CRI v1 and a
// client of it on a Unix socket.
//
// It owns the connection, the deadlines of every call and the labels by which a sandbox or a
// container is known to belong to a pod. It keeps no state of its own: whoever wants to know how a
// pod is asks the runtime, and learns from Events when to ask again. The connection heals by
// itself, so a runtime that is restarted under running pods costs failed calls and nothing else.
//
// It does not decide anything about pods (package pods does) and pulls no image by itself (package
// images does).
package cri
