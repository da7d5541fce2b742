package node

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"
)

// What a leader says of why it hands over is forgotten in time, by nobody who is left behind when
// the server stops.
func TestNothingIsLeftOfAHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 2)
		leader := s.leader(-1)
		n := s.nodes[1-leader]
		word := handingOver{s.nodes[leader].id.ServerID, n.raft.CurrentTerm(), "because"}
		payload, err := json.Marshal(word)
		if err != nil {
			t.Fatal(err)
		}
		s.await("it follows", func() bool { _, id := n.raft.LeaderWithID(); return string(id) == word.ID })
		if kind, why := n.handleHandOver(payload); kind != answerOK {
			t.Fatalf("%s", why)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		n.chronicle.Began(time.Now(), word.Term+1, "new", func(string) string { return "nobody said it" })
		if got := n.chronicle.Newest()[0].Why; got != "because" {
			t.Errorf("after it was closed, what was said is taken back: %q", got)
		}
	})
}
