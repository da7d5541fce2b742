package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// writeReport writes a report of Ginkgo with the states of specs by name.
func writeReport(t *testing.T, path string, states map[string]string) {
	t.Helper()
	type failure struct{ Message string }
	type one struct {
		LeafNodeType, LeafNodeText, State string
		Failure                           failure
	}
	var specs []one
	for name, state := range states {
		s := one{LeafNodeType: "It", LeafNodeText: name, State: state}
		if state == "skipped itself" {
			s.State, s.Failure.Message = "skipped", "Only for gce"
		}
		specs = append(specs, s)
	}
	data, err := json.Marshal([]map[string]any{{"SpecReports": specs}})
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnInterruptedRunIsTakenUp(t *testing.T) {
	dir := t.TempDir()
	which := ordinary([]string{"node"}, nil)
	if _, err := takeUp(dir, which, true); err == nil {
		t.Error("a run that left no report was taken up")
	}
	taken := func(resume bool, want ...string) {
		t.Helper()
		specs, err := takeUp(dir, which, resume)
		got := names(specs)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("taken over: %q, %v; want %q", got, err, want)
		}
	}
	last := filepath.Join(dir, "others.json")
	writeReport(t, last, map[string]string{
		"[sig-node] A": "passed", "[sig-node] B": "failed", "[sig-node] C": "interrupted", "[sig-node] D": "skipped",
		"[sig-node] E": "skipped itself", "[sig-apps] F": "passed",
	})
	taken(true, "[sig-node] A", "[sig-node] E")
	// This one was interrupted, too, and the next before it had a report.
	writeReport(t, last,
		map[string]string{"[sig-node] A": "skipped", "[sig-node] B": "passed", "[sig-node] C": "skipped"})
	taken(true, "[sig-node] A", "[sig-node] B", "[sig-node] E")
	taken(true, "[sig-node] A", "[sig-node] B", "[sig-node] E")
	// Specs with drivers have a report of their own.
	writeReport(t, filepath.Join(dir, "others-drivers.json"),
		map[string]string{"[sig-node] C": "passed", "[sig-node] G": "failed"})
	taken(true, "[sig-node] A", "[sig-node] B", "[sig-node] C", "[sig-node] E")
	// A run from the beginning forgets them.
	taken(false)
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestUnion(t *testing.T) {
	now := []spec{{Name: "a", State: "skipped"}, {Name: "b", State: "failed"}, {Name: "c", State: "passed"}}
	earlier := []spec{{Name: "a", State: "passed"}, {Name: "c", State: "failed"}, {Name: "d", State: "passed"}}
	states := map[string]string{}
	for _, s := range union(now, earlier) {
		states[s.Name] = s.State
	}
	for name, want := range map[string]string{"a": "passed", "b": "failed", "c": "passed", "d": "passed"} {
		if states[name] != want {
			t.Errorf("%s: %s, want %s", name, states[name], want)
		}
	}
	if len(states) != 4 || now[0].State != "skipped" {
		t.Error(states, now)
	}
}
