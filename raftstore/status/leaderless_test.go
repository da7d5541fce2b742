package status

import (
	"strings"
	"testing"
)

// TestNoLeaderText: servers are to be started only where some are missing.
func TestNoLeaderText(t *testing.T) {
	for _, c := range []struct {
		alive, voters int
		remedy        string
	}{
		{1, 3, "1 of 3 servers answer and 2 are needed; start the others"},
		{2, 4, "2 of 4 servers answer and 3 are needed; start the others"},
		{2, 3, "2 of 3 servers answer and 2 are needed; they elect one"},
		{3, 3, "3 of 3 servers answer and 2 are needed; they elect one"},
		{1, 1, "1 of 1 servers answer and 1 are needed; they elect one"},
	} {
		if got := noLeaderRemedy(c.alive, c.voters); !strings.Contains(got, c.remedy) {
			t.Errorf("%d of %d: %q, want %q", c.alive, c.voters, got, c.remedy)
		}
	}
}
