package revocation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// Change sets or removes one record. See register.Change.
type Change struct {
	Name     string
	Revision uint64
	Value    []byte
}

// Store is the interface of the store.
type Store interface {
	Get(ctx context.Context, name string) (value []byte, revision uint64, err error)
	// Known are the records as this server has them, however old.
	Known(ctx context.Context, under string) (map[string][]byte, error)
	// Commit makes all changes or none; won is false if another write was faster.
	Commit(ctx context.Context, term uint64, changes ...Change) (revision uint64, won bool, err error)
	// Revision returns the revision of this server's state.
	Revision() uint64
}

// Names of records. Entries have their key below entriesAt. Below agentsAt is the UID of the Node
// of each agent, empty between its admission and its Node.
const (
	entriesAt = "entry/"
	agentsAt  = "agent/"
	// keysAt has the digest of the key of each agent.
	keysAt = "key/"
	// ordersAt has, by their IDs, the users by whose order servers are removed, until the entry is
	// recorded.
	ordersAt = "order/"
)

// ErrOtherKey is returned for a certificate of an agent whose recorded key is another one: a thief
// of a CA's key has signed it.
var ErrOtherKey = errors.New(
	"the agent of that name has another key; when the machine was set up anew, let it join again with a new token")

// ErrNoKey is returned for a certificate of an agent without a recorded key while none is learned.
var ErrNoKey = errors.New(
	"the CA is exchanged, and the agent was not seen since it is of this version; let it join again with a new token")

// CheckKey returns ErrOtherKey unless the key, by its digest, is the recorded one of the agent. An
// agent of an earlier version has none: with learn the key is recorded, else ErrNoKey is returned.
func (b *Book) CheckKey(ctx context.Context, name, key string, learn bool) error {
	for ctx.Err() == nil {
		is, revision, err := b.Store.Get(ctx, keysAt+name)
		switch {
		case err != nil:
			return fmt.Errorf("look up the key of agent %q: %w", name, err)
		case revision > 0 && string(is) == key:
			return nil
		case revision > 0:
			return ErrOtherKey
		case !learn:
			return ErrNoKey
		}
		if _, won, err := b.Store.Commit(ctx, 0, Change{Name: keysAt + name, Value: []byte(key)}); err != nil || won {
			return err
		}
	}
	return context.Cause(ctx)
}

// Keys returns the digests of agents' keys, by name, as this server has them.
func (b *Book) Keys(ctx context.Context) (map[string][]byte, error) {
	return b.Store.Known(ctx, keysAt)
}

// Book is the list at one server, and its records in the store.
type Book struct {
	Store Store
	List  *List
	Self  string // this server's name
	// CAs returns the digests of the CAs that are believed.
	CAs func() []string
	// Ends returns the end of the last CA that is believed. No certificate lasts longer.
	Ends   func() time.Time
	Now    func() time.Time
	Logger *slog.Logger
}

func (b *Book) entry(kind, name, by, why string) Entry {
	return Entry{Kind: kind, Name: name, By: by, Why: why, Revision: b.Store.Revision(),
		At: b.Now().UTC().Truncate(time.Second), Until: b.Ends().UTC(), CAs: b.CAs()}
}

// read returns the entry of a record; nil without one.
func (b *Book) read(ctx context.Context, key string) (*Entry, uint64, error) {
	data, revision, err := b.Store.Get(ctx, entriesAt+key)
	if err != nil || revision == 0 {
		return nil, revision, err
	}
	var e Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, revision, fmt.Errorf("the record of the revocation %q: %w", key, err)
	}
	return &e, revision, nil
}

func put(e Entry, revision uint64) (Change, error) {
	data, err := json.Marshal(e)
	return Change{Name: entriesAt + e.key(), Revision: revision, Value: data}, err
}

// RevokeCertificate revokes one certificate of a user, for an operator.
func (b *Book) RevokeCertificate(
	ctx context.Context, serial, name string, until time.Time, by, why string,
) (Entry, error) {
	e := b.entry(Certificate, name, by, why)
	e.ID = serial
	if !until.IsZero() {
		e.Until = until.UTC()
	}
	for ctx.Err() == nil {
		was, revision, err := b.read(ctx, e.key())
		if err != nil {
			return e, err
		}
		switch {
		case was == nil:
		case !was.Readmitted:
			return *was, nil
		default:
			e.Revision = max(e.Revision, was.Revision+1)
		}
		change, err := put(e, revision)
		if err != nil {
			return e, err
		}
		if _, won, err := b.Store.Commit(ctx, 0, change); err != nil || won {
			return e, err
		}
	}
	return e, context.Cause(ctx)
}

