package datakeys_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/datakeys"
)

// TestDisksInTurn: the servers clean their disks one after the other, and the leader last. One that
// cannot holds up the others for a while only; the change waits for it, and its reason is known.
func TestDisksInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2", "s3")
		defer w.close()
		w.writeSome("in clear")
		for _, c := range []struct {
			leader int
			want   []string
		}{{0, []string{"s2", "s3", "s1"}}, {1, []string{"s1", "s3", "s2"}}, {2, []string{"s1", "s2", "s3"}}} {
			w.purges = nil
			if w.apply(datakeys.Enable); c.leader > 0 {
				w.apply(datakeys.Rotate)
			}
			w.settle(w.servers[c.leader], true)
			if !slices.Equal(w.purges[:min(3, len(w.purges))], c.want) {
				t.Errorf("the order is %q, want %q", w.purges, c.want)
			}
		}
		full := errors.New("no space left on device")
		w.servers[0].purgeFails.Store(&full)
		w.purges = nil
		w.apply(datakeys.Rotate)
		w.lead(w.servers[1], 5*time.Minute)
		if !slices.Equal(w.purges, []string{"s3", "s2"}) {
			t.Errorf("while s1 cannot, the order is %q", w.purges)
		}
		if is := w.status(w.servers[1]); is.Step != datakeys.Clean || !slices.Contains(is.Waiting, "server s1") {
			t.Errorf("%+v", is)
		}
		if problem := w.servers[0].manager.Problem(w.ctx); problem == "" || w.servers[1].manager.Problem(w.ctx) != "" {
			t.Errorf("the problem of s1 is %q", problem)
		}
		// Each attempt writes the whole state to the disk that is full.
		before := w.servers[0].purgeTries.Load()
		w.lead(w.servers[1], 10*time.Minute)
		if tries := w.servers[0].purgeTries.Load() - before; tries < 5 || tries > 12 {
			t.Errorf("%d attempts in 10 minutes", tries)
		}
		w.servers[0].purgeFails.Store(nil)
		w.settle(w.servers[1], true)
	})
}
