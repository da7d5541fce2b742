package rawlist

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
)

func TestWhatNobodyLooksAtIsForgotten(t *testing.T) {
	cache := NewCache(1 << 20)
	wanted, left := entry{key: 1, revision: 7}, entry{key: 2, revision: 7}
	cache.put(wanted, []byte("sent"))
	cache.put(left, nil)
	for range 3 {
		if data, known := cache.get(wanted); !known || string(data) != "sent" {
			t.Fatal("what was looked at since is gone")
		}
		cache.Age()
	}
	if _, known := cache.get(left); known {
		t.Error("what nobody has looked at is kept")
	}
}

// BenchmarkEntryCost measures the memory of an entry beside its bytes.
func BenchmarkEntryCost(b *testing.B) {
	for _, entries := range []int{20_000, 26_000, 33_000} {
		b.Run(fmt.Sprint(entries), func(b *testing.B) {
			for b.Loop() {
				cache := NewCache(4 * entries * entryCost)
				before := heap()
				for i := range uint64(entries) {
					cache.put(entry{key: cache.hash(string(binary.AppendUvarint(nil, i))), revision: i}, nil)
				}
				b.ReportMetric(float64(heap()-before)/float64(entries), "bytes/entry")
				runtime.KeepAlive(cache)
			}
		})
	}
}

// heap returns the bytes that are alive.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
