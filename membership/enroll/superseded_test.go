package enroll_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/ask"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/raftstore"
)

// The mark of a server that was left behind is told on its machine, and a recovery takes it away.
func TestSupersededIsTold(t *testing.T) {
	dir := oldServer(t, "s1")
	mark, err := raftstore.Superseded(enroll.StoreDir(dir))
	if ask.Begun(dir) != nil || mark != nil || err != nil {
		t.Fatalf("before: %v, %v, %v", ask.Begun(dir), mark, err)
	}
	text, err := json.Marshal(
		raftstore.Succession{Cluster: "old", Successor: "new", By: "s2.x",
			At: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(enroll.StoreDir(dir), "outlived.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	w := ask.Begun(dir)
	if w == nil || w.Severity != clusterstatus.Critical || w.Mend != clusterstatus.JoinAnew || w.Node != "s1" {
		t.Errorf("it is told as %v", w)
	}
	s, err := survey(dir)
	if err != nil || s.Superseded == nil || s.Superseded.Successor != "new" {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := recovered(dir); err != nil {
		t.Fatal(err)
	}
	mark, err = raftstore.Superseded(enroll.StoreDir(dir))
	if ask.Begun(dir) != nil || mark != nil || err != nil {
		t.Errorf("after its own recovery: %v, %v, %v", ask.Begun(dir), mark, err)
	}
}
