package backups

import (
	"strings"
	"testing"

	"github.com/barque/barque/raftstore"
)

// TestRecoveryWarnsOfTheOneBefore: also when only another directory knows of it.
func TestRecoveryWarnsOfTheOneBefore(t *testing.T) {
	plain := Survivor{Name: "s1", Report: &raftstore.Report{ClusterID: "c"}}
	marked := Survivor{Name: "s2", Report: &raftstore.Report{ClusterID: "c", Superseded: &raftstore.Succession{Cluster: "c", Successor: "new"}}}
	for name, c := range map[string]struct {
		all  []Survivor
		want string
	}{
		"nobody":      {[]Survivor{plain}, ""},
		"it":          {[]Survivor{marked, plain}, "Its agents follow this one."},
		"another one": {[]Survivor{plain, marked}, "Its agents must be started with --rejoin."},
	} {
		got := OneBefore(c.all)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || got != "" && !strings.Contains(got, "Cluster new goes on") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
