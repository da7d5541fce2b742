package logstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/faultpoint"
)

// watched is a Store that reports each read.
type watched struct {
	Store
	read func(index uint64)
}

func (w watched) GetLog(index uint64, entry *raft.Log) error {
	w.read(index)
	return w.Store.GetLog(index, entry)
}

// grown opens a log whose file is large, of which the entries from 2001 to 2100 are left.
func grown(t *testing.T, opts Options) *Log {
	t.Helper()
	l := open(t, opts)
	store(t, l, 1, 1000)
	// Their lower terms do not matter, as they go.
	for i := uint64(1001); i <= 2000; i += 50 {
		var batch []*raft.Log
		for j := range uint64(50) {
			batch = append(batch, &raft.Log{Index: i + j, Term: 1, Data: make([]byte, 64<<10)})
		}
		if err := l.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	store(t, l, 2001, 2100)
	err := errors.Join(l.SetUint64([]byte(keyCurrentTerm), 7), l.SetUint64([]byte(keyVoteTerm), 7),
		l.Set([]byte(keyVote), []byte("somebody")),
		l.Snapshotted(2000), l.DeleteRange(1, 2000))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// hasVoted fails the test unless the log has the values of grown.
func hasVoted(t *testing.T, l *Log) {
	t.Helper()
	term, err := l.GetUint64([]byte(keyCurrentTerm))
	voted, err2 := l.GetUint64([]byte(keyVoteTerm))
	vote, err3 := l.Get([]byte(keyVote))
	if err := errors.Join(err, err2, err3); err != nil || term != 7 || voted != 7 || string(vote) != "somebody" {
		t.Errorf("term %d, vote in %d for %q, %v", term, voted, vote, err)
	}
}

func fileSize(t *testing.T, l *Log) int64 {
	t.Helper()
	info, err := os.Stat(l.home.path(l.home.rec))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestShrink makes the file of a log smaller while entries are written to it.
func TestShrink(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Timeout: time.Hour, shrink: 1 << 20}
	l := grown(t, opts)
	defer func() { shut(t, l) }()
	before, last := fileSize(t, l), uint64(2100)
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := l.StoreLog(entry(last + 1)); err != nil {
				t.Error(err)
				return
			}
			last++
		}
	})
	done, err := l.Shrink(t.Context())
	close(stop)
	writing.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if now := fileSize(t, l); done.Before != before || now > before/2 || done.After > before/2 {
		t.Errorf("the file had %d bytes and has %d; it says %+v", before, now, done)
	}
	hasVoted(t, l)
	expect(t, l, 2001, last)
	store(t, l, last+1, last+10)
	if again, err := l.Shrink(t.Context()); again != (Shrunk{}) || err != nil {
		t.Errorf("once more: %+v, %v", again, err)
	}
	shut(t, l)
	opts.Covered = 2000
	l = open(t, opts)
	hasVoted(t, l)
	expect(t, l, 2001, last+10)
	if files, err := filepath.Glob(filepath.Join(opts.Dir, string(Boltdb)+"-*")); err != nil || len(files) != 1 {
		t.Errorf("there are %q, %v", files, err)
	}
	if l.freePages() < roomBytes*3/4 { // the last entries took some
		t.Errorf("it has %d bytes of room", l.freePages())
	}
}

// TestShrinkLater: an event between, while the copy is made, leaves the log as it is, with nothing
// beside it.
func TestShrinkLater(t *testing.T) {
	var stop func()
	for name, c := range map[string]struct {
		meanwhile   func(l *Log) error
		first, last uint64 // of the log in the end
		err         error
	}{
		"the beginning goes": {func(l *Log) error { return l.DeleteRange(2001, 2010) }, 2011, 2100, nil},
		"the end goes":       {func(l *Log) error { return l.DeleteRange(2051, 2100) }, 2001, 2050, nil},
		"the end is another": {
			func(l *Log) error { return errors.Join(l.DeleteRange(2100, 2100), l.StoreLog(entry(2100))) }, 2001, 2100,
			nil},
		"the disk is full":     {func(l *Log) error { return l.Trim() }, 2001, 2100, nil},
		"the server stops":     {func(*Log) error { stop(); return nil }, 2001, 2100, nil},
		"the log is broken":    {func(l *Log) error { l.breaks(errSum); return nil }, 2001, 2100, errNoWrites},
		"and nothing happened": {func(*Log) error { return nil }, 2001, 2100, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stop = cancel
			hook := func(uint64) {}
			opts := Options{Dir: t.TempDir(), Timeout: time.Hour, shrink: 1 << 20,
				Wrap: func(s Store) Store { return watched{s, func(i uint64) { hook(i) }} }}
			l := grown(t, opts)
			defer func() { shut(t, l) }()
			came, began := make(chan struct{}), false
			hook = func(index uint64) {
				if index == 2001 {
					hook, began = func(uint64) {}, true
					go func() { // ends in this test
						defer close(came)
						if err := c.meanwhile(l); err != nil {
							t.Error(err)
						}
					}()
					for len(l.writing) == 0 { // it may have to wait until no reader reads, in its turn to write
						select {
						case <-came:
							return
						default:
							runtime.Gosched()
						}
					}
				}
			}
			rec := l.home.rec
			done, err := l.Shrink(ctx)
			if !began {
				t.Fatalf("nothing was copied: %+v, %v; of %d bytes %d are free", done, err, fileSize(t, l),
					l.freePages())
			}
			<-came
			if name == "and nothing happened" {
				if done == (Shrunk{}) || err != nil {
					t.Errorf("%+v, %v", done, err)
				}
			} else if done != (Shrunk{}) || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v", done, err)
			} else if name != "the disk is full" && l.home.rec != rec {
				t.Errorf("the log is %+v and was %+v", l.home.rec, rec)
			}
			if files, err := filepath.Glob(filepath.Join(opts.Dir, string(Boltdb)+"-*")); err != nil ||
				!slices.Equal(files, []string{l.home.path(l.home.rec)}) {
				t.Errorf("there are %q, %v", files, err)
			}
			expect(t, l, c.first, c.last)
			hasVoted(t, l)
		})
	}
}

