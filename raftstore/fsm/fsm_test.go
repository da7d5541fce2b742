package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

type machine struct {
	*FSM
	index  uint64
	halted error
}

func newMachine() *machine {
	m := new(machine)
	m.FSM = New(mvcc.New(mvcc.Limits{}), func(err error) { m.halted = err })
	return m
}

func (m *machine) do(t *testing.T, term uint64, reqs ...command.Request) []command.Outcome {
	t.Helper()
	m.index++
	data := command.Encode(&command.Command{Now: int64(m.index), Requests: reqs})
	r := m.Apply(&raft.Log{Index: m.index, Term: term, Type: raft.LogCommand, Data: data}).(*Response)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Outcomes
}

func create(origin, seq, done uint64, key string) command.Request {
	return command.Request{ID: command.ID{Origin: origin, Seq: seq}, Done: done, Kind: command.KindTxn, Txn: kv.Txn{
		Require: []kv.Precondition{{Key: key}}, Ops: []kv.Op{{Kind: kv.Put, Key: key}},
	}}
}

func TestRequestTakesEffectOnce(t *testing.T) {
	m := newMachine()
	first := m.do(t, 1, create(1, 1, 1, "/a"))[0]
	if first.Code != command.Applied || first.Revision != 1 {
		t.Fatalf("%+v", first)
	}
	if again := m.do(t, 2, create(1, 1, 1, "/a"))[0]; again != first {
		t.Errorf("repeated: %+v", again)
	}
	if other := m.do(t, 2, create(2, 1, 1, "/a"))[0]; other.Code != command.Conflict {
		t.Errorf("another origin: %+v", other)
	}
	// A refused request must not take effect later, when its first copy arrives after the answer.
	if refused := m.do(t, 2, create(1, 2, 2, "/a"))[0]; refused.Code != command.Conflict {
		t.Errorf("%+v", refused)
	}
	m.do(t, 2, command.Request{Kind: command.KindTxn, Txn: kv.Txn{Ops: []kv.Op{{Kind: kv.Delete, Key: "/a"}}}})
	if late := m.do(t, 2, create(1, 2, 2, "/a"))[0]; late.Code != command.Spent {
		t.Errorf("a refused request that comes again: %+v", late)
	}
	m.do(t, 2, create(1, 5, 5, "/b"))
	if old := m.do(t, 2, create(1, 3, 3, "/c"))[0]; old.Code != command.Spent {
		t.Errorf("a request whose origin has gone on: %+v", old)
	}
	if n := len(m.sessions.byOrigin[1].answers); n != 1 {
		t.Errorf("%d answers are remembered, want 1", n)
	}
}

func TestFence(t *testing.T) {
	m := newMachine()
	req := command.Request{Kind: command.KindTxn, Txn: kv.Txn{Term: 3, Ops: []kv.Op{{Kind: kv.Put, Key: "/a"}}}}
	for term, want := range map[uint64]command.Code{2: command.Fenced, 3: command.Applied, 4: command.Fenced} {
		if got := m.do(t, term, req)[0]; got.Code != want {
			t.Errorf("in term %d: %+v", term, got)
		}
	}
}

func TestUnreadableEntryHalts(t *testing.T) {
	m := newMachine()
	m.do(t, 1, create(1, 1, 1, "/a"))
	data := command.Encode(&command.Command{})
	data[0] = 200
	r := m.Apply(&raft.Log{Index: 2, Term: 1, Type: raft.LogCommand, Data: data}).(*Response)
	if !errors.Is(r.Err, command.ErrVersion) || !errors.Is(m.halted, command.ErrVersion) {
		t.Fatalf("%v, %v", r.Err, m.halted)
	}
	good := command.Encode(&command.Command{Requests: []command.Request{create(1, 2, 2, "/b")}})
	r = m.Apply(&raft.Log{Index: 3, Term: 1, Type: raft.LogCommand, Data: good}).(*Response)
	if r.Err == nil || m.State().Revision() != 1 || m.Applied().Index != 1 {
		t.Errorf("it went on: %v, revision %d, index %d", r.Err, m.State().Revision(), m.Applied().Index)
	}
	if _, err := m.Snapshot(); err == nil {
		t.Error("it gave a snapshot")
	}
}

