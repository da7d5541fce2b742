// Package cri is the kubelet's interface to the container runtime: a narrow interface over CRI v1
// and a client of it on a Unix socket.
//
// It owns the connection, the deadlines of every call and the labels that assign a sandbox or a
// container to a pod. It keeps no state of its own: callers ask the runtime for the state of a pod,
// and Events signal changes to them. The connection recovers by itself, so a restart of the runtime
// under running pods only costs failed calls.
//
// It takes no decision about pods (package pods does) and pulls no image by itself
// (package images does).
package cri
