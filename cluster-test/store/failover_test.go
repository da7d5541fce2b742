package store

import "testing"

func TestFailoverGap(t *testing.T) {
	g, ctx := newTestGroup(t, Config{Size: 3})
	for range 3 {
		before, err := g.AwaitLeader(ctx)
		must(t, err)
		gap, err := g.FailoverGap(ctx)
		must(t, err)
		if gap <= 0 || gap > patience {
			t.Errorf("a gap of %v", gap)
		}
		after, err := g.AwaitLeader(ctx)
		must(t, err)
		if after == before || !before.Running() {
			t.Errorf("%s led before, and %s leads now", before.Name, after.Name)
		}
		t.Logf("%s killed, %s leads: %v", before.Name, after.Name, gap)
	}
}
