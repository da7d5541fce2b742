package datakeys

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/trouble"
	"github.com/barque/barque/membership/rollover"
)

// Config of a Manager.
type Config struct {
	rollover.Server
	Keys   *Keys
	Sealer Sealer
	// Members returns all members of the cluster, those that are away included.
	Members func() []rollover.Member
	// Objects reads and rewrites the objects in the store.
	Objects Objects
	// Purge removes from this server's disk the values of revisions up to the floor that the state
	// of the store does not have any more.
	Purge func(ctx context.Context, floor uint64) error
	Now   func() time.Time
	// File is the file of providers of this server. It is nil where there can be none.
	File File
	// Self is this server's name, and Leader returns that of the leader in its view.
	Self   string
	Leader func() (name string, known bool)
}

// Objects are the objects in the store.
type Objects interface {
	// Rewrite brings each object into the form of the Epoch, in the term, and only while the state
	// of the keys is that one. It returns when none is left in another form. report gets how many
	// are left.
	Rewrite(ctx context.Context, term uint64, e *Epoch, report func(left int)) error
	// Count counts the values by the Epoch.
	Count(ctx context.Context, e *Epoch) (Counts, error)
	// Left returns how many objects are not as Rewrite leaves them.
	Left(ctx context.Context, e *Epoch) (int, error)
	// Readable returns why this server cannot read values that files of providers have encrypted.
	Readable(ctx context.Context) (cannot, err error)
	// DropHistory drops the history of the store, and returns the revision up to which that is.
	DropHistory(ctx context.Context) (floor uint64, err error)
}

// Counts are those of stored values.
type Counts struct {
	// Under has how many there are by the IDs of keys, and by the labels of those of a file.
	Under map[string]int
	Clear int // are in clear, and are to be encrypted
	Other int // would be written in another way now
}

// Manager is a server's part in changes of the keys.
type Manager struct {
	*rollover.Manager[document]
	kind *kind
}

// New returns a Manager; Run has to be called.
func New(c Config) *Manager {
	c.Server.Cluster = "" // see document
	c.Server.Store = tapped{c.Server.Store, c.Keys, c.Logger}
	k := &kind{Config: c}
	about := rollover.About{Name: "the change of the data keys", Keys: "the data keys", Format: fileFormat,
		Oldest: format, First: First, Kept: true}
	return &Manager{rollover.New(c.Server, about, k), k}
}

// tapped is a store whose changes the Keys learn first.
type tapped struct {
	rollover.Store
	keys   *Keys
	logger *slog.Logger
}

// Follow implements rollover.Store.
func (t tapped) Follow(ctx context.Context, f func(value []byte, revision uint64)) error {
	return t.Store.Follow(ctx, func(value []byte, revision uint64) {
		_, _ = t.keys.learn(ctx, false) // a write that goes by an older state is refused, and learns it
		if err := t.note(value); err != nil {
			t.logger.Warn("a version that cannot read encrypted objects may start in this data directory", "err", err)
		}
		f(value, revision)
	})
}

// note notes whether there are keys as soon as the state is in this server's store. Fetch does it,
// too, and fails if it cannot. A state that cannot be read leaves the note as it is.
func (t tapped) note(value []byte) (err error) {
	var d document
	if len(value) > 0 {
		if d, err = parse(value); err != nil {
			return nil // the Manager says so
		}
	}
	return t.keys.note(d)
}

