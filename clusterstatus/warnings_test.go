package clusterstatus

import (
	"strings"
	"testing"

	"github.com/barque/barque/raftstore"
)

func TestSpaceWarning(t *testing.T) {
	for space, want := range map[string]string{"": "", "low": "fills up: 88 % of 1Gi", "full": "is full"} {
		got := spaceWarning(&raftstore.Status{Space: space, StateBytes: 900 << 20, StateLimit: 1 << 30})
		if !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%q: %q", space, got)
		}
	}
}
