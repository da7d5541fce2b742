package logstore

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// victim is a directory with a log that is to be damaged, over and over.
type victim struct {
	opts        Options
	first, last uint64
	files       map[string][]byte // by path below the directory
	names       []string
}

// newVictim makes a log with all that a real one has: entries, of which some were deleted at both
// ends, in several segments when it is a WAL; a term and a vote.
func newVictim(t *testing.T, kind Kind) *victim {
	v := &victim{opts: Options{Dir: t.TempDir(), Kind: kind, Timeout: time.Hour, segment: 32 << 10}, first: 101,
		last: 500}
	l := open(t, v.opts)
	store(t, l, 1, 600)
	if err := errors.Join(l.Snapshotted(100), l.DeleteRange(1, 100), l.DeleteRange(401, 600)); err != nil {
		t.Fatal(err)
	}
	store(t, l, 401, 500)
	if err := errors.Join(l.SetUint64([]byte(keyCurrentTerm), 7), l.SetUint64([]byte(keyVoteTerm), 7),
		l.Set([]byte(keyVote), []byte("someone"))); err != nil {
		t.Fatal(err)
	}
	shut(t, l)
	v.opts.Covered = 100
	v.files = make(map[string][]byte)
	err := filepath.WalkDir(v.opts.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(v.opts.Dir, path)
		if err != nil {
			return err
		}
		v.files[name], err = os.ReadFile(path)
		v.names = append(v.names, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// restore brings the files back as they were, but for one.
func (v *victim) restore(t *testing.T, name string, damaged []byte) {
	if err := os.RemoveAll(v.opts.Dir); err != nil {
		t.Fatal(err)
	}
	for _, each := range v.names {
		path, data := filepath.Join(v.opts.Dir, each), v.files[each]
		if each == name {
			data = damaged
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// trial opens the log after one file was damaged. It returns whether opening was refused.
func (v *victim) trial(t *testing.T, what, name string, damaged []byte) (refused bool) {
	t.Helper()
	v.restore(t, name, damaged)
	for round := range 2 { // the damaged entries must not show later either
		l, err := Open(v.opts)
		if err != nil {
			var damage *CorruptError
			if !errors.As(err, &damage) {
				t.Fatalf("%s: refused with %T: %v", what, err, err)
			}
			if round > 0 {
				t.Fatalf("%s: refused at the second start: %v", what, err)
			}
			return true
		}
		last := v.last + uint64(round)*50
		if err := differs(l, v.first, last); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		term, err := l.GetUint64([]byte(keyCurrentTerm))
		vote, err2 := l.Get([]byte(keyVote))
		if err := errors.Join(err, err2); err != nil || term != 7 || string(vote) != "someone" {
			t.Fatalf("%s: term %d, vote %q, %v", what, term, vote, err)
		}
		store(t, l, last+1, last+50)
		shut(t, l)
	}
	return false
}

// TestFlippedBytes: whichever byte is wrong, the log is as it was or it is not opened.
func TestFlippedBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			v := newVictim(t, kind)
			rnd := rand.New(rand.NewPCG(seed, 1))
			refused := 0
			const trials = 60
			for range trials {
				name := v.names[rnd.IntN(len(v.names))]
				data := slices.Clone(v.files[name])
				at := rnd.IntN(len(data))
				if rnd.IntN(2) == 0 { // where something stands
					for at < len(data)-1 && data[at] == 0 {
						at++
					}
				}
				flip := byte(1 << rnd.IntN(8))
				if rnd.IntN(3) == 0 {
					flip = byte(1 + rnd.IntN(255))
				}
				data[at] ^= flip
				if v.trial(t, fmt.Sprintf("%s, byte %d ^ %#x", name, at, flip), name, data) {
					refused++
				}
			}
			t.Logf("%d of %d were refused", refused, trials)
			if refused == 0 {
				t.Error("no flip had an effect")
			}
		})
	}
}

// TestFlippedFields: each bit of each field that is Raft's own shows in the sum, also one of a time
// that ends up where nanoseconds in 64 bits begin again.
func TestFlippedFields(t *testing.T) {
	at := time.Date(2026, 11, 21, 5, 0, 0, 123456789, time.UTC)
	good := raft.Log{Index: 1 << 40, Term: 7, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("x"),
		AppendedAt: at}
	far := good
	far.AppendedAt = at.AddDate(1000, 0, 0)
	for name, e := range map[string]raft.Log{"now": good, "in the year 3026": far} {
		damaged := make(map[string]raft.Log)
		for bit := range 64 {
			index, term, kind, seconds := e, e, e, e
			index.Index ^= 1 << bit
			term.Term ^= 1 << bit
			kind.Type ^= 1 << (bit % 8)
			seconds.AppendedAt = time.Unix(e.AppendedAt.Unix()^1<<bit, int64(e.AppendedAt.Nanosecond()))
			damaged[fmt.Sprint("index, bit ", bit)], damaged[fmt.Sprint("term, bit ", bit)] = index, term
			damaged[fmt.Sprint("type, bit ", bit%8)], damaged[fmt.Sprint("seconds, bit ", bit)] = kind, seconds
		}
		damaged["no time"] = raft.Log{Index: e.Index, Term: e.Term, Type: e.Type, Data: e.Data,
			Extensions: e.Extensions}
		stored := protect([]*raft.Log{&e})[0]
		for what, d := range damaged {
			d.Extensions = stored.Extensions
			if err := reveal(e.Index, &d); err == nil {
				t.Errorf("%s: a wrong %s was not found: %+v", name, what, d)
			}
		}
		if err := reveal(e.Index, stored); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCutFiles: wherever a file ends too early, the log is as it was or it is not opened.
func TestCutFiles(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			v := newVictim(t, kind)
			rnd := rand.New(rand.NewPCG(seed, 2))
			refused := 0
			for _, name := range v.names {
				for _, at := range append([]int{0, len(v.files[name]) - 1}, rnd.Perm(len(v.files[name]))[:6]...) {
					if v.trial(t, fmt.Sprintf("%s, cut after %d bytes", name, at), name, v.files[name][:at]) {
						refused++
					}
				}
			}
			if refused == 0 {
				t.Error("no cut had an effect")
			}
		})
	}
}