// usersLast bounds the lifetime of a user's certificate: the longest that the signer of
// CertificateSigningRequests gives, and a day for clocks.
const usersLast = 366 * 24 * time.Hour

// RevokeUser revokes all certificates of a user, for an operator: those whose requests are gone,
// too. Certificates that are issued after it has returned count.
func (b *Book) RevokeUser(ctx context.Context, name, by, why string) (Entry, error) {
	for ctx.Err() == nil {
		was, at, err := b.read(ctx, userKey(name))
		if err != nil {
			return Entry{}, err
		}
		e := b.entry(User, name, by, why)
		if end := e.At.Add(usersLast); end.Before(e.Until) {
			e.Until = end
		}
		if was != nil {
			e.Revision = max(e.Revision, was.Revision)
		}
		e.Provisional = true
		change, err := put(e, at)
		if err != nil {
			return e, err
		}
		made, won, err := b.Store.Commit(ctx, 0, change)
		if err != nil {
			return e, err
		}
		if won {
			e.Revision, e.Provisional = max(e.Revision, made), false
			_, err = b.voidUpTo(ctx, 0, e, made)
			return e, err
		}
	}
	return Entry{}, context.Cause(ctx)
}

// Admit notes that a machine joins as an agent of the name. key is the digest of its key. If
// another one had the name, or the same one, its earlier certificates are void from now on: copies
// of them included. Certificates that are issued after Admit count, if they are dated with at least
// the revision that it returns.
func (b *Book) Admit(ctx context.Context, name, key string, gossipKey []byte) (revision uint64, err error) {
	for ctx.Err() == nil {
		hadKey, keyAt, err := b.Store.Get(ctx, keysAt+name)
		if err != nil {
			return 0, err
		}
		uid, known, err := b.Store.Get(ctx, agentsAt+name)
		if err != nil {
			return 0, err
		}
		was, at, err := b.read(ctx, Agent+"/"+name)
		if err != nil {
			return 0, err
		}
		if known > 0 && len(uid) == 0 && was != nil && string(hadKey) == key &&
			slices.ContainsFunc(was.Admitted, func(k []byte) bool { return bytes.Equal(k, gossipKey) }) {
			// The machine asks again. Its first request may not have raised the entry yet to the
			// revision of the admission, which is that of the agent's record.
			if was.Revision < known {
				return b.voidUpTo(ctx, 0, *was, at)
			}
			return was.Revision + 1, nil
		}
		changes := []Change{{Name: agentsAt + name, Revision: known, Value: []byte{}},
			{Name: keysAt + name, Revision: keyAt, Value: []byte(key)}}
		var e *Entry
		if known > 0 || was != nil {
			is := b.entry(Agent, name, b.Self, "another machine has joined by the name, or the same one again")
			if e = &is; was != nil {
				e.Revision = max(e.Revision, was.Revision)
			}
			e.Admitted, e.Provisional = [][]byte{gossipKey}, true
			change, err := put(*e, at)
			if err != nil {
				return 0, err
			}
			changes = append(changes, change)
		}
		made, won, err := b.Store.Commit(ctx, 0, changes...)
		if err != nil {
			return 0, err
		}
		if !won {
			continue
		}
		if e == nil {
			return made, nil
		}
		return b.voidUpTo(ctx, 0, *e, made)
	}
	return 0, context.Cause(ctx)
}

// voidUpTo raises the revision of an entry of an agent or user to that at which it was made: a
// server that did not know the entry may have issued certificates until then. It returns the
// revision from which on certificates count.
func (b *Book) voidUpTo(ctx context.Context, term uint64, e Entry, made uint64) (uint64, error) {
	raised, won, err := b.raise(ctx, term, e, made)
	// A faster write is that of a later admission, removal or revocation, or of the leader. It has
	// raised it at least as far, or is raised itself by its writer or by the leader.
	if err == nil && !won {
		raised = max(e.Revision, made) + 1
	}
	return raised, err
}

