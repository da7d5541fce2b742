package adminapi

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/barque/barque/raftstore"
)

// TestKeysAnswerTellsItsEnd: a change that began goes on, also when its state cannot be read any
// more. A change that was not proposed does not.
func TestKeysAnswerTellsItsEnd(t *testing.T) {
	leaderless := fmt.Errorf("read the state of the gossip keys: %w", &raftstore.LeaderlessError{})
	for what, c := range map[string]struct {
		err   error
		begun bool
		want  KeysAnswer
	}{
		"not proposed":           {leaderless, false, KeysAnswer{NoLeader: true}},
		"begun, and then unread": {leaderless, true, KeysAnswer{Unfinished: true}},
		"the answer was lost": {fmt.Errorf("%w", raftstore.ErrUnknownOutcome), false,
			KeysAnswer{Unfinished: true}},
		"an election is under way": {fmt.Errorf("read the state of the gossip keys: %w", raftstore.ErrNoLeader), false,
			KeysAnswer{NoLeader: true}},
		"begun, and then none": {raftstore.ErrNoLeader, true, KeysAnswer{Unfinished: true}},
		"a full queue":         {raftstore.ErrOverloaded, false, KeysAnswer{}},
		"somebody was faster":  {fmt.Errorf("%w", &raftstore.ConflictError{}), false, KeysAnswer{Refused: true}},
	} {
		var a KeysAnswer
		status := a.judge(c.err, c.begun)
		if a.NoLeader != c.want.NoLeader || a.Unfinished != c.want.Unfinished || a.Refused != c.want.Refused ||
			a.Error == "" || (status == http.StatusConflict) != c.want.Refused {
			t.Errorf("%s: status %d, %+v", what, status, a)
		}
	}
}
