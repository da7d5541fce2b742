// Package config reads a user's scheduling policy: a file with a KubeSchedulerConfiguration of
// kubescheduler.config.k8s.io/v1, as kube-scheduler takes it with --config.
//
// Decoding is strict: an unknown or repeated field is an error. Defaults, validation and the paths
// in errors are kube-scheduler's. A file is refused as a whole, at the start of the server and with
// all that is wrong with it, or taken as a whole.
//
// What has no meaning here is accepted, so that a file from another cluster can be used, and is
// returned as a list of notes: leader election and the client's connection (the scheduler runs on
// the Raft leader and talks to the API server of its own process), and plugins of kube-scheduler
// that this scheduler does not have. An unknown plugin that is to run is an error.
package config
