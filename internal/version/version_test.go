package version

import (
	"runtime/debug"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestOf: any build has a semantic version of the source's line, which clients can parse.
func TestOf(t *testing.T) {
	for _, c := range []struct {
		source, want string
		minor        Minor
	}{
		{"v0.1.0", "v0.1.0", Minor{0, 1}},
		{"v0.3.12", "v0.3.12", Minor{0, 3}},
		{"v1.0.0-rc.2", "v1.0.0-rc.2", Minor{1, 0}},
		{"", Release + "-dev", Minor{0, 1}},
		{"dev", Release + "-dev.dev", Minor{0, 1}},
		{"0bca91a6", Release + "-dev.g0bca91a6", Minor{0, 1}},
		{"0123456", Release + "-dev.g0123456", Minor{0, 1}}, // a number may not begin with 0
		{"0554ce0d1e2f-dirty", Release + "-dev.g0554ce0d1e2f-dirty", Minor{0, 1}},
		{"v0.0.9-12-g0bca91a6", Release + "-dev.12.g0bca91a6", Minor{0, 1}},
		{"v0.0.9-rc.1-12-g0bca91a6-dirty", Release + "-dev.12.g0bca91a6-dirty", Minor{0, 1}},
		{"v0.0.0-20261120171048-0554ce0d1e2f", Release + "-dev.20261120171048-0554ce0d1e2f", Minor{0, 1}},
		{"v0.1.1-0.20261120171048-0554ce0d1e2f+dirty", Release + "-dev.20261120171048-0554ce0d1e2f-dirty", Minor{0, 1}},
		{"a build of mine", Release + "-dev.a-build-of-mine", Minor{0, 1}},
	} {
		got := Of(c.source)
		if got != c.want {
			t.Errorf("of %q: %q, want %q", c.source, got, c.want)
		}
		for _, reported := range []string{got, Kubernetes + mark + got} {
			if _, err := version.ParseSemantic(reported); err != nil {
				t.Errorf("of %q: %v", c.source, err)
			}
			if m := Parse(reported).Minor(); m != c.minor {
				t.Errorf("the line of %q is %v, want %v", reported, m, c.minor)
			}
		}
	}
	if Parse(String()).Minor() != Parse(Release).Minor() {
		t.Errorf("this build is %s", String())
	}
}

// TestBeforeTheFirstRelease: a build that reported a commit is of the line before the first
// release. Of a build without a version the line is unknown.
func TestBeforeTheFirstRelease(t *testing.T) {
	for _, reported := range []string{"", "dev", "v1.37.2+barque.0bca91a6", "v1.37.2+barque.0123456",
		"v1.37.2+barque.0554ce0d1e2f-dirty", "v1.37.2+barque.dev", "1.2.3"} {
		if m := Parse(reported).Minor(); m != (Minor{}) {
			t.Errorf("the line of %q is %v", reported, m)
		}
	}
}

func TestApart(t *testing.T) {
	for _, c := range []struct {
		a, b Minor
		want int
	}{
		{Minor{0, 1}, Minor{0, 1}, 0}, {Minor{0, 1}, Minor{}, 1}, {Minor{}, Minor{0, 1}, -1},
		{Minor{0, 3}, Minor{0, 1}, 2},
		{Minor{1, 0}, Minor{0, 9}, 1}, {Minor{0, 9}, Minor{1, 0}, -1}, {Minor{1, 1}, Minor{0, 9}, 2},
		{Minor{0, 0}, Minor{1, 1}, -2}, {Minor{2, 0}, Minor{0, 9}, 4},
	} {
		if got := c.a.Apart(c.b); got != c.want {
			t.Errorf("%v is %d above %v, want %d", c.a, got, c.b, c.want)
		}
	}
}

// TestSourceOf: a build without the Makefile knows its source.
func TestSourceOf(t *testing.T) {
	built := func(module string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module}, Settings: settings}
	}
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0554ce0d1e2f30554ce0d1e2f30554ce0d1e2f3"}
	for name, c := range map[string]struct {
		info *debug.BuildInfo
		want string
	}{
		"nothing noted": {built("(devel)"), ""},
		"a commit":      {built("v0.0.0-20261120171048-0554ce0d1e2f", commit), "0554ce0d1e2f"},
		"with changes": {
			built("v0.0.0-20261120171048-0554ce0d1e2f+dirty", commit,
				debug.BuildSetting{Key: "vcs.modified", Value: "true"}), "0554ce0d1e2f-dirty"},
		"go install": {built("v1.2.3"), "v1.2.3"},
	} {
		if got := sourceOf(c.info); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
