package status

import (
	"strings"
	"testing"
)

// TestNoLeaderRemedy: servers are to be started only where some are missing.
func TestNoLeaderRemedy(t *testing.T) {
	for _, c := range []struct {
		alive, voters int
		remedy        string
	}{
		{1, 3, "2 servers are needed: start the others"},
		{2, 4, "3 servers are needed: start the others"},
		{2, 3, "they elect one"},
		{3, 3, "they elect one"},
		{1, 1, "they elect one"},
	} {
		if got := noLeaderRemedy(c.alive, c.voters); !strings.Contains(got, c.remedy) {
			t.Errorf("%d of %d: %q, want %q", c.alive, c.voters, got, c.remedy)
		}
	}
}
