package clusterstatus

import (
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/terminal"
)

// TestJoined: the newest note of any server counts, and a machine without one has none.
func TestJoined(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	nodes := []NodeView{{Node: "s1", Role: "server"}, {Node: "s2", Role: "server"}}
	stale := &Observation{From: "s1", Nodes: nodes,
		Joined: map[string]JoinedStatus{"s2": {At: at.Add(-time.Hour), Token: "before", By: "s1"},
			"gone": {At: at, Token: "xxxxxx"}}}
	newer := &Observation{From: "s2", Nodes: nodes,
		Joined: map[string]JoinedStatus{"s2": {At: at, Token: "abcdef", By: "s1"}}}
	s := Assemble(at, stale, newer)
	if len(s.Members) != 2 || s.Members[0].Joined != nil || s.Members[1].Joined == nil ||
		*s.Members[1].Joined != newer.Joined["s2"] {
		t.Fatalf("%+v", s.Members)
	}
	var out strings.Builder
	if err := WriteMembers(&out, terminal.Screen{}, s); err != nil ||
		!strings.Contains(out.String(), "2026-11-29 by abcdef") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
