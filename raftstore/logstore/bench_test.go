package logstore

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// BenchmarkAppend stores entries of 1 KiB, one or 64 with each write.
func BenchmarkAppend(b *testing.B) {
	for _, batch := range []int{1, 64} {
		for _, kind := range kinds {
			b.Run(fmt.Sprintf("%s/%d", kind, batch), func(b *testing.B) {
				l, err := Open(Options{Dir: b.TempDir(), Kind: kind, Timeout: time.Hour})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				data := bytes.Repeat([]byte("v"), 1<<10)
				index := uint64(1)
				for b.Loop() {
					entries := make([]*raft.Log, batch)
					for i := range entries {
						entries[i] = &raft.Log{Index: index, Term: 1, Data: data}
						index++
					}
					if err := l.StoreLogs(entries); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkOpen opens a log of 10,000 entries of 1 KiB, all of which are verified.
func BenchmarkOpen(b *testing.B) {
	for _, kind := range kinds {
		b.Run(string(kind), func(b *testing.B) {
			opts := Options{Dir: b.TempDir(), Kind: kind, Timeout: time.Hour}
			l, err := Open(opts)
			if err != nil {
				b.Fatal(err)
			}
			for index := uint64(1); index < 10000; {
				var entries []*raft.Log
				for range 100 {
					entries = append(entries, &raft.Log{Index: index, Term: 1, Data: bytes.Repeat([]byte("v"), 1<<10)})
					index++
				}
				if err := l.StoreLogs(entries); err != nil {
					b.Fatal(err)
				}
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				l, err := Open(opts)
				if err != nil {
					b.Fatal(err)
				}
				l.Close()
			}
		})
	}
}
