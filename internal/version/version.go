// Package version tells which build this is.
package version

import (
	"runtime/debug"
	"strings"
)

// unknown is the version of a build of which nothing is known.
const unknown = "dev"

// Version of this build. The linker sets it (see the Makefile). Without that it is the version of
// the source, as the Go command recorded it.
var Version = unknown

func init() {
	if info, ok := debug.ReadBuildInfo(); ok && Version == unknown {
		Version = ofSource(info)
	}
}

// Kubernetes is the version of the API that Barque serves: the release line of the k8s.io modules
// in go.mod (v0.37 there is v1.37 here).
const Kubernetes = "v1.37.2"

// String is the version that nodes and servers report: Kubernetes' with Barque's own as build
// metadata (https://semver.org, item 10), so that clients' version checks work.
func String() string { return Kubernetes + "+barque." + Version }

// ofSource returns the commit that was built, as `git describe --always --dirty` does, or the
// version of the module.
func ofSource(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if commit := settings["vcs.revision"]; commit != "" {
		commit = commit[:min(12, len(commit))]
		if settings["vcs.modified"] == "true" {
			commit += "-dirty"
		}
		return commit
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return strings.ReplaceAll(v, "+", "-") // String has the one plus sign that semver allows
	}
	return unknown
}