// TestSnapshotHoldsEverything compares a machine that applied all entries with one that was
// restored in the middle.
func TestSnapshotHoldsEverything(t *testing.T) {
	whole := newMachine()
	for i := range uint64(50) {
		whole.do(t, 1, create(i%3, i+1, i/2, fmt.Sprintf("/k%d", i%40)))
	}
	p, err := whole.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := p.(*stateSnapshot).write(&file); err != nil {
		t.Fatal(err)
	}
	restored := newMachine()
	if err := restored.Restore(io.NopCloser(&file)); err != nil {
		t.Fatal(err)
	}
	restored.index = whole.index
	for i := range uint64(50) {
		req := create(i%3, i+20, i/2, fmt.Sprintf("/k%d", i))
		a, b := whole.do(t, 2, req)[0], restored.do(t, 2, req)[0]
		if a.Code != b.Code || a.Revision != b.Revision {
			t.Fatalf("request %d: %+v and %+v", i, a, b)
		}
	}
	a, b := whole.State().Latest(), restored.State().Latest()
	if a.Revision() != b.Revision() || a.Hash() != b.Hash() || whole.Applied() != restored.Applied() {
		t.Errorf("revision %d and %d, hash %x and %x", a.Revision(), b.Revision(), a.Hash(), b.Hash())
	}
}

// TestNoClock reads the sources of the packages that run inside Apply: they may not import sources
// of differences between two servers.
func TestNoClock(t *testing.T) {
	banned := map[string]string{
		"time":         "a clock differs between servers: time comes with the command",
		"math/rand":    "chance differs between servers",
		"math/rand/v2": "chance differs between servers",
		"crypto/rand":  "chance differs between servers",
		"os":           "what is on disk differs between servers",
		"net":          "what the network says differs between servers",
	}
	for _, dir := range []string{".", "../mvcc", "../command"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			// The watcher runs in its reader's goroutine; time.Duration is needed to read TTLs.
			if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "mvcc/watcher.go") {
				continue
			}
			source, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range source.Imports {
				path, _ := strconv.Unquote(i.Path.Value)
				if path == "time" && dir == "../command" {
					checkNoNow(t, file)
				} else if why, bad := banned[path]; bad {
					t.Errorf("%s imports %s: %s", file, path, why)
				}
			}
		}
	}
}

// TestClockThatJumps repeats a request under a leader whose clock is far ahead of the one before:
// it must still take effect once.
func TestClockThatJumps(t *testing.T) {
	m := newMachine()
	put := command.Request{ID: command.ID{Origin: 1, Seq: 1}, Done: 1, Kind: command.KindTxn, Txn: kv.Txn{
		Ops: []kv.Op{{Kind: kv.Put, Key: "/a"}},
	}}
	first := m.do(t, 1, put)[0]
	m.index++
	mark := command.Encode(&command.Command{Now: 1000 * 24 * 60 * 60 * 1000})
	m.Apply(&raft.Log{Index: m.index, Term: 2, Type: raft.LogCommand, Data: mark})
	if again := m.do(t, 2, put)[0]; again != first {
		t.Errorf("repeated: %+v, at first %+v", again, first)
	}
}

func TestSessionsAreBounded(t *testing.T) {
	m := newMachine()
	m.do(t, 1, create(1, 1, 1, "/a"))
	for origin := range uint64(maxSessions) {
		m.do(t, 1, create(origin+2, 1, 1, fmt.Sprintf("/b%d", origin)))
	}
	if n := len(m.sessions.order); n != maxSessions {
		t.Errorf("%d sessions, want %d", n, maxSessions)
	}
	if _, ok := m.sessions.byOrigin[1]; ok {
		t.Error("the session that was silent longest is still there")
	}
}

// TestEntriesBeforeAHalt gives the machine a batch whose second entry it cannot read. The first one
// is answered as applied, so it must be visible.
func TestEntriesBeforeAHalt(t *testing.T) {
	m := newMachine()
	good := command.Encode(&command.Command{Requests: []command.Request{create(1, 1, 1, "/a")}})
	bad := command.Encode(&command.Command{})
	bad[0] = 200
	responses := m.ApplyBatch([]*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogCommand, Data: good}, {Index: 2, Term: 1, Type: raft.LogCommand, Data: bad},
	})
	if err := responses[0].(*Response).Err; err != nil {
		t.Fatal(err)
	}
	if r := m.State().Revision(); r != 1 || m.Applied().Index != 1 {
		t.Errorf("revision %d, index %d: the first entry is not visible", r, m.Applied().Index)
	}
}
