package clusterstatus

import (
	"slices"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
)

func TestFormer(t *testing.T) {
	first, second := Noon, Noon.Add(time.Hour)
	members := []raftstore.Member{{ID: "s1.a", Name: "s1"}, {ID: "s2.b", Name: "s2"}}
	gone := map[string]raftstore.Removal{
		"s2.a": {Name: "s2", At: first, Why: "it has joined again since"},
		"s3.a": {Name: "s3", At: first, Why: "the first time"},
		"s3.b": {Name: "s3", At: second, Why: "the second time"},
		"s9.a": {Name: "s9", At: first, Why: "its Node was deleted"},
	}
	got := Former([]string{"s4", "s3", "s2", "s1"}, members, gone,
		[]raftstore.Succession{{At: second.Add(-time.Minute)}, {At: first.Add(-time.Hour)}})
	want := []FormerServer{{Name: "s3", At: second, Why: "the second time"}, {Name: "s4"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	// A recovery after the removal left out a server that had joined again.
	recovered := second.Add(time.Hour)
	want[0].Succession = recovered
	if got := Former([]string{"s4", "s3"}, members, gone, []raftstore.Succession{{At: recovered}}); !slices.Equal(got,
		want) {
		t.Errorf("after a recovery: %+v, want %+v", got, want)
	}
}