// Begin writes the state of a new cluster, in which the default resources are encrypted from the
// first object on. It does nothing if there is a state.
func Begin(ctx context.Context, store rollover.Store, s Sealer, now time.Time) error {
	value, revision, err := store.Get(ctx)
	if err != nil || len(value) > 0 {
		return err
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	sealed, err := seal(s, key, now)
	if err != nil {
		return err
	}
	d := document{Envelope: rollover.Envelope{Format: format}, Generation: First + 1, Resources: DefaultResources(),
		Writes: sealed.ID, Keys: []sealedKey{sealed}}
	if value, err = json.Marshal(d); err != nil {
		return err
	}
	return store.Put(ctx, value, revision, 0)
}

// RefusedError is returned when something would do harm or makes no sense. Nothing was changed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refuse(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// Change is a change that an operator may ask for.
type Change string

// Changes.
const (
	Enable  Change = "enable"  // encrypt the resources
	Disable Change = "disable" // decrypt all
	Rotate  Change = "rotate"  // use a new key
	Renew   Change = "rewrite" // write each object anew, and clean the disks
)

// Order is a change with its parameters. Resources are named as schema.GroupResource names them.
type Order struct {
	Change Change
	// Add are the resources that Enable encrypts besides the encrypted ones; Drop are those that
	// it decrypts.
	Add, Drop []string
	DryRun    bool // only check
}

// Apply begins a change, on whichever server. It fails with a RefusedError.
func (m *Manager) Apply(ctx context.Context, o Order) error {
	_, err := m.Change(ctx, func(now document) (document, bool, error) {
		next, err := m.kind.plan(now, o)
		if err != nil || o.DryRun || next.Generation == now.Generation {
			return now, false, err
		}
		return next, true, nil
	})
	return err
}

// plan returns the document that begins a change. The generation stays if there is nothing to do.
func (k *kind) plan(d document, o Order) (document, error) {
	if d.Step != AtRest { // first: during a change, servers are behind for a moment
		return d,
			refuse(
				"a change of the data keys is under way (%s). It goes on by itself; `barque secrets-encrypt status` shows how far it is", d.Step.Text())
	}
	if d.Generation > k.Keys.Generation() {
		return d,
			refuse(
				"this server has not taken over the last state of the data keys yet: try again, or at another server")
	}
	if err := k.agrees(d, o.Change); err != nil {
		return d, err
	}
	if o.Change == Enable || d.Writes == "" {
		if old := k.unfit(); len(old) > 0 {
			return d,
				refuse(
					"every server must run, and be of this version: one of an earlier version could not read encrypted objects. "+
						"Start or upgrade these, or take them out of the cluster: %s", strings.Join(old, ", "))
		}
	}
	d.Began = k.Now()
	switch o.Change {
	case Enable:
		return k.enable(d, o.Add, o.Drop)
	case Rotate:
		if d.Writes == "" {
			return d, refuse("nothing is encrypted: begin with `barque secrets-encrypt enable`")
		}
		return k.withNewKey(d)
	case Disable:
		if d.Writes == "" {
			return d, nil
		}
		d.Writes = ""
		d = d.in(d.scope().Named()) // an earlier version, to which this is the way, knows no wildcards
		if len(d.Resources) == 0 {
			d.Resources = DefaultResources()
		}
		return k.sealAnew(d.step(Rewrite))
	case Renew:
		return k.sealAnew(d.step(Rewrite))
	}
	return d, refuse("there is no change %q of the data keys", o.Change)
}

// enable encrypts the resources that are in the state and those to add, and decrypts those to drop.
func (k *kind) enable(d document, add, drop []string) (document, error) {
	for _, r := range drop {
		switch {
		case slices.Contains(add, r):
			return d, refuse("%s cannot be encrypted and decrypted at once", r)
		case !d.scope().Has(r):
			return d, refuse("%s is not among the resources that are encrypted: %s", r, strings.Join(d.Resources, ", "))
		case k.encryptedByFile(d, r):
			return d,
				refuse(
					"the file of providers that is in use encrypts %s: give all servers a file that does not name it any more, or has identity first for it, and begin with `barque secrets-encrypt rewrite`", r)
		}
	}
	resources := d.scope()
	for _, r := range add {
		resources = resources.Add(r)
	}
	for _, r := range drop {
		resources = resources.Drop(r)
	}
	switch {
	case len(resources.Names) == 0:
		return d, refuse("no resource would be left: `barque secrets-encrypt disable` decrypts all")
	case d.Writes == "":
		return k.withNewKey(d.in(resources))
	case equal(d.Resources, resources.Names) && equal(d.Except, resources.Except):
		return d, nil
	}
	d.Next = d.Writes
	return k.sealAnew(d.in(resources).step(Spread))
}

// withNewKey begins to make a new key known.
func (k *kind) withNewKey(d document) (document, error) {
	key, err := newKey()
	if err != nil {
		return d, err
	}
	sealed, err := seal(k.Sealer, key, k.Now())
	if err != nil {
		return d, err
	}
	d.Keys, d.Next = append(slices.Clone(d.Keys), sealed), sealed.ID
	return k.sealAnew(d.step(Spread))
}

// unfit names the servers that are away, or of a version that cannot read encrypted objects.
func (k *kind) unfit() (names []string) {
	for _, m := range k.servers() {
		switch {
		case !m.Alive:
			names = append(names, fmt.Sprintf("%s (%s)", m.Name, m.State))
		case m.Generation < First:
			names = append(names, m.Name+" (an earlier version)")
		}
	}
	return names
}

// Earlier names the servers of a version from before data keys, and those whose version is unknown.
func (m *Manager) Earlier() (names []string) {
	for _, is := range m.kind.servers() {
		if is.Generation < First {
			names = append(names, is.Name)
		}
	}
	return names
}

// Encrypts reports whether objects are encrypted, or may be soon, by the newest state.
func (m *Manager) Encrypts(ctx context.Context) (bool, error) {
	d, _, _, err := m.kind.Keys.look(ctx, true)
	return len(d.Keys) > 0, err
}

// patience bounds how long this server's own store is waited for.
const patience = 5 * time.Second

// SealedBy reports whether the state in this server's store can be opened with the key of the CA of
// that digest. One without keys can. It is the newest state if this server leads.
func (m *Manager) SealedBy(digest string) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, _, _, err := m.kind.Keys.look(ctx, false)
	return err == nil && d.sealedBy(digest), err
}

