package version

import (
	"runtime/debug"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestOfSource: a build without the Makefile knows what was built, and clients can read the version
// that it reports.
func TestOfSource(t *testing.T) {
	built := func(module string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: settings}
	}
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0554ce0d1e2f30554ce0d1e2f30554ce0d1e2f3"}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"nothing noted":     {built("(devel)"), "dev"},
		"a commit":          {built("v0.0.0-20261120171048-0554ce0d1e2f", commit), "0554ce0d1e2f"},
		"with changes":      {built("v0.0.0-20261120171048-0554ce0d1e2f+dirty", commit, debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "0554ce0d1e2f-dirty"},
		"go install":        {built("v1.2.3"), "v1.2.3"},
		"with build's data": {built("v1.2.3+incompatible"), "v1.2.3-incompatible"},
	} {
		got := ofSource(c.info)
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if _, err := version.ParseSemantic(Kubernetes + "+barque." + got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
