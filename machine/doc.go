// Package machine puts Barque on this machine as a service, and takes it off. It owns the texts of
// the services for systemd and OpenRC, the files of an installation, and the plans: what is to be
// done is known, and shown, before anything is changed. Each step can be repeated, so a plan that was
// interrupted is made and carried out again.
//
// A removal has three parts. The service is stopped. What the node has made on the machine is
// removed as the rooms say that made it (package internal/remains). Files go last, the program at the
// very end: until then the same command goes on where it was interrupted.
//
// The package knows no cluster. Its callers say what the node is to its cluster, and what its
// settings are.
package machine
