package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/metadb"

	"github.com/barque/barque/raftstore/faultpoint"
)

// contents are those of a directory at one moment: the files that a process killed then
// would leave.
func contents(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	below, err2 := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	for _, path := range append(names, below...) {
		if data, err := os.ReadFile(path); err == nil {
			name, _ := filepath.Rel(dir, path)
			files[name] = data
		}
	}
	return files
}

// steady returns contents that do not change any more: a WAL begins its next segment in the
// background.
func steady(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	for last := contents(t, dir); ; {
		now := contents(t, dir)
		if maps.EqualFunc(last, now, bytes.Equal) {
			return now
		}
		last = now
	}
}

// develop makes a directory with such contents.
func develop(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashAtEachPoint kills the log, in effect, at each of its points.
func TestCrashAtEachPoint(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		type crash struct {
			point       string
			files       map[string][]byte
			first, last uint64 // the acknowledged entries
			next        uint64 // a write under way may be there: the last entry then
			first2      uint64 // and the first
			term        uint64
			voteTerm    uint64
			vote        string
		}
		var crashes []crash
		var now crash
		opts.segment = 16 << 10
		opts.Fault = func(name string) {
			shot := now
			shot.point, shot.files = name, steady(t, opts.Dir)
			crashes = append(crashes, shot)
		}
		l := open(t, opts)
		step := func(first, last uint64, do func() error) {
			now.next, now.first2 = last, first
			if err := do(); err != nil {
				t.Fatal(err)
			}
			now.first, now.last = first, last
		}
		put := func(from, to uint64) func() error {
			return func() error {
				var batch []*raft.Log
				for i := from; i <= to; i++ {
					batch = append(batch, entry(i))
				}
				return l.StoreLogs(batch)
			}
		}
		for i := range uint64(8) {
			step(1, 50*i+50, put(50*i+1, 50*i+50))
			if err := l.SetUint64([]byte(keyCurrentTerm), i+1); err != nil {
				t.Fatal(err)
			}
			now.term = i + 1
			if err := l.SetUint64([]byte(keyVoteTerm), i+1); err != nil {
				t.Fatal(err)
			}
			now.voteTerm = i + 1
			if err := l.Set([]byte(keyVote), []byte(candidate(i+1))); err != nil {
				t.Fatal(err)
			}
			now.vote = candidate(i + 1)
		}
		step(51, 400, func() error { return l.DeleteRange(1, 50) })
		step(51, 349, func() error { return l.DeleteRange(350, 400) })
		step(51, 360, put(350, 360))
		shut(t, l)
		other := WAL
		if opts.Kind == WAL {
			other = Boltdb
		}
		opts.Kind, opts.Covered = other, 50
		l = open(t, opts) // converts
		shut(t, l)
		opts.Fault = nil
		seen := make(map[string]bool)
		for i, c := range crashes {
			seen[c.point] = true
			if opts.Covered = 0; c.first2 > 1 {
				opts.Covered = 50 // by the snapshot that comes before the deletion
			}
			develop(t, opts.Dir, c.files)
			l, err := Open(opts)
			if err != nil {
				t.Fatalf("crash %d, at %s: %v", i, c.point, err)
			}
			if err = differs(l, c.first2, c.next); err != nil && c.point != faultpoint.LogAfterSync {
				err = differs(l, c.first, c.last)
			}
			if term, err2 := l.GetUint64([]byte(keyCurrentTerm)); err2 != nil || term != c.term && term != c.term+1 {
				t.Errorf("crash %d, at %s: term %d, want %d: %v", i, c.point, term, c.term, err2)
			}
			if voteTerm, err := l.GetUint64([]byte(keyVoteTerm)); err != nil && c.voteTerm > 0 ||
				voteTerm != c.voteTerm && voteTerm != c.voteTerm+1 {
				t.Errorf("crash %d, at %s: voted in term %d, want %d: %v", i, c.point, voteTerm, c.voteTerm, err)
			}
			if vote, err := l.Get([]byte(keyVote)); err != nil && c.vote != "" ||
				string(vote) != c.vote && string(vote) != candidate(c.voteTerm) {
				t.Errorf("crash %d, at %s: voted for %q, want %q: %v", i, c.point, vote, c.vote, err)
			}
			if err != nil {
				t.Errorf("crash %d, at %s: %v", i, c.point, err)
			}
			shut(t, l)
		}
		for _, point := range []string{
			faultpoint.LogBeforeSync, faultpoint.LogAfterSync, faultpoint.LogBeforeTruncate,
			faultpoint.LogAfterTruncate,
			faultpoint.LogBeforeSwitch, faultpoint.LogAfterSwitch, faultpoint.TermBeforeSync, faultpoint.TermAfterSync,
			faultpoint.VoteBeforeSync, faultpoint.VoteAfterSync,
		} {
			if !seen[point] {
				t.Errorf("no crash at %s", point)
			}
		}
	})
}

// candidate is the test's vote in a term.
func candidate(term uint64) string { return fmt.Sprintf("server-%d", term) }

