package snapdir

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// BenchmarkBeside writes a snapshot of 256 MiB while a file on the same disk is written and synced
// every 2 ms, as a log is, and reports the longest of these writes.
func BenchmarkBeside(b *testing.B) {
	s, err := Open(Options{Dir: b.TempDir(), Keep: 1})
	if err != nil {
		b.Fatal(err)
	}
	log, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	if err := log.Truncate(64 << 20); err != nil {
		b.Fatal(err)
	}
	done, slowest := make(chan struct{}), make(chan time.Duration, 1)
	stop := sync.OnceFunc(func() { close(done) })
	defer stop()
	go func() { // ends when done is closed
		var longest time.Duration
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for offset := int64(0); ; offset += 8 << 10 {
			select {
			case <-done:
				slowest <- longest
				return
			case <-tick.C:
			}
			began := time.Now()
			if _, err := log.WriteAt(make([]byte, 8<<10), offset%(64<<20)); err != nil {
				b.Error(err)
			}
			if err := unix.Fdatasync(int(log.Fd())); err != nil {
				b.Error(err)
			}
			longest = max(longest, time.Since(began))
		}
	}()
	block := make([]byte, 256<<10)
	for i := range block {
		block[i] = byte(i * 7)
	}
	index := uint64(1)
	for b.Loop() {
		sink, err := s.Create(1, index, 2, raft.Configuration{}, 1, nil)
		if err != nil {
			b.Fatal(err)
		}
		for range (256 << 20) / len(block) {
			if _, err := sink.Write(block); err != nil {
				b.Fatal(err)
			}
		}
		if err := sink.Close(); err != nil {
			b.Fatal(err)
		}
		index++
	}
	stop()
	b.ReportMetric(float64(<-slowest)/float64(time.Millisecond), "slowest-ms")
}
