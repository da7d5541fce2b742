package audit

import (
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/barque/barque/raftstore/kv"
)

// txn is what is known of a client's transaction.
type txn struct {
	ops      []kv.Op
	outcome  outcome
	revision uint64 // told by the store
	seen     uint64 // in the log
}

type outcome int

const (
	open outcome = iota // the call has not returned, or its outcome is unknown
	done
	never
)

func hash(value []byte) uint64 { return xxhash.Sum64(value) }

// Call is one call of a client, from before it began.
type Call struct {
	log    *Log
	what   string
	floor  uint64 // newest revision that was told to anybody before
	writes *txn
}

// Begin is called before a client reads. what names the call in faults.
func (l *Log) Begin(what string) *Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Call{log: l, what: what, floor: l.acked}
}

// BeginWrite is called before a client commits. All values that it puts have the token, which is in
// no other transaction; what it deletes must exist, by its preconditions.
func (l *Log) BeginWrite(what, token string, ops []kv.Op) *Call {
	c := l.Begin(what)
	c.writes = &txn{ops: ops}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.txns[token] != nil {
		l.fault("%s: the token %q is not new; the test is wrong", what, token)
	}
	l.txns[token] = c.writes
	for _, op := range ops {
		if op.Kind == kv.Delete || op.TTL > 0 {
			l.fleeting[op.Key] = true
		}
	}
	return c
}

// Committed is called when a commit was acknowledged.
func (c *Call) Committed(revision uint64) {
	l := c.log
	l.mu.Lock()
	defer l.mu.Unlock()
	t := c.writes
	t.outcome, t.revision = done, revision
	if revision <= c.floor {
		l.fault("%s: acknowledged at revision %d, after %d was told to somebody", c.what, revision, c.floor)
	}
	if t.seen != 0 && t.seen != revision {
		l.fault("%s: acknowledged at revision %d, and is in the log at %d", c.what, revision, t.seen)
	}
	l.acked = max(l.acked, revision)
	l.claim(revision, claim{c.what, func(l *Log) string { return l.explain(t) }})
}

// explain says what is wrong with an acknowledged transaction, when the log has come to its
// revision.
func (l *Log) explain(t *txn) string {
	if t.revision <= l.base {
		return "" // at the beginning: lost checks the state
	}
	e := l.entries[t.revision-l.base-1]
	if len(e.events) != len(t.ops) {
		return fmt.Sprintf("acknowledged with %d operations, but the log has %s", len(t.ops), e)
	}
	for i, op := range t.ops {
		ev := e.events[i]
		if ev.key != op.Key || (ev.kind == kv.Deleted) != (op.Kind == kv.Delete) || op.Kind == kv.Put && ev.value != hash(op.Value) {
			return fmt.Sprintf("acknowledged with %v of %q, but the log has %s", op.Kind, op.Key, e)
		}
	}
	return ""
}

// Refused is called when a commit was certainly not executed.
func (c *Call) Refused(reason error) {
	l := c.log
	l.mu.Lock()
	defer l.mu.Unlock()
	c.writes.outcome = never
	l.ops++
	if c.writes.seen != 0 {
		l.fault("%s: refused (%v), but it is in the log at revision %d", c.what, reason, c.writes.seen)
	}
}

// Unknown is called when the outcome of a commit is unknown.
func (c *Call) Unknown() {
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	c.log.ops++
}

// Conflict is called when a commit was refused for what a key is.
func (c *Call) Conflict(err *kv.ConflictError) {
	c.Refused(err)
	if err.Current == nil {
		c.Read(err.Revision, []string{err.Key}, nil, true)
	} else {
		c.Read(err.Revision, []string{err.Key}, []kv.Item{*err.Current}, true)
	}
}

// Read is called when a client has read the keys at a revision, and found the items. Not fresh is
// what promises nothing about its age.
func (c *Call) Read(revision uint64, keys []string, items []kv.Item, fresh bool) {
	l := c.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if fresh && revision < c.floor {
		l.fault("%s: read at revision %d, after %d was told to somebody", c.what, revision, c.floor)
	}
	l.acked = max(l.acked, revision)
	found := make(map[string]version, len(items))
	for _, i := range items {
		found[i.Key] = version{i.ModRevision, i.CreateRevision, hash(i.Value)}
	}
	l.claim(revision, claim{c.what, func(l *Log) string {
		for _, key := range keys {
			want, exists := l.at(key, revision)
			if got, ok := found[key]; ok != exists || ok && got != want {
				return fmt.Sprintf("read %q at revision %d as %+v (there: %v), but the log has %+v (there: %v)", key, revision, got, ok, want, exists)
			}
		}
		return ""
	}})
}

// applied checks a new entry of the log against the transactions.
func (l *Log) applied(e *entry) {
	last := ""
	for _, ev := range e.events {
		if ev.token == "" || ev.token == last {
			continue
		}
		last = ev.token
		t := l.txns[ev.token]
		switch {
		case t == nil:
			l.fault("%s: nobody wrote %q", e, ev.token)
		case t.seen != 0:
			l.fault("%s: %q took effect twice, at revision %d and here", e, ev.token, t.seen)
		case t.outcome == never:
			l.fault("%s: %q was refused, and took effect", e, ev.token)
		case t.outcome == done && t.revision != e.revision:
			l.fault("%s: %q was acknowledged at revision %d", e, ev.token, t.revision)
		case len(e.events) != len(t.ops):
			l.fault("%s: %q has %d operations", e, ev.token, len(t.ops))
		}
		if t != nil {
			t.seen = e.revision
		}
	}
}

// State is called with all that a server has at a revision. Where no watcher saw the log up to
// there, it begins anew with this state.
func (l *Log) State(what string, revision uint64, items []kv.Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if revision > l.head {
		l.skip(what, revision, items)
		return
	}
	if revision < l.base {
		l.skipped++
		return
	}
	l.ops++
	there := make(map[string]bool, len(items))
	for _, i := range items {
		there[i.Key] = true
		got := version{i.ModRevision, i.CreateRevision, hash(i.Value)}
		if want, exists := l.at(i.Key, revision); !exists || got != want {
			l.fault("%s: %q is %+v at revision %d, but the log has %+v (there: %v)", what, i.Key, got, revision, want, exists)
		}
	}
	for key := range l.keys {
		if want, exists := l.at(key, revision); exists && !there[key] {
			l.fault("%s: %q is missing at revision %d, the log has %+v", what, key, revision, want)
		}
	}
}

// skip begins the log anew. What was acknowledged in the part that no watcher saw must show in the
// state, unless a later transaction has changed it.
func (l *Log) skip(what string, revision uint64, items []kv.Item) {
	for r, claims := range l.claims {
		if r <= revision {
			l.skipped += len(claims)
			delete(l.claims, r)
		}
	}
	from := l.head
	l.restart(revision, items)
	for token, t := range l.txns {
		if t.outcome != done || t.revision <= from || t.revision > revision {
			continue
		}
		for _, op := range t.ops {
			if now, exists := l.at(op.Key, revision); op.Kind == kv.Put && (!exists && !l.fleeting[op.Key] || exists && now.revision < t.revision) {
				l.fault("%s: %q was acknowledged at revision %d, but at %d %q is %+v (there: %v)", what, token, t.revision, revision, op.Key, now, exists)
			}
		}
	}
	for next := l.ahead[l.head+1]; next != nil; next = l.ahead[l.head+1] {
		delete(l.ahead, next.revision)
		l.apply(next)
	}
}
