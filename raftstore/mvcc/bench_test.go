package mvcc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// filled returns a store with keys of 10 resources, in random order, and without history.
func filled(keys, valueBytes int) *Store {
	s := New(Limits{})
	value := make([]byte, valueBytes)
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, i := range rnd.Perm(keys) {
		s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: benchKey(i), Value: value}}}, 1, 0)
		if i%64 == 0 {
			s.Publish()
		}
	}
	s.Compact(s.Applied())
	s.Publish()
	return s
}

// benchKey has the shape and the length, about 50 bytes, of a Kubernetes key.
func benchKey(i int) string {
	return fmt.Sprintf("/registry/kind%d/namespace-%02d/object-name-%08x", i%10, i/10%50, uint32(i)*2654435761)
}

func BenchmarkPut(b *testing.B) {
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			s, value := filled(100_000, 256), make([]byte, 256)
			keys := make([]string, 1024)
			for i := range keys {
				keys[i] = benchKey(i * 97)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: keys[i%1024], Value: value}}}, int64(i), 0)
				if i%batch == 0 {
					s.Publish()
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s := filled(100_000, 256)
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = benchKey(i * 97)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok := s.Latest().Get(keys[i%1024]); !ok {
			b.Fatal("a key is missing")
		}
	}
}

func BenchmarkList10k(b *testing.B) {
	v := filled(100_000, 256).Latest()
	b.ReportAllocs()
	for b.Loop() {
		n, size := 0, 0
		v.Ascend("/registry/kind3/", "", func(item kv.Item) bool { n++; size += len(item.Value); return true })
		if n != 10_000 || size != 2_560_000 {
			b.Fatal(n, size)
		}
	}
}

func BenchmarkCount10k(b *testing.B) {
	v := filled(100_000, 256).Latest()
	b.ReportAllocs()
	for b.Loop() {
		if n := v.Count("/registry/kind3/", ""); n != 10_000 {
			b.Fatal(n)
		}
	}
}

// BenchmarkWriteBesideWatchers shows the cost of a write while others watch other prefixes.
func BenchmarkWriteBesideWatchers(b *testing.B) {
	for _, n := range []int{0, 1, 100, 5_000} {
		b.Run(fmt.Sprintf("watchers=%d", n), func(b *testing.B) {
			s, value := filled(10_000, 256), make([]byte, 256)
			for i := range n {
				w, err := s.Watch(kv.WatchOptions{Prefix: fmt.Sprintf("/registry/kind%d/other-%04d/", i%10, i)})
				if err != nil {
					b.Fatal(err)
				}
				defer w.Close()
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: benchKey(i % 1000), Value: value}}}, int64(i), 0)
				s.Publish()
			}
		})
	}
}

// BenchmarkFanOut shows the time until all watchers of one prefix have a write.
func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{1, 100, 5_000} {
		b.Run(fmt.Sprintf("watchers=%d", n), func(b *testing.B) {
			s, value := filled(10_000, 256), make([]byte, 256)
			ctx, cancel := context.WithCancel(context.Background())
			var all, got sync.WaitGroup
			for range n {
				w, err := s.Watch(kv.WatchOptions{Prefix: "/registry/kind3/"})
				if err != nil {
					b.Fatal(err)
				}
				all.Go(func() {
					defer w.Close()
					for {
						if _, err := w.Next(ctx); err != nil {
							return
						}
						got.Done()
					}
				})
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				got.Add(n)
				s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: benchKey(i%1000*10 + 3), Value: value}}}, int64(i), 0)
				s.Publish()
				got.Wait()
			}
			b.StopTimer()
			cancel()
			all.Wait()
		})
	}
}

// BenchmarkMemory loads keys and reports the heap for each of them, in relation to the bytes of
// keys and values: without history, and with the history after the load.
func BenchmarkMemory(b *testing.B) {
	for _, c := range []struct{ keys, value int }{{100_000, 1024}, {300_000, 256}, {1_000_000, 100}} {
		b.Run(fmt.Sprintf("keys=%d/value=%d", c.keys, c.value), func(b *testing.B) {
			for b.Loop() {
				before := heap()
				s := New(Limits{})
				value, raw := make([]byte, c.value), 0
				for i, k := range rand.New(rand.NewPCG(1, 2)).Perm(c.keys) {
					key := benchKey(k)
					raw += len(key) + len(value)
					s.Apply(&kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: key, Value: value}}}, 1, 0)
					if i%16 == 0 {
						s.Publish()
					}
				}
				s.Publish()
				with := heap() - before
				b.ReportMetric(float64(s.Stats().HistoryBytes), "history-counted-B")
				s.Compact(s.Applied())
				s.Publish()
				s.pins.reset(s.Applied())
				without := heap() - before
				b.ReportMetric(float64(with-without), "history-B")
				b.ReportMetric(float64(without)/float64(c.keys), "B/key")
				b.ReportMetric(float64(without)/float64(raw), "heap/raw")
				b.ReportMetric(float64(with)/float64(raw), "heap+history/raw")
				runtime.KeepAlive(s)
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
