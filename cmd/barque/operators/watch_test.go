package operators

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/raftstore"
)

// TestDrawStatus: on a terminal each status replaces the last one, also after a failed request.
func TestDrawStatus(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &raftstore.Status{ID: "s1.x", Name: "s1", Role: "leader", LeaderID: "s1.x", Term: 3, Revision: 50, Version: "v1"}
	member := raftstore.Member{ID: s.ID, Name: s.Name, Address: "127.0.0.1:1", Voter: true, Leader: true, Self: true}
	h := &ask.Heard{Observations: []*clusterstatus.Observation{{Cluster: "c", From: "s1", Time: time.Now(),
		Peers: []raftstore.PeerStatus{{Member: member, Status: s}}}}}
	for want, draw := range map[string]func(io.Writer) error{
		"s1": func(w io.Writer) error { return drawStatus(w, h, nil, at, time.Second) },
		"nobody is there": func(
			w io.Writer,
		) error {
			return drawStatus(w, nil, errors.New("nobody is there"), at, time.Second)
		},
	} {
		var out strings.Builder
		if err := draw(&out); err != nil {
			t.Error(err)
		}
		text := out.String()
		if !strings.HasPrefix(text, "\x1b[H03:04:05, every 1s") || !strings.HasSuffix(text, "\x1b[J") ||
			!strings.Contains(text, want) {
			t.Errorf("%q; want %q at the top of the screen", text, want)
		}
		for line := range strings.Lines(strings.TrimSuffix(text, "\x1b[J")) {
			if !strings.HasSuffix(line, "\x1b[K\n") {
				t.Errorf("the rest of a longer line stays behind %q", line)
			}
		}
	}
}
