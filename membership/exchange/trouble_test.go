package exchange

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/rollover"
)

// fullStore takes nothing while it is full.
type fullStore struct {
	rollover.Store
	full atomic.Bool
}

var errStoreFull = errors.New("the disk is full")

func (s *fullStore) Put(ctx context.Context, state []byte, revision, term uint64) error {
	if s.full.Load() {
		return errStoreFull
	}
	return s.Store.Put(ctx, state, revision, term)
}

// TestALeaderThatCannotGoOn says so when that begins, each minute and not at each try, and when it
// is over.
func TestALeaderThatCannotGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, 0)
		synctest.Wait()
		leader := c.nodes[0]
		store := &fullStore{Store: c.store}
		leader.exchange.Server.Store = store
		c.apply(leader, Begin)
		store.full.Store(true)
		time.AfterFunc(10*time.Minute+time.Second, func() { store.full.Store(false) })
		c.lead(leader, 20*time.Minute)
		c.settled(4)
		for text, times := range map[string]int{
			` err="write the state of the CAs: the disk is full"`:                                              11, // at once, and each minute
			`"a rollover can go on again" rollover="the exchange of the CA" role=leader after=10m2s tries=301`: 1,
			`"a rollover goes on" rollover="the exchange of the CA"`:                                           2, // not for mere tries
		} {
			if n := strings.Count(c.said.String(), text); n != times {
				t.Errorf("%q is said %d times, want %d:\n%s", text, n, times, c.said.String())
			}
		}
	})
}
