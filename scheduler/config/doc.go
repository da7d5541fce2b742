// Package config reads a user's scheduling policy: a file with a KubeSchedulerConfiguration of
// kubescheduler.config.k8s.io/v1, as kube-scheduler takes it with --config.
//
// Decoding is strict: an unknown or repeated field is an error. Defaults, validation and the paths
// in errors are kube-scheduler's. The server validates the file at its start and reports all
// faults; it never applies a part of a file.
//
// Settings without a meaning here are accepted, so that a file of another cluster can be used. They
// are returned as notes. Leader election and the client's connection are such settings: the
// scheduler runs on the Raft leader and calls the API server of its own process. So are
// kube-scheduler's plugins that this scheduler lacks. An unknown plugin that is enabled is an
// error.
package config
