package revocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Keeper is the leader's work: it revokes the certificates of agents whose Node was deleted, and
// keeps the records in order.
type Keeper struct {
	*Book
	// Nodes returns the UIDs of the member Nodes but those of member servers, by name, once they
	// are synced. Marked reports whether a Node has the label of servers, as that of a former
	// server. A user may label an agent's: that of a recorded agent is one all the same. Marked may
	// be nil.
	Nodes  func() (uids map[string]string, known bool)
	Marked func(name string) bool
	// Node returns the UID of a Node, as the store has it now; empty without one.
	Node func(ctx context.Context, name string) (uid string, err error)
	// Delete deletes the Node of the UID, which a removed agent has made again.
	Delete func(ctx context.Context, name, uid string) error
	// Revoked is called for each agent whose certificates were revoked. It does not block.
	Revoked func(e Entry)
	// Waiting is called for agents that are revoked later, because many are. It does not block.
	Waiting func(names []string)

	// Earlier returns the servers that ran an earlier version last, and those that may. Settled
	// reports whether no CA is exchanged. Without Earlier all are of this version.
	Earlier func(ctx context.Context) (ran, may []string, err error)
	Settled func() bool

	tidied time.Time
	said   time.Time // the last log line about servers of an earlier version
	strays strays

	recent      []time.Time // the revocations of the last minute
	saidWaiting time.Time
}

const (
	// keepEvery is the pause between two looks. A removed agent has its certificate until then.
	keepEvery = time.Second
	// tidyEvery is the pause between two looks for entries that are over or lost.
	tidyEvery = time.Minute
	// revokedPerMinute bounds the agents that are revoked because their Nodes were deleted. Tools
	// delete Nodes, and may delete all by mistake: an operator has the time to stop them.
	revokedPerMinute = 5
	// strayFor is how long the Node of a removed agent stays that its machine has made again.
	strayFor = 30 * time.Second
	// sayAgain is the interval of log lines about one state.
	sayAgain = 10 * time.Minute
)

