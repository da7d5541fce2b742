package logstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/faultpoint"
)

const forgotten = "a value that was deleted"

// withForgotten opens a log in which deleted entries have left their bytes.
func withForgotten(t *testing.T, opts Options) *Log {
	t.Helper()
	l := open(t, opts)
	for i := uint64(1); i <= 50; i++ {
		if err := l.StoreLog(&raft.Log{Index: i, Term: 1, Data: []byte(forgotten)}); err != nil {
			t.Fatal(err)
		}
	}
	store(t, l, 51, 60)
	if err := errors.Join(l.SetUint64([]byte(keyCurrentTerm), 7), l.Snapshotted(55), l.DeleteRange(1, 55)); err != nil {
		t.Fatal(err)
	}
	if !remembers(steady(t, opts.Dir)) {
		t.Fatal("the search is no good")
	}
	return l
}

func remembers(files map[string][]byte) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(files)),
		func(data []byte) bool { return bytes.Contains(data, []byte(forgotten)) })
}

// TestRenew: nothing of deleted entries is left. The log takes entries all the while, and is whole
// after a crash at any moment.
func TestRenew(t *testing.T) {
	for _, kind := range []Kind{Boltdb, WAL} {
		t.Run(string(kind), func(t *testing.T) {
			dir := t.TempDir()
			opts := Options{Dir: dir, Kind: kind}
			var mu sync.Mutex
			acked := uint64(60)
			type crash struct {
				at    string
				acked uint64
				files map[string][]byte
			}
			var crashes []crash
			renewing := false
			opts.Fault = func(name string) {
				mu.Lock()
				defer mu.Unlock()
				if renewing && (name == faultpoint.LogBeforeSwitch || name == faultpoint.LogAfterSwitch) {
					crashes = append(crashes, crash{name, acked, contents(t, dir)})
				}
			}
			l := withForgotten(t, opts)
			mu.Lock()
			renewing = true
			mu.Unlock()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			began, wrote := make(chan struct{}), make(chan error, 1)
			go func() { // ends with ctx
				for i := uint64(61); ; i++ {
					if ctx.Err() != nil {
						wrote <- nil
						return
					}
					if err := l.StoreLog(
						&raft.Log{Index: i, Term: 2, Data: []byte(fmt.Sprint("new ", i))}); err != nil {
						wrote <- err
						return
					}
					mu.Lock()
					acked = i
					mu.Unlock()
					if i == 61 {
						close(began)
					}
				}
			}()
			<-began
			for range 3 {
				if err := l.Renew(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			if err := <-wrote; err != nil {
				t.Fatal(err)
			}
			if remembers(steady(t, dir)) {
				t.Error("what was deleted is on the disk yet")
			}
			check := func(what string, l *Log, last uint64) {
				t.Helper()
				for i := uint64(56); i <= last; i++ {
					var e raft.Log
					if err := l.GetLog(i, &e); err != nil || i > 60 && string(e.Data) != fmt.Sprint("new ", i) {
						t.Fatalf("%s: entry %d is %q, %v", what, i, e.Data, err)
					}
				}
				if term, err := l.GetUint64([]byte(keyCurrentTerm)); err != nil || term < 2 {
					t.Errorf("%s: term %d, %v", what, term, err)
				}
			}
			check("in use", l, acked)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			check("opened again", open(t, Options{Dir: dir, Kind: kind, Covered: 55}), acked)
			if len(crashes) != 6 {
				t.Errorf("%d crashes", len(crashes))
			}
			for i, c := range crashes {
				at := filepath.Join(t.TempDir(), fmt.Sprint(i))
				develop(t, at, c.files)
				again := open(t, Options{Dir: at, Kind: kind, Covered: 55})
				check(c.at, again, c.acked)
				if err := again.Renew(t.Context()); err != nil {
					t.Error(err)
				}
				if remembers(steady(t, at)) {
					t.Errorf("%s: what was deleted is on the disk yet after a crash and another Renew", c.at)
				}
			}
		})
	}
}

// TestRenewWithoutRoom: a copy that would take the last space is not begun, and the log is as it
// was.
func TestRenewWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	l := withForgotten(t, Options{Dir: dir, Kind: Boltdb, volumeFree: func() int64 { return 4096 }})
	before, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Renew(t.Context()); !errors.Is(err, ErrNoRoom) ||
		!strings.Contains(err.Error(), "4096 bytes are free") {
		t.Errorf("%v", err)
	}
	after, err := os.ReadDir(dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("%v is left of %v, %v", after, before, err)
	}
	if err := l.StoreLog(&raft.Log{Index: 61, Term: 2}); err != nil {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	l.opts.volumeFree = nil
	if err := l.Renew(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end, %v", err)
	}
}
