// Package machine puts Barque on this machine as a service, and takes it off. It owns the texts of
// the services for systemd and OpenRC, the files of an installation, and the plans: all steps are
// known, and shown, before anything is changed. Each step can be repeated, so a plan that was
// interrupted is made and carried out again.
//
// A removal has three parts. The service is stopped. The things that the node has made on the
// machine are removed by the rooms that made them (package internal/remains). Files go last, the
// program at the very end: until then the same command goes on where it was interrupted.
//
// The package knows no cluster. Its callers give the settings of the node and its place in the
// cluster.
package machine
