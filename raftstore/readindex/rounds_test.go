package readindex

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/status"
)

// TestWaitingReadersShareAnExchange: all who come while an exchange is under way are served by the
// next one, and not by that one, which may have begun before a write that they must see.
func TestWaitingReadersShareAnExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		release := make(chan struct{})
		exchanges := uint64(0)
		r := newRounds(time.Hour, status.NewMetrics(nil), func(context.Context) (uint64, error) {
			exchanges++
			<-release
			return exchanges, nil
		})
		var running sync.WaitGroup
		running.Go(func() { r.run(ctx) })
		read := func(want uint64) {
			running.Go(func() {
				if got, err := r.revision(t.Context(), ctx.Done()); got != want || err != nil {
					t.Errorf("a reader was answered by exchange %d, %v; want %d", got, err, want)
				}
			})
		}
		read(1)
		synctest.Wait()
		for range 99 {
			read(2)
		}
		synctest.Wait()
		if exchanges != 1 {
			t.Errorf("%d exchanges are under way", exchanges)
		}
		release <- struct{}{}
		synctest.Wait()
		close(release)
		synctest.Wait()
		if exchanges != 2 {
			t.Errorf("%d exchanges served 100 readers, want 2", exchanges)
		}
		cancel()
		running.Wait()
	})
}
