package datakeys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// kind are the data keys, as a rollover.Kind.
type kind struct {
	Config

	mu        sync.Mutex
	work      work
	counted   counted
	apart     string // why the leader does not list the file that this server has
	refused   string // that file, if it does not decrypt all objects
	refusedAt time.Time
	pause     time.Duration // before the next attempt to clean the disk; 0: the last one has succeeded
}

// work is the leader's work for a generation. A new leader does it anew: it finds less.
type work struct {
	generation uint64
	done       bool   // the step's part of the leader
	floor      uint64 // of Rewrite: the revision up to which history was dropped
	dirty      int    // of Clean: values under other keys
	state      string // the remaining work, for people
}

func (k *kind) worked(generation uint64) work {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.work.generation != generation {
		return work{generation: generation, state: "the leader has not begun yet"}
	}
	return k.work
}

func (k *kind) setWork(w work) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.work = w
}

// Check implements rollover.Kind. A damaged state is never taken for none: its keys would be lost.
func (k *kind) Check(d document) error {
	if d.Generation == 0 {
		return errors.New("it is of no generation")
	}
	return nil
}

// Uses implements rollover.Kind.
func (k *kind) Uses() uint64 { return k.Keys.Generation() }

// Rebuild implements rollover.Kind: a restored backup has brought an older state, or none. Its
// values are under the keys of that, or in clear. They stay readable, and all is rewritten. Keys
// that this server cannot open are kept as they are sealed: their values must not be lost.
func (k *kind) Rebuild(older document) (document, error) {
	own := k.Keys.held()
	if own.Generation == First && older.Generation == 0 {
		return document{Envelope: rollover.Envelope{Format: format}, Generation: First, Resources: DefaultResources()},
			nil
	}
	d := document{Envelope: rollover.Envelope{Format: format}, Resources: own.Resources, Except: own.Except,
		Writes: own.Writes,
		File:   own.File, Labels: own.Labels, Began: k.Now()}
	if len(d.Resources) == 0 {
		d.Resources = DefaultResources()
	}
	for _, held := range own.Keys {
		sealed, err := seal(k.Sealer, held.Key, held.Made)
		if err != nil {
			return d, err
		}
		d.Keys = append(d.Keys, sealed)
	}
	for _, sealed := range older.Keys {
		if _, has := d.key(sealed.ID); !has {
			d.Keys = append(d.Keys, sealed)
		}
	}
	for _, r := range older.Resources {
		if older.Writes != "" { // nothing that is encrypted in the backup comes in clear
			d = d.in(d.scope().Add(r))
		}
	}
	if older.Writes != "" {
		d.Except = slices.DeleteFunc(slices.Clone(d.Except), older.scope().Has)
	}
	d.Generation, d.Floor, d.Cleaned = max(own.Generation, older.Generation), older.Floor, older.Cleaned
	for _, m := range k.servers() {
		d.Generation = max(d.Generation, m.Generation)
	}
	d = d.step(Rewrite)
	return k.sealAnew(d)
}

