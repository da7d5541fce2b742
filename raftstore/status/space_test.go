package status

import "testing"

func TestLevelsOfSpace(t *testing.T) {
	l := enough
	for _, step := range []struct {
		size int64
		want Level
	}{
		{0, enough}, {849, enough}, {850, low}, {810, low}, {800, low}, {799, enough}, {849, enough},
		{985, full}, {960, full}, {949, low}, {799, enough}, {5000, full}, {0, enough},
	} {
		if l = l.next(step.size, 1000); l != step.want {
			t.Fatalf("at %d of 1000: %q, want %q", step.size, l, step.want)
		}
	}
	if l := full.next(1<<60, 0); l != enough {
		t.Errorf("without a limit: %q", l)
	}
	if l := enough.next(9<<59, 10<<59); l != low {
		t.Errorf("with a large limit: %q", l)
	}
}
