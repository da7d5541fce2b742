package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/raftstore"
)

// The mark of a server that was left behind is told on its machine, and a recovery takes it away.
func TestSupersededIsTold(t *testing.T) {
	dir := oldServer(t, "s1")
	if Begun(dir) != nil || SupersededBy(dir) != nil {
		t.Fatalf("before: %v, %v", Begun(dir), SupersededBy(dir))
	}
	mark, err := json.Marshal(raftstore.Succession{Cluster: "old", Successor: "new", By: "s2.x", At: noon})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(enroll.StoreDir(dir), "outlived.json"), mark, 0o600); err != nil {
		t.Fatal(err)
	}
	w := Begun(dir)
	if w == nil || w.Severity != clusterstatus.Critical || w.Mend != clusterstatus.JoinAnew || w.Node != "s1" {
		t.Errorf("it is told as %v", w)
	}
	all, err := Survey([]string{dir}, quiet())
	if err != nil || all[0].Superseded == nil || all[0].Superseded.Successor != "new" {
		t.Fatalf("%+v, %v", all, err)
	}
	if _, err := Recover(dir, quiet()); err != nil {
		t.Fatal(err)
	}
	if Begun(dir) != nil || SupersededBy(dir) != nil {
		t.Errorf("after its own recovery: %v, %v", Begun(dir), SupersededBy(dir))
	}
}