// servers are the members that keys are for.
func (k *kind) servers() (all []rollover.Member) {
	for _, m := range k.Members() {
		if m.Role == pki.RoleServer && m.Barred == "" {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b rollover.Member) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// behind names the living servers that have not taken over the generation. One that is away takes
// it over before it is ready again.
func (k *kind) behind(generation uint64) (names []string) {
	for _, m := range k.servers() {
		if m.Alive && m.Generation < generation {
			names = append(names, m.Name)
		}
	}
	return names
}

// Waiting implements rollover.Kind.
func (k *kind) Waiting(d document) []string {
	var out []string
	if d.Step.Text() == "" {
		return []string{fmt.Sprintf("the step %q, of a newer Barque: update this server", d.Step)}
	}
	for _, name := range k.behind(d.Generation) {
		out = append(out, "server "+name)
	}
	if len(out) == 0 && (d.Step == Rewrite || d.Step == Clean) { // the leader begins after the servers
		if w := k.worked(d.Generation); !w.done {
			out = append(out, w.state)
		}
	}
	return out
}

// Next implements rollover.Kind.
func (k *kind) Next(d document) (document, error) {
	w := k.worked(d.Generation)
	switch d.Step {
	case Spread:
		d.Writes, d.Next = d.Next, ""
		d = d.step(Rewrite)
	case Rewrite:
		if !w.done {
			return d, errors.New("not all objects are rewritten")
		}
		d = d.step(Clean)
		d.Floor, d.Cleaned = w.floor, d.Generation
	case Clean:
		switch {
		case !w.done:
			return d, errors.New("it is not known whether old keys are in use yet")
		case w.dirty > 0:
			d = d.step(Rewrite) // a backup was restored meanwhile
		default:
			d = d.only().step(AtRest)
		}
	}
	return k.sealAnew(d)
}

// sealAnew seals the keys that this server has with the CA's key of now.
func (k *kind) sealAnew(d document) (document, error) {
	d.Keys = slices.Clone(d.Keys)
	ca := k.Sealer.Digest()
	for i, sealed := range d.Keys {
		if sealed.CA == ca {
			continue
		}
		key, err := k.Keys.open(sealed)
		if err != nil {
			continue // it stays as it is; this server is not ready, and says why
		}
		if d.Keys[i], err = seal(k.Sealer, key, sealed.Made); err != nil {
			return d, err
		}
	}
	return d, nil
}

// Fetch implements rollover.Kind. Each key is in the state itself.
func (k *kind) Fetch(ctx context.Context, d document) (use func() error, err error) {
	if err := k.Keys.note(d); err != nil {
		return nil, err
	}
	before := k.Keys.held()
	next := own{Generation: d.Generation, Resources: d.Resources, Except: d.Except, Writes: d.Writes, File: d.File,
		Labels: d.Labels}
	for _, sealed := range d.Keys {
		key, err := k.Keys.open(sealed)
		if err != nil {
			if needed, unknown := k.Keys.needs(ctx, d, sealed.ID); needed {
				return nil, cmp.Or(unknown, err)
			}
			k.Logger.Warn("this server goes on without a data key, under which no value is", "err", err)
			continue
		}
		next.Keys = append(next.Keys, heldKey{sealed.ID, sealed.Made, key})
	}
	if before.Generation < d.Cleaned {
		if err := k.clean(ctx, d); err != nil {
			return nil, err
		}
	}
	return func() error {
		if err := k.Keys.install(next); err != nil {
			return err
		}
		k.Logger.Info("the state of the data keys has changed", "generation", d.Generation, "step",
			cmp.Or(d.Step, "at rest"), "writes", cmp.Or(d.Writes, "in clear"), "keys", len(d.Keys))
		return nil
	}, nil
}

// pauseMost bounds the time between two attempts to clean a disk. Each writes a snapshot of the
// whole state, also on a disk that is too full for it.
const pauseMost = time.Minute

// clean removes earlier values from this server's disk. After a failure the next attempt waits, and
// longer each time.
func (k *kind) clean(ctx context.Context, d document) error {
	k.mu.Lock()
	pause := k.pause
	k.mu.Unlock()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pause):
	}
	if err := k.awaitTurn(ctx, d.Cleaned); err != nil {
		return err
	}
	err := k.Purge(ctx, d.Floor)
	next := time.Duration(0)
	if err != nil {
		next = min(max(2*pause, retry), pauseMost)
		err = fmt.Errorf("remove earlier values from this server's disk: %w", err)
	}
	k.mu.Lock()
	k.pause = next
	k.mu.Unlock()
	return err
}

// turn is how long a server waits for each of those before it to clean its disk. One that cannot
// keeps the others for no longer.
const turn = time.Minute

// awaitTurn waits until the living servers before this one have cleaned their disks: a server is
// slower meanwhile. They go by their names, and the leader comes last.
func (k *kind) awaitTurn(ctx context.Context, cleaned uint64) error {
	over := time.After(turn * time.Duration(k.ahead(cleaned)))
	for {
		changed := k.Changed()
		if k.ahead(cleaned) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over:
			return nil
		case <-changed:
		case <-time.After(retry): // leadership may have changed
		}
	}
}

// ahead counts the living servers that are to clean their disks before this one, and have not.
func (k *kind) ahead(cleaned uint64) (n int) {
	leader, _ := k.Leader()
	for _, name := range k.behind(cleaned) {
		switch {
		case name == k.Self || name == leader:
		case k.Self == leader || name < k.Self:
			n++
		}
	}
	return n
}

// Tidy has nothing to do: a file that was replaced is gone.
func (k *kind) Tidy() error { return nil }