// TestCrashWhileShrinking kills the log, in effect, while a copy is made, and at both points of the
// switch.
func TestCrashWhileShrinking(t *testing.T) {
	shots := make(map[string]map[string][]byte)
	hook := func(uint64) {}
	opts := Options{Dir: t.TempDir(), Timeout: time.Hour, shrink: 1 << 20,
		Wrap: func(s Store) Store { return watched{s, func(i uint64) { hook(i) }} }}
	var shoot func(name string)
	opts.Fault = func(name string) {
		if shoot != nil {
			shoot(name)
		}
	}
	l := grown(t, opts)
	shoot = func(name string) { shots[name] = steady(t, opts.Dir) }
	hook = func(index uint64) {
		if index == 2050 {
			shots["while it is copied"] = steady(t, opts.Dir)
		}
	}
	if done, err := l.Shrink(t.Context()); err != nil || done == (Shrunk{}) {
		t.Fatalf("%+v, %v", done, err)
	}
	shots["after it"] = steady(t, opts.Dir)
	hook, shoot = func(uint64) {}, nil
	shut(t, l)
	want := []string{"after it", faultpoint.LogAfterSwitch, faultpoint.LogBeforeSwitch, "while it is copied"}
	if got := slices.Sorted(maps.Keys(shots)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("crashes at %q", got)
	}
	opts.Covered = 2000
	for name, files := range shots {
		t.Run(name, func(t *testing.T) {
			develop(t, opts.Dir, files)
			l := open(t, opts)
			defer func() { shut(t, l) }()
			expect(t, l, 2001, 2100)
			hasVoted(t, l)
			if files, err := filepath.Glob(filepath.Join(opts.Dir, string(Boltdb)+"-*")); err != nil ||
				len(files) != 1 {
				t.Errorf("there are %q, %v", files, err)
			}
			if _, err := l.Shrink(t.Context()); err != nil {
				t.Error(err)
			}
			if size := fileSize(t, l); size > 16<<20 {
				t.Errorf("the file has %d bytes in the end", size)
			}
		})
	}
}

// TestShrinkLeavesTheVolumeItsRoom: without room for a copy there is none.
func TestShrinkLeavesTheVolumeItsRoom(t *testing.T) {
	dir := volume(t, 128<<20)
	l := grown(t, Options{Dir: filepath.Join(dir, "log"), Timeout: time.Hour, shrink: 1 << 20})
	defer func() { shut(t, l) }()
	ballast := fill(t, dir, 1<<20)
	if done, err := l.Shrink(t.Context()); done != (Shrunk{}) || err != nil {
		t.Errorf("without room: %+v, %v", done, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if done, err := l.Shrink(t.Context()); done == (Shrunk{}) || err != nil {
		t.Errorf("with room: %+v, %v", done, err)
	}
	expect(t, l, 2001, 2100)
}

// BenchmarkShrink makes the file of a log smaller that has so much left, while entries of 1 KiB are
// written to it. It reports how long it took and the longest wait of a write.
func BenchmarkShrink(b *testing.B) {
	for _, live := range []int{8, 100, 1000} {
		b.Run(fmt.Sprintf("%dMB", live), func(b *testing.B) {
			for b.Loop() {
				shrinkOnce(b, live)
			}
		})
	}
}

func shrinkOnce(b *testing.B, live int) {
	b.StopTimer()
	l, err := Open(Options{Dir: b.TempDir(), Timeout: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	const each = 10 << 10
	entries := uint64(live) * 1_000_000 / each // and twice as much that goes
	index := uint64(0)
	put := func(n uint64) {
		for n > 0 {
			var batch []*raft.Log
			for ; n > 0 && len(batch) < 100; n-- {
				index++
				batch = append(batch, &raft.Log{Index: index, Term: 1, Data: make([]byte, each)})
			}
			if err := l.StoreLogs(batch); err != nil {
				b.Fatal(err)
			}
		}
	}
	gone := max(2*entries, 100_000_000/each)
	put(gone)
	put(entries)
	if err := errors.Join(l.Snapshotted(gone), l.DeleteRange(1, gone)); err != nil {
		b.Fatal(err)
	}
	stop := make(chan struct{})
	var writing sync.WaitGroup
	var longest time.Duration
	writing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			if err := l.StoreLog(&raft.Log{Index: index + 1, Term: 1, Data: make([]byte, 1<<10)}); err != nil {
				b.Error(err)
				return
			}
			index++
			longest = max(longest, time.Since(began))
		}
	})
	b.StartTimer()
	done, err := l.Shrink(b.Context())
	b.StopTimer()
	close(stop)
	writing.Wait()
	if err != nil || done == (Shrunk{}) {
		b.Fatalf("%+v, %v", done, err)
	}
	b.ReportMetric(float64(done.Before)/1e6, "MB-before")
	b.ReportMetric(float64(done.After)/1e6, "MB-after")
	b.ReportMetric(done.Waited.Seconds()*1e3, "ms-stopped")
	b.ReportMetric(longest.Seconds()*1e3, "ms-longest-write")
	b.StartTimer()
}