// TestTornWrites loses power in the middle of a write: any part of its changes came to the disk.
// Writes acknowledged before are there; the one under way is there as a whole or not at all.
func TestTornWrites(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	forEachKind(t, func(t *testing.T, opts Options) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		opts.segment = 64 << 10
		l := open(t, opts)
		store(t, l, 1, 150)
		for round := range uint64(10) {
			last := 150 + 10*round
			store(t, l, last+1, last+1)
			var rest []*raft.Log
			for i := last + 2; i <= last+10; i++ {
				rest = append(rest, entry(i))
			}
			before := steady(t, opts.Dir)
			if err := l.StoreLogs(rest); err != nil {
				t.Fatal(err)
			}
			after := steady(t, opts.Dir)
			for range 3 {
				torn := opts
				torn.Dir = filepath.Join(t.TempDir(), "log")
				develop(t, torn.Dir, tear(rnd, before, after))
				l, err := Open(torn)
				if err != nil {
					t.Fatalf("after entry %d: %v", last+1, err)
				}
				if err := differs(l, 1, last+1); err != nil {
					if whole := differs(l, 1, last+10); whole != nil {
						t.Fatal(err, whole)
					}
				} else {
					store(t, l, last+2, last+40) // another end than the torn one
					expect(t, l, 1, last+40)
				}
				shut(t, l)
				l = open(t, torn)
				shut(t, l)
			}
		}
		shut(t, l)
	})
}

// tear returns the files before a write, with a part of the sectors that it changed. Sectors that
// come after a sync in the write come after it here: of a file of bbolt, the meta page is last. The
// mark is written last of all.
func tear(rnd *rand.Rand, before, after map[string][]byte) map[string][]byte {
	const sector = 512
	torn := make(map[string][]byte)
	for name, now := range after {
		was, existed := before[name]
		if !existed || name == markFile || filepath.Base(name) == metadb.FileName || bytes.Equal(was, now) {
			// A WAL begins its next segment after the write.
			if existed {
				torn[name] = was
			}
			continue
		}
		mixed := slices.Clone(was)
		if len(now) > len(was) {
			mixed = append(mixed, make([]byte, len(now)-len(was))...)
		}
		complete := rnd.IntN(4) == 0
		from := 0
		if strings.HasPrefix(name, string(Boltdb)) {
			from = 2 * os.Getpagesize()
		}
		for at := from; at < len(now); at += sector {
			end := min(at+sector, len(now))
			if complete || rnd.IntN(2) == 0 {
				copy(mixed[at:end], now[at:end])
			}
		}
		if complete && rnd.IntN(2) == 0 {
			copy(mixed[:from], now[:from])
		}
		torn[name] = mixed
	}
	return torn
}

// TestUnguarded: without the mark, the log itself counts, and that is logged.
func TestUnguarded(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		l := open(t, opts)
		store(t, l, 1, 10)
		shut(t, l)
		if err := os.Remove(filepath.Join(opts.Dir, markFile)); err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} {
			l = open(t, opts)
			if r := l.Report(); r.Unguarded != want {
				t.Errorf("it says %+v", r)
			}
			expect(t, l, 1, 10)
			shut(t, l)
		}
	})
}

// TestRefusals: the errors name the fault, its place, and the remedy.
func TestRefusals(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		l := open(t, opts)
		store(t, l, 1, 100)
		if err := errors.Join(l.Snapshotted(60), l.DeleteRange(1, 50)); err != nil {
			t.Fatal(err)
		}
		shut(t, l)
		for _, c := range []struct {
			covered uint64
			edit    func() error
			want    []string
		}{
			{50, nil, nil},
			{49, nil, []string{"ends with entry 49 and the log begins with entry 51"}},
			{0, nil, []string{"begins with entry 51", "no valid snapshot"}},
			{60, func() error {
				return l.mark.set(true, func(p *promises) { p.Last = 103 })
			}, []string{"entries 101 to 103 had been stored", "remove it from the cluster"}},
			{60, func() error { return l.mark.set(true, func(p *promises) { p.Last, p.Term = 100, 8 }) },
				[]string{"CurrentTerm", "was 8"}},
			{60, func() error { return l.mark.set(true, func(p *promises) { p.Term = 0 }) }, nil},
			{60, func() error { return os.Remove(filepath.Join(opts.Dir, recordFile)) },
				[]string{recordFile, "is missing"}},
		} {
			if c.edit != nil {
				file, err := os.OpenFile(filepath.Join(opts.Dir, markFile), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				l.mark.file = file
				if err := errors.Join(c.edit(), file.Close()); err != nil {
					t.Fatal(err)
				}
			}
			opts.Covered = c.covered
			got, err := Open(opts)
			if len(c.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				shut(t, got)
				continue
			}
			var damage *CorruptError
			if !errors.As(err, &damage) {
				t.Fatalf("%v: %v", c.want, err)
			}
			for _, want := range append(c.want, opts.Dir) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it does not say %q: %v", want, err)
				}
			}
		}
	})
}

// TestOneProcess: two do not have the same log open. The second one waits a while for the first one
// to close it.
func TestOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Dir: t.TempDir(), Timeout: time.Hour}
		l := open(t, opts)
		if second, err := Open(opts); err == nil {
			t.Errorf("a second one: %v", second.Close())
		}
		held := make(chan error, 1)
		go func() {
			second, err := Open(opts)
			if err == nil {
				err = second.Close()
			}
			held <- err
		}()
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if len(held) > 0 {
			t.Fatalf("a second one, before the first has closed: %v", <-held)
		}
		shut(t, l)
		if err := <-held; err != nil {
			t.Errorf("after the first has closed: %v", err)
		}
	})
}
