// Package version has the version of this build, and compares the versions of nodes.
package version

import (
	"regexp"
	"runtime/debug"
	"strings"
)

// Release is the release of this source, or the next one. It is raised with the first change after
// a release. A build from a tag of that name is the release. Any other build is a prerelease of it:
// builds know their minor version without tags.
const Release = "v0.1.0"

// Version of this build, a semantic version: v0.1.0, v0.1.0-rc.1, or v0.1.0-dev.SOURCE for a build
// between releases. The linker sets it to the answer of `git describe` (see the Makefile).
// Otherwise it comes from the Go command's build information.
var Version string

func init() {
	source := Version
	if info, ok := debug.ReadBuildInfo(); ok && source == "" {
		source = sourceOf(info)
	}
	Version = Of(source)
}

// Kubernetes is the version of the API that Barque serves: the release line of the k8s.io modules
// in go.mod (v0.37 there is v1.37 here).
const Kubernetes = "v1.37.2"

// mark is between the two versions in String.
const mark = "+barque."

// String is the version that nodes and servers report: Kubernetes' with Barque's own as build
// metadata (https://semver.org, item 10), so that clients' version checks work.
func String() string { return Kubernetes + mark + Version }

var (
	released  = regexp.MustCompile(`^v\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?$`)
	described = regexp.MustCompile(`^v\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?-(\d+)-(g[0-9a-f]+(?:-dirty)?)$`)
	pseudo    = regexp.MustCompile(`^v\d+\.\d+\.\d+-(?:.+\.)?(\d{14}-[0-9a-f]{12}.*)$`)
	commit    = regexp.MustCompile(`^[0-9a-f]{7,}(-dirty)?$`)
	foreign   = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// Of returns the version of a build from the name of its source: a tag, the answer of `git
// describe`, a version of a Go module, a commit, or nothing.
func Of(source string) string {
	development := Release + "-dev"
	switch {
	case source == "":
		return development
	case released.MatchString(source):
		return source
	}
	if m := described.FindStringSubmatch(source); m != nil {
		return development + "." + m[1] + "." + m[2]
	}
	if m := pseudo.FindStringSubmatch(source); m != nil {
		source = m[1]
	}
	if commit.MatchString(source) {
		source = "g" + source // a commit of digits only would be a number, and may begin with zeros
	}
	return development + "." + strings.Trim(foreign.ReplaceAllString(source, "-"), "-")
}

// sourceOf returns the commit that was built, as `git describe --always --dirty` does, or the
// version of the module; "" if neither is known.
func sourceOf(info *debug.BuildInfo) string {
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
	if v := info.Main.Version; v != "(devel)" {
		return v
	}
	return ""
}
