package version

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Number is a parsed version. The zero Number stands for builds before the first release, which
// reported a commit or no version.
type Number struct {
	text   string
	parsed *version.Version
}

// Parse reads a version as nodes report it (String), or Barque's own part of it. Anything else is
// the version of a build from before the first release.
func Parse(text string) Number {
	own := text
	if _, after, found := strings.Cut(text, mark); found {
		own = after
	}
	n := Number{text: own}
	if parsed, err := version.ParseSemantic(own); err == nil && strings.HasPrefix(own, "v") {
		n.parsed = parsed
	}
	return n
}

// Minor is the line of releases that a version belongs to.
type Minor struct{ Major, Minor uint }

// Minor returns the line of a version; 0.0 for the builds before the first release.
func (n Number) Minor() Minor {
	if n.parsed == nil {
		return Minor{}
	}
	return Minor{n.parsed.Major(), n.parsed.Minor()}
}

func (m Minor) String() string { return fmt.Sprintf("v%d.%d", m.Major, m.Minor) }

// Compare orders lines.
func (m Minor) Compare(other Minor) int {
	return cmp.Or(cmp.Compare(m.Major, other.Major), cmp.Compare(m.Minor, other.Minor))
}

// Apart returns by how many lines m is above other: negative if it is below. The first line of a
// major version follows the last one of the major version before, whose number is unknown. So lines
// of different major versions are more than one apart, unless one is the first.
func (m Minor) Apart(other Minor) int {
	if m.Major == other.Major {
		return int(m.Minor) - int(other.Minor)
	}
	by := 2 * (int(m.Major) - int(other.Major))
	switch {
	case by == 2 && m.Minor == 0:
		return 1
	case by == -2 && other.Minor == 0:
		return -1
	}
	return by
}

func (n Number) String() string {
	if n.text == "" {
		return "unknown, from before v0.1.0"
	}
	if n.parsed == nil {
		return n.text + ", from before v0.1.0"
	}
	return n.text
}
