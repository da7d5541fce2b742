package traces

import "testing"

// TestRemains: traces that are left are reported, and so are kinds without a trace while pods run.
func TestRemains(t *testing.T) {
	if err := (Remains{}).Err(); err != nil {
		t.Error(err)
	}
	m := Remains{processes: []string{"p"}, cgroups: []string{"c"}, rules: []string{"r"}}
	if err := m.Err(); err == nil || err.Error() != "p\nc\nr" {
		t.Error(err)
	}
	if kinds := m.Blind(); len(kinds) != 1 || kinds[0] != "mounts" {
		t.Errorf("blind to %q", kinds)
	}
}
