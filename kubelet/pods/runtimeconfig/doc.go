// Package runtimeconfig makes the container runtime's configurations of a pod: that of its sandbox,
// and those of its containers, with their environment, mounts, DNS and security.
//
// It reads the objects that a pod refers to, and writes the few files of the kubelet that are
// mounted into containers. It calls no runtime and starts nothing. A fault of the pod's own, such
// as a reference to a missing object, is a ConfigError.
package runtimeconfig