// Lead works until ctx ends, in the term of the leader.
func (k *Keeper) Lead(ctx context.Context, term uint64) error {
	k.tidied = time.Time{}
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		if err := k.look(ctx, term); err != nil && ctx.Err() == nil {
			k.Logger.Warn("the upkeep of revoked certificates waits", "retryIn", keepEvery, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// plan is the result of a look. note are Nodes to record; gone are agents whose Node is not the
// recorded one.
type plan struct{ note, gone []string }

// decide compares the records of agents with their Nodes. An agent without a recorded UID has
// joined, and has no Node yet.
func decide(records map[string][]byte, nodes map[string]string) (p plan) {
	for name, uid := range records {
		if len(uid) > 0 && nodes[name] != string(uid) {
			p.gone = append(p.gone, name)
		}
	}
	for name := range nodes {
		if uid, known := records[name]; !known || len(uid) == 0 {
			p.note = append(p.note, name)
		}
	}
	slices.Sort(p.note)
	slices.Sort(p.gone)
	return p
}

// look does all that is to be done now. A name that cannot be handled does not hold up the others.
func (k *Keeper) look(ctx context.Context, term uint64) error {
	nodes, known := k.Nodes()
	if !known {
		return nil
	}
	var errs []error
	if err := k.recordServers(ctx, term); err != nil {
		errs = append(errs, fmt.Errorf("record the removal of servers: %w", err))
	}
	if now := k.Now(); now.Sub(k.tidied).Abs() >= tidyEvery {
		if err := k.tidy(ctx, term); err != nil {
			errs = append(errs, err)
		} else {
			k.tidied = now
		}
	}
	if judges, err := k.judges(ctx, term); !judges {
		return errors.Join(append(errs, err)...)
	}
	records, err := k.Store.Known(ctx, agentsAt)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	p := decide(records, nodes)
	if k.tidied.IsZero() {
		p.note = nil // lost entries come first: by them a Node is one of an agent that joined again
	}
	for _, name := range p.note {
		if _, recorded := records[name]; !recorded && k.Marked != nil && k.Marked(name) {
			continue
		}
		if err := k.note(ctx, term, name, nodes[name]); err != nil {
			errs = append(errs, fmt.Errorf("note the Node of agent %q: %w", name, err))
		}
	}
	var waiting []string
	for _, name := range p.gone {
		if !k.mayRevoke() {
			waiting = append(waiting, name)
			continue
		}
		if err := k.revoke(ctx, term, name); err != nil {
			errs = append(errs, fmt.Errorf("revoke the certificates of agent %q: %w", name, err))
		}
	}
	k.sayWaiting(waiting)
	k.strays.keep(nodes)
	return errors.Join(errs...)
}

// mayRevoke reports whether fewer agents than the most were revoked in the last minute.
func (k *Keeper) mayRevoke() bool {
	now := k.Now()
	k.recent = slices.DeleteFunc(k.recent, func(at time.Time) bool { return now.Sub(at).Abs() >= time.Minute })
	return len(k.recent) < revokedPerMinute
}

// sayWaiting reports the agents whose revocation waits, once a minute.
func (k *Keeper) sayWaiting(names []string) {
	if now := k.Now(); len(names) > 0 && now.Sub(k.saidWaiting).Abs() >= time.Minute {
		k.saidWaiting = now
		k.Logger.Warn(
			"many agents' Nodes were deleted; the certificates of some are revoked later; when the deletion was a mistake, let agents in again with `barque cert readmit NODE`",
			"waiting", len(names), "first", names[0], "perMinute", revokedPerMinute)
		k.Waiting(names)
	}
}

// strays are the Nodes that removed agents seem to have made again, with the time at which they
// were seen first.
type strays map[string]time.Time

// due reports whether a stray has been there for so long that a later admission, if the store has
// lost one, would have been proven by a call of its machine.
func (s *strays) due(uid string, now time.Time) bool {
	if *s == nil {
		*s = strays{}
	}
	since, ok := (*s)[uid]
	if !ok {
		(*s)[uid] = now
		return false
	}
	return now.Sub(since).Abs() >= strayFor
}

// keep forgets the strays that are gone.
func (s *strays) keep(nodes map[string]string) {
	is := map[string]bool{}
	for _, uid := range nodes {
		is[uid] = true
	}
	maps.DeleteFunc(*s, func(uid string, _ time.Time) bool { return !is[uid] })
}

// note records the Node of an agent. The revoked certificates of a removed one make no Node that
// counts. The Nodes that this server has seen may be older than the record, so the store decides:
// the record is read, then the Node, and the write demands that the record is still the same.
func (k *Keeper) note(ctx context.Context, term uint64, name, uid string) error {
	recorded, revision, err := k.Store.Get(ctx, agentsAt+name)
	if err != nil || len(recorded) > 0 {
		return err
	}
	if is, err := k.Node(ctx, name); err != nil || is != uid {
		return err
	}
	if revision == 0 {
		// After a removal only Admit makes the record again.
		was, _, err := k.read(ctx, Agent+"/"+name)
		if err != nil {
			return err
		}
		if was != nil && !was.admits() {
			if !k.strays.due(uid, k.Now()) {
				return nil
			}
			return k.deleteStray(ctx, name, uid)
		}
	}
	_, _, err = k.Store.Commit(ctx, term, Change{Name: agentsAt + name, Revision: revision, Value: []byte(uid)})
	return err
}

// deleteStray deletes the Node that a removed agent has made again, if the store has it yet. The
// records are read directly before: an operator may have let the agent in again.
func (k *Keeper) deleteStray(ctx context.Context, name, uid string) error {
	if is, err := k.Node(ctx, name); err != nil || is != uid {
		return err
	}
	if _, known, err := k.Store.Get(ctx, agentsAt+name); err != nil || known > 0 {
		return err
	}
	if was, _, err := k.read(ctx, Agent+"/"+name); err != nil || was == nil || was.admits() {
		return err
	}
	k.Logger.Warn("the Node of a removed agent is deleted: it was made after the removal", "node", name)
	return k.Delete(ctx, name, uid)
}

// revoke revokes the certificates of an agent whose recorded Node is gone. The store decides as in
// note. A restored backup brings records and Nodes of one moment.
func (k *Keeper) revoke(ctx context.Context, term uint64, name string) error {
	recorded, revision, err := k.Store.Get(ctx, agentsAt+name)
	if err != nil || revision == 0 || len(recorded) == 0 {
		return err
	}
	uid, err := k.Node(ctx, name)
	if err != nil || uid == string(recorded) {
		return err
	}
	was, at, err := k.read(ctx, Agent+"/"+name)
	if err != nil {
		return err
	}
	key, keyAt, err := k.Store.Get(ctx, keysAt+name)
	if err != nil {
		return err
	}
	e := k.entry(Agent, name, k.Self, "its Node was deleted")
	e.Key, e.Provisional = string(key), true
	if was != nil {
		e.Revision = max(e.Revision, was.Revision)
	}
	change, err := put(e, at)
	if err != nil {
		return err
	}
	changes := []Change{change, {Name: agentsAt + name, Revision: revision}}
	if keyAt > 0 {
		changes = append(changes, Change{Name: keysAt + name, Revision: keyAt})
	}
	made, won, err := k.Store.Commit(ctx, term, changes...)
	if err != nil {
		k.tidied = time.Time{} // the write may have been made: the next look finishes it
		return err
	}
	if !won {
		return nil
	}
	if err := k.finish(ctx, term, e, made); err != nil {
		k.tidied = time.Time{}
		return err
	}
	if uid == "" {
		return nil
	}
	return k.deleteStray(ctx, name, uid)
}

// finish makes an entry final that was made at the revision. It reports the removal of an agent,
// so that one whose leader failed between its writes is reported, too. A faster write may be final,
// as that of an admission is in the end, and then the removal is over.
func (k *Keeper) finish(ctx context.Context, term uint64, e Entry, made uint64) error {
	for {
		_, won, err := k.raise(ctx, term, e, made)
		if err != nil {
			return err
		}
		if won {
			break
		}
		is, at, err := k.read(ctx, e.key())
		if err != nil || is == nil || !is.Provisional {
			return err
		}
		e, made = *is, at
	}
	if e.Kind == Agent && !e.admits() {
		e.Revision, e.Provisional = max(e.Revision, made), false
		k.recent = append(k.recent, k.Now())
		k.Revoked(e)
	}
	return nil
}

// finishAll makes the entries final whose writers have failed.
func (k *Keeper) finishAll(ctx context.Context, term uint64) error {
	records, err := k.Store.Known(ctx, entriesAt)
	if err != nil {
		return err
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(records)) {
		var known Entry
		if json.Unmarshal(records[key], &known) != nil || !known.Provisional {
			continue
		}
		e, at, err := k.read(ctx, key)
		if err == nil && e != nil && e.Provisional {
			err = k.finish(ctx, term, *e, at)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("finish the revocation %q: %w", key, err))
		}
	}
	return errors.Join(errs...)
}

// tidy finishes entries, drops records that are over, and writes those that a restored backup has
// lost.
func (k *Keeper) tidy(ctx context.Context, term uint64) error {
	errs := []error{k.finishAll(ctx, term)}
	keys, err := k.over(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, key := range keys {
		_, revision, err := k.Store.Get(ctx, entriesAt+key)
		if err == nil && revision > 0 {
			_, _, err = k.Store.Commit(ctx, term, Change{Name: entriesAt + key, Revision: revision})
		}
		errs = append(errs, err)
	}
	lost, err := k.missing(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, e := range lost {
		if e.Kind != Server { // see recordServers
			if e.admits() { // certificates have been issued since its own revision
				e.Provisional = false
			}
			errs = append(errs, k.putBack(ctx, term, e))
		}
	}
	return errors.Join(errs...)
}

// recordServers writes a record for each removed server. It does not wait for tidy: an exchange of
// the CA after a theft takes seconds, and the record has the CAs from before.
func (k *Keeper) recordServers(ctx context.Context, term uint64) error {
	lost, err := k.missing(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range lost {
		if e.Kind != Server {
			continue
		}
		e.Back = false // Compile sets it
		won, err := k.record(ctx, term, e)
		if won {
			k.Logger.Info("the removal of a server is among the records of revocations", "name", e.Name, "id", e.ID)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// record writes an entry unless its record is as new, also in place of a damaged one.
func (k *Keeper) record(ctx context.Context, term uint64, e Entry) (won bool, err error) {
	data, revision, err := k.Store.Get(ctx, entriesAt+e.key())
	if err != nil {
		return false, err
	}
	var has Entry
	if json.Unmarshal(data, &has) == nil && has.Revision >= e.Revision {
		return false, nil
	}
	change, err := put(e, revision)
	if err != nil {
		return false, err
	}
	changes := []Change{change}
	if _, at, err := k.Store.Get(ctx, ordersAt+e.ID); e.Kind == Server && err == nil && at > 0 {
		changes = append(changes, Change{Name: ordersAt + e.ID, Revision: at}) // the entry has it
	}
	_, won, err = k.Store.Commit(ctx, term, changes...)
	return won, err
}

// putBack writes an entry that the store has lost.
func (k *Keeper) putBack(ctx context.Context, term uint64, e Entry) error {
	won, err := k.record(ctx, term, e)
	if won {
		k.Logger.Warn("a revocation that the store had lost is in it again, as after a restored backup", "kind", e.Kind,
			"name", e.Name, "id", e.ID)
	}
	return err
}
