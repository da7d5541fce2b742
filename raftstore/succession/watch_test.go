package succession

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// server notes the calls to it, in this order.
type server struct{ did []string }

func (s *server) Mute()           { s.did = append(s.did, "mute") }
func (s *server) Withdraw(string) { s.did = append(s.did, "withdraw") }

// TestASupersededServerTakesNoPart: it is muted before anything else, marks its directory, and
// signals the program, once. An error that says nothing of a succession changes nothing.
func TestASupersededServerTakesNoPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dir := new(server), t.TempDir()
		w := New(Options{
			ID: "s1", Dir: dir, Logger: slog.New(slog.DiscardHandler),
			OnSuperseded: func(group.Succession) { s.did = append(s.did, "tell") },
		}, s)
		go w.Run(t.Context())
		w.Refused(errors.New("no route to host"))
		w.Refused(&peer.WrongServerError{Cluster: "other"})
		synctest.Wait()
		if len(s.did) != 0 || w.Superseded() != nil || w.Err() != nil {
			t.Fatalf("nobody goes on in its place, and it did %q: %v", s.did, w.Err())
		}
		told := group.Succession{Cluster: "old", Successor: "new", By: "s2"}
		for range 3 {
			w.Refused(fmt.Errorf("dial: %w", &peer.WrongServerError{Cluster: "new", Succession: &told}))
		}
		synctest.Wait()
		if fmt.Sprint(s.did) != "[mute withdraw tell]" {
			t.Errorf("it did %q", s.did)
		}
		var superseded *group.SupersededError
		if got := w.Superseded(); got == nil || got.Successor != "new" || !errors.Is(w.Err(), kv.ErrUnavailable) ||
			!errors.As(w.Err(), &superseded) {
			t.Errorf("it knows of %+v: %v", got, w.Err())
		}
		if mark, err := disk.ReadSuperseded(&disk.Options{Dir: dir}, "old"); err != nil || mark == nil ||
			mark.Successor != "new" {
			t.Errorf("the mark is %+v, %v", mark, err)
		}
	})
}
