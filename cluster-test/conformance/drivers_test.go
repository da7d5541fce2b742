package main

import (
	"slices"
	"testing"
)

// TestSpecsWithDriversRunApart: each spec is selected by one half, and judged by its report.
func TestSpecsWithDriversRunApart(t *testing.T) {
	ordinary, drivers := selection{name: "others", labels: "sig-node || sig-network", procs: 5}.apart()
	if ordinary.labels != "(sig-node || sig-network) && !DRA" || ordinary.name != "others" || ordinary.procs != 5 {
		t.Errorf("%+v", ordinary)
	}
	if drivers.labels != "(sig-node || sig-network) && DRA" || drivers.name != "others-drivers" || drivers.procs != 3 {
		t.Errorf("%+v", drivers)
	}
	dra := []string{"sig-node", "DRA"}
	first := []spec{{Name: "A", State: "passed"}, {Name: "B", State: "skipped", Labels: dra},
		{Name: "C", State: "failed"}}
	second := []spec{{Name: "A", State: "skipped"}, {Name: "B", State: "passed", Labels: dra},
		{Name: "C", State: "skipped"}}
	var got []string
	for _, s := range merged(slices.Clone(first), second) {
		got = append(got, s.Name+" "+s.State)
	}
	if want := []string{"A passed", "C failed", "B passed"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	// An interruption before the second half leaves the specs of it to be named.
	if got := merged(slices.Clone(first), nil); len(got) != len(first) {
		t.Errorf("%+v", got)
	}
}
