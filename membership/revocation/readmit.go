package revocation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/barque/barque/pki"
)

// Reasons why an agent is not let in again.
var (
	ErrNotRevoked = errors.New("its certificates are not revoked")
	ErrKeyUnknown = errors.New("no key of it was recorded; let it join again with a new token")
)

// Readmit takes back the revocation of an agent, for the holder of its recorded key, and those of
// the single certificates that it has in use: with its name in the entry, and one of these serial
// numbers. An agent whose Node was deleted, and that is not revoked yet, goes on with its next
// Node.
func (b *Book) Readmit(ctx context.Context, name string, serials []string, by, why string) (Entry, error) {
	e, err := b.readmit(ctx, name, by, why)
	if err != nil && !errors.Is(err, ErrNotRevoked) {
		return e, err
	}
	lifted, liftErr := b.lift(ctx, name, serials, by, why)
	if liftErr != nil {
		return e, fmt.Errorf("let the certificates of agent %q count again: %w", name, liftErr)
	}
	if lifted {
		err = nil
	}
	return e, err
}

// lift takes back the revocations of single certificates of an agent. By the name alone an earlier
// certificate would count again that was revoked because it was stolen. By the serial number alone
// an agent could claim another's. The records stay: an entry without a record would be put back.
func (b *Book) lift(ctx context.Context, name string, serials []string, by, why string) (lifted bool, err error) {
	records, err := b.Store.Known(ctx, entriesAt)
	if err != nil {
		return false, err
	}
	for _, key := range slices.Sorted(maps.Keys(records)) {
		for ctx.Err() == nil {
			e, at, err := b.read(ctx, key)
			if err != nil {
				b.Logger.Warn("the record of a revocation is passed over", "record", key, "err", err)
				break
			}
			if e == nil || e.Kind != Certificate || e.Readmitted || e.Name != pki.NodeUser+name ||
				!slices.Contains(serials, e.ID) {
				break
			}
			e.Revision, e.Readmitted = max(b.Store.Revision(), e.Revision+1), true
			e.At, e.By, e.Why = b.Now().UTC().Truncate(time.Second), by, why
			change, err := put(*e, at)
			if err != nil {
				return lifted, err
			}
			_, won, err := b.Store.Commit(ctx, 0, change)
			if err != nil {
				return lifted, err
			}
			if won {
				lifted = true
				break
			}
		}
	}
	return lifted, context.Cause(ctx)
}

func (b *Book) readmit(ctx context.Context, name, by, why string) (Entry, error) {
	for ctx.Err() == nil {
		_, known, err := b.Store.Get(ctx, agentsAt+name)
		if err != nil {
			return Entry{}, err
		}
		was, at, err := b.read(ctx, Agent+"/"+name)
		if err != nil {
			return Entry{}, err
		}
		changes := []Change{{Name: agentsAt + name, Revision: known, Value: []byte{}}}
		e := Entry{Kind: Agent, Name: name, By: by, Why: why}
		switch {
		case known > 0: // its Node is to be recorded anew
		case was == nil || was.admits():
			return e, fmt.Errorf("agent %q: %w", name, ErrNotRevoked)
		case was.Key == "":
			return e, fmt.Errorf("agent %q: %w", name, ErrKeyUnknown)
		default:
			_, keyAt, err := b.Store.Get(ctx, keysAt+name)
			if err != nil {
				return e, err
			}
			e = b.entry(Agent, name, by, why)
			e.Revision, e.Key, e.Readmitted = max(e.Revision, was.Revision+1), was.Key, true
			change, err := put(e, at)
			if err != nil {
				return e, err
			}
			changes = append(changes, change, Change{Name: keysAt + name, Revision: keyAt, Value: []byte(e.Key)})
		}
		if _, won, err := b.Store.Commit(ctx, 0, changes...); err != nil || won {
			return e, err
		}
	}
	return Entry{}, context.Cause(ctx)
}

// Proves reports whether a genuine certificate of an agent, by the revision in it, proves a later
// admission than that of the agent's entry. The revision of a Provisional one is not final: a
// server that did not know the entry may have dated a certificate later.
func (l *List) Proves(name string, revision uint64) bool {
	is := l.Entries().byKey[Agent+"/"+name]
	return is != nil && !is.Provisional && !is.admits() && revision > is.Revision
}

// Prove records that a genuine certificate of an agent bears the revision. Certificates are dated
// later than an agent's entry after an admission alone, so a restored backup has lost that one.
// See Proves.
func (b *Book) Prove(ctx context.Context, name string, revision uint64) error {
	for ctx.Err() == nil {
		was, at, err := b.read(ctx, Agent+"/"+name)
		if err != nil || was == nil || was.Provisional || was.admits() || revision <= was.Revision {
			return err
		}
		_, known, err := b.Store.Get(ctx, agentsAt+name)
		if err != nil {
			return err
		}
		was.Proven = revision
		change, err := put(*was, at)
		if err != nil {
			return err
		}
		changes := []Change{change}
		if known == 0 {
			changes = append(changes, Change{Name: agentsAt + name, Value: []byte{}})
		}
		if _, won, err := b.Store.Commit(ctx, 0, changes...); err != nil || won {
			return err
		}
	}
	return context.Cause(ctx)
}
