package rawlist

import (
	goruntime "runtime"
	"sync/atomic"
	"testing"
)

// TestALongListLetsOthersRun has one core for a list and for a goroutine that gives way at once.
func TestALongListLetsOthersRun(t *testing.T) {
	const objects = 500
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(1))
	var turns atomic.Int64
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !over.Load() {
			turns.Add(1)
			goruntime.Gosched()
		}
	}()
	defer over.Store(true)
	l := newLister(t, 4<<20)
	if _, err := l.list(t, JSON, make([]int, objects)...); err != nil {
		t.Fatal(err)
	}
	over.Store(true)
	<-ended
	if n := turns.Load(); n < objects/2 {
		t.Errorf("the other goroutine had %d turns while %d objects were encoded", n, objects)
	}
}
