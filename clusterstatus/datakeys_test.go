package clusterstatus

import (
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/datakeys"
)

// TestDataKeysInTheStatus: a change of the data keys that has just begun, or goes on, is no
// warning. One that has not ended for long is, with the leader's reason. So is a server that does
// not follow.
func TestDataKeysInTheStatus(t *testing.T) {
	w := newWorld()
	for _, server := range []string{"s1", "s2", "s3"} {
		w.reports[server].DataKeys = new(datakeys.Progress)
	}
	if s := Assemble(Noon, w.observe(t)); s.Health != Healthy {
		t.Errorf("at rest: %v", s.Warnings)
	}
	stuck := datakeys.Progress{Step: datakeys.Rewrite, Began: Noon.Add(-time.Minute),
		Waiting: []string{"5 objects cannot be read"}}
	w.reports["s1"].DataKeys = &stuck
	if s := Assemble(Noon, w.observe(t)); s.Health != Healthy {
		t.Errorf("it has just begun: %v", s.Warnings)
	}
	stuck.Began = Noon.Add(-time.Hour)
	w.reports["s2"].DataKeys = &datakeys.Progress{Step: datakeys.Rewrite, Began: stuck.Began,
		Waiting: []string{"the leader has not begun yet"}, Problem: "the disk is full"}
	s := Assemble(Noon, w.observe(t))
	if len(s.Warnings) != 2 || s.Health != Degraded {
		t.Fatalf("it does not end: %v", s.Warnings)
	}
	all, one := s.Warnings[0], s.Warnings[1]
	if all.Node != "" ||
		!strings.Contains(all.Text,
			"began at 2026-11-20T11:00:00Z, has not ended: the leader rewrites the objects; it waits: 5 objects cannot be read") ||
		all.Mend != "barque secrets-encrypt status" {
		t.Errorf("%+v", all)
	}
	if one.Node != "s2" || !strings.Contains(one.Text, "server s2 does not follow the data keys: the disk is full") {
		t.Errorf("%+v", one)
	}
	w.reports["s1"].DataKeys = nil // of an earlier version
	if s := Assemble(Noon, w.observe(t)); len(s.Warnings) != 1 {
		t.Errorf("a leader that does not report it: %v", s.Warnings)
	}
}