func (d document) sealedBy(digest string) bool {
	return !slices.ContainsFunc(d.Keys, func(s sealedKey) bool { return s.CA != digest })
}

// retry is the time until a failed step is tried again.
const retry = 2 * time.Second

// Lead does the leader's part in the term, until ctx ends.
func (m *Manager) Lead(ctx context.Context, term uint64) error {
	m.kind.setWork(work{})
	defer m.kind.setApart(nil, "")
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { m.work(ctx, term) }) // ends with ctx
	return m.Manager.Lead(ctx, term)
}

// work rewrites objects and seals keys anew, when it is time.
func (m *Manager) work(ctx context.Context, term uint64) {
	var failing trouble.Trouble
	for ctx.Err() == nil {
		d, current, _ := m.Seen()
		err := m.workOn(ctx, d, term)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failing.Over() // the Manager says how the change goes on
		} else if tries, tell := failing.Failed(err); tell {
			m.Logger.Warn("the leader's part in the change of the data keys fails; trying again", "step",
				cmp.Or(d.Step, "at rest"),
				"generation", d.Generation, "tries", tries, "retryIn", retry, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-current.Done():
		case <-time.After(retry):
		}
	}
}

func (m *Manager) workOn(ctx context.Context, d document, term uint64) error {
	if err := m.reseal(ctx, d, term); err != nil {
		return err
	}
	k := m.kind
	if listed, err := m.list(ctx, d, term); listed || err != nil {
		return err
	}
	if d.Step != Rewrite && d.Step != Clean || k.worked(d.Generation).done || len(k.behind(d.Generation)) > 0 {
		return nil
	}
	w, err := k.perform(ctx, d, term)
	if err != nil {
		k.setWork(work{generation: d.Generation, state: err.Error()})
		return err
	}
	k.setWork(w)
	return nil
}

// perform does the leader's part of a step.
func (k *kind) perform(ctx context.Context, d document, term uint64) (work, error) {
	w := work{generation: d.Generation}
	if err := k.settled(ctx, d); err != nil {
		return w, err
	}
	if err := k.Keys.Renew(ctx); err != nil {
		return w, err
	}
	e, err := k.Keys.Epoch(ctx)
	if err != nil {
		return w, err
	}
	if is := d.epoch(e.Revision); !reflect.DeepEqual(*e, is) {
		return w, errors.New("the state of the data keys has just changed")
	}
	if d.Step == Clean {
		w.dirty, err = k.Objects.Left(ctx, e)
		if err == nil {
			err = k.settled(ctx, d)
		}
		w.done = err == nil
		return w, err
	}
	err = k.Objects.Rewrite(ctx, term, e, func(left int) {
		state := fmt.Sprintf("%d objects are left to rewrite", left)
		if left == 0 {
			state = "the leader drops the history of the store"
		}
		k.setWork(work{generation: d.Generation, state: state})
	})
	if err == nil {
		err = k.settled(ctx, d) // again: a plugin may have got another key meanwhile
	}
	if err == nil {
		w.floor, err = k.Objects.DropHistory(ctx)
	}
	w.done = err == nil
	return w, err
}

// reseal seals the keys in the store with the key of the CA of now: those of former CAs go.
func (m *Manager) reseal(ctx context.Context, d document, term uint64) error {
	if d.sealedBy(m.kind.Sealer.Digest()) {
		return nil
	}
	value, revision, err := m.Store.Get(ctx)
	if err != nil {
		return err
	}
	if len(value) == 0 {
		return nil // a restored backup has none
	}
	now, err := parse(value)
	if err != nil {
		return err
	}
	next, err := m.kind.sealAnew(now)
	if err != nil || slices.EqualFunc(next.Keys, now.Keys, func(a, b sealedKey) bool { return a.CA == b.CA }) {
		return err
	}
	if value, err = json.Marshal(next); err != nil {
		return err
	}
	if err := m.Store.Put(ctx, value, revision, term); err != nil {
		return err
	}
	m.Logger.Info("the data keys are sealed with the key of the new CA", "ca", m.kind.Sealer.Digest())
	return nil
}