// raise is the write of voidUpTo. won is false if another write was faster.
func (b *Book) raise(ctx context.Context, term uint64, e Entry, made uint64) (raised uint64, won bool, err error) {
	e.Revision, e.Provisional = max(e.Revision, made), false
	change, err := put(e, made)
	if err != nil {
		return 0, false, err
	}
	return b.Store.Commit(ctx, term, change)
}

// Removed is a server that was taken out of the store for good.
type Removed struct {
	ID, Name, Why string
	At            time.Time
}

// Order notes, before the removal of a server, by whose order it goes.
func (b *Book) Order(ctx context.Context, id, by string) error {
	return b.setOrder(ctx, id, []byte(by))
}

// CancelOrder forgets the order: the server stays.
func (b *Book) CancelOrder(ctx context.Context, id string) error { return b.setOrder(ctx, id, nil) }

func (b *Book) setOrder(ctx context.Context, id string, by []byte) error {
	for ctx.Err() == nil {
		is, revision, err := b.Store.Get(ctx, ordersAt+id)
		if err != nil || bytes.Equal(is, by) {
			return err
		}
		if _, won, err := b.Store.Commit(ctx, 0,
			Change{Name: ordersAt + id, Revision: revision, Value: by}); err != nil || won {
			return err
		}
	}
	return context.Cause(ctx)
}

// Compile makes the list of this server's state: the records, the earlier list, and the servers
// that were removed. isMember reports whether a server of the name is a member of the store.
func (b *Book) Compile(ctx context.Context, removed []Removed, isMember func(name string) bool) error {
	revision := b.Store.Revision()              // first: a version never stands for later records than the list has
	orders, err := b.Store.Known(ctx, ordersAt) // before the records, which replace them
	if err != nil {
		return err
	}
	records, err := b.Store.Known(ctx, entriesAt)
	if err != nil {
		return err
	}
	all := map[string]Entry{}
	take := func(e Entry) {
		if was, ok := all[e.key()]; !ok || was.Revision <= e.Revision {
			all[e.key()] = e
		}
	}
	before := b.List.Entries()
	for _, e := range before.List {
		take(e)
	}
	for _, r := range removed {
		e := Entry{Kind: Server, Name: r.Name, ID: r.ID, At: r.At, Until: b.Ends().UTC(),
			By: cmp.Or(string(orders[r.ID]), b.Self), Why: r.Why}
		if was, ok := all[e.key()]; ok {
			e.By, e.CAs, e.Until = was.By, was.CAs, was.Until
		} else {
			e.CAs = b.CAs()
		}
		take(e)
	}
	for key, data := range records {
		var e Entry
		if err := json.Unmarshal(data, &e); err != nil || e.key() != key {
			b.Logger.Error("the record of a revocation is damaged", "record", key, "err", err)
			continue
		}
		take(e)
	}
	now, believed := b.Now(), b.CAs()
	var list []Entry
	for _, e := range all {
		if e.Kind == Server {
			e.Back = isMember(e.Name)
		}
		if !e.over(now, believed) {
			list = append(list, e)
		}
	}
	next := (&Entries{List: list}).index()
	version := before.Version
	if !next.equal(before) {
		version = max(revision, version+1)
	}
	b.List.Set(version, next.List)
	return nil
}

// missing returns the entries of this server's list that the store has no record of, or an older
// one: a restored backup lacks them, and so does the store after a server was removed.
func (b *Book) missing(ctx context.Context) ([]Entry, error) {
	records, err := b.Store.Known(ctx, entriesAt)
	if err != nil {
		return nil, err
	}
	var out []Entry
	now, believed := b.Now(), b.CAs()
	for _, e := range b.List.Entries().List {
		if e.over(now, believed) {
			continue
		}
		var has Entry
		if data, ok := records[e.key()]; ok && json.Unmarshal(data, &has) == nil && has.Revision >= e.Revision {
			continue
		}
		out = append(out, e)
	}
	return out, nil
}

// over returns the keys of records that are over. Those of servers stay: without its record a
// removed server would come on the list again, with the CAs of now.
func (b *Book) over(ctx context.Context) (keys []string, err error) {
	records, err := b.Store.Known(ctx, entriesAt)
	if err != nil {
		return nil, err
	}
	now, believed := b.Now(), b.CAs()
	for _, key := range slices.Sorted(maps.Keys(records)) {
		var e Entry
		if json.Unmarshal(records[key], &e) == nil && e.Kind != Server && e.over(now, believed) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}
