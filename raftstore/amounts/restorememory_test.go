package amounts

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// bulk gives a restore items of together that many bytes. Of every hundred items, differ depend on
// the round.
func bulk(bytes, round, differ int) func(yield func(*raftstore.Item) error) error {
	const size = 4 << 10
	return func(yield func(*raftstore.Item) error) error {
		for i := range bytes / size {
			value := make([]byte, size)
			binary.LittleEndian.PutUint64(value, uint64(i))
			if i%100 < differ {
				binary.LittleEndian.PutUint64(value[8:], uint64(round))
			} else {
				binary.LittleEndian.PutUint64(value[8:], 1)
			}
			if err := yield(&raftstore.Item{Key: fmt.Sprintf("/registry/bulk/%08d", i), Value: value}); err != nil {
				return err
			}
		}
		return nil
	}
}

// heapNow is the size of the heap's objects that were not collected yet.
func heapNow() float64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return float64(sample[0].Value.Uint64())
}

// restored is the largest heap during restores into a server with a log on disk, less that of the
// empty server. The unit is the heap at rest, with the state.
type restored struct{ fromNothing, theSame, tenth, another float64 }

// restoreMemory restores a state of that many bytes: from nothing, again, with another tenth, and
// with nothing of it that stays.
func restoreMemory(t testing.TB, bytes int) (r restored) {
	defer debug.SetGCPercent(debug.SetGCPercent(5)) // so that garbage counts little
	s, err := raftstore.Open(
		raftstore.Config{Dir: t.TempDir(), Bootstrap: true, Stream: new(memnet.Network).Host("alone")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	empty := heapNow()
	peak := func(round, differ int) float64 {
		runtime.GC()
		stop, most := make(chan struct{}), make(chan float64)
		go func() { // until stop
			ticker := time.NewTicker(time.Millisecond)
			defer ticker.Stop()
			for high := 0.0; ; {
				high = max(high, heapNow())
				select {
				case <-ticker.C:
				case <-stop:
					most <- high
					return
				}
			}
		}()
		_, err := s.Restore(ctx, bulk(bytes, round, differ), raftstore.RestoreOptions{})
		close(stop)
		high := <-most
		if err != nil {
			t.Fatal(err)
		}
		return high - empty
	}
	r.fromNothing = peak(1, 0)
	runtime.GC()
	rest := heapNow() - empty
	r.fromNothing /= rest
	r.theSame, r.tenth, r.another = peak(1, 0)/rest, peak(2, 10)/rest, peak(3, 100)/rest
	return r
}

// TestRestoreMemory: during a restore memory holds one state and the items that differ from it. The
// bounds have room for garbage and for the newest log entries, 8 MiB.
func TestRestoreMemory(t *testing.T) {
	got := restoreMemory(t, 32<<20)
	t.Logf("%+v", got)
	for name, c := range map[string]struct{ got, most float64 }{
		"from nothing":     {got.fromNothing, 1.5},
		"the same state":   {got.theSame, 1.5},
		"another tenth":    {got.tenth, 1.6},
		"nothing the same": {got.another, 2.5},
	} {
		if c.got > c.most {
			t.Errorf("%s: the heap held %.2f states, want %.2f at most", name, c.got, c.most)
		}
	}
}

// BenchmarkRestoreMemory reports the most that the heap holds during a restore, in states.
func BenchmarkRestoreMemory(b *testing.B) {
	for b.Loop() {
		r := restoreMemory(b, 200<<20)
		b.ReportMetric(r.fromNothing, "from-nothing")
		b.ReportMetric(r.theSame, "the-same")
		b.ReportMetric(r.tenth, "another-tenth")
		b.ReportMetric(r.another, "nothing-the-same")
	}
}
