package apiserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

type aged int

func (a *aged) Age() { *a++ }

func TestCachesAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var first, second aged
		go age(ctx, []ager{&first, &second})
		time.Sleep(3*cacheAge + time.Second)
		synctest.Wait()
		if stop(); first != 3 || second != 3 {
			t.Errorf("they were aged %d and %d times, want 3", first, second)
		}
	})
}
