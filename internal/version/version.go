// Package version tells which build this is.
package version

// Version of this build, set by the linker; see the Makefile.
var Version = "dev"

// Kubernetes is the version of the API that Barque serves: the release line of the k8s.io modules
// in go.mod (v0.37 there is v1.37 here).
const Kubernetes = "v1.37.2"

// String is the version that nodes and servers report: Kubernetes' with Barque's own as build
// metadata (https://semver.org, item 10), so that clients' version checks work.
func String() string { return Kubernetes + "+barque." + Version }
