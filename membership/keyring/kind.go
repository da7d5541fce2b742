package keyring

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
)

// poolKeys are the keys of the pool, as a rollover.Kind.
type poolKeys struct {
	Config

	mu   sync.Mutex
	made map[string]time.Time // when keys were made, by their IDs: a restored backup may not know of the newest
}

// Check notes when the keys were made, also those of another cluster: one that began with a backup
// of that may use them.
func (p *poolKeys) Check(d document) error {
	keys := map[Step]int{AtRest: 1, Add: 2, Use: 2, Remove: 1, Back: 2, Withdraw: 1}
	if keys[d.Step] != len(d.Keys) {
		return fmt.Errorf("%d keys in step %q", len(d.Keys), d.Step)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range d.Keys {
		if !k.Made.IsZero() {
			p.made[k.ID] = k.Made
		}
	}
	return nil
}

// own is the document of keys that this server uses, at rest and not sealed. It tells when they
// were made, as far as this server has heard; zero is with the cluster.
func (p *poolKeys) own(own Ring) document {
	d := document{Envelope: rollover.Envelope{Format: format, Cluster: p.Cluster}, Generation: own.Generation}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range own.Keys {
		d.Keys = append(d.Keys, sealedKey{ID: KeyID(key), Made: p.made[KeyID(key)]})
	}
	return d
}

func (p *poolKeys) Uses() uint64 { return p.Own.Ring().Generation }

// Rebuild gives the keys in use a generation that no server has: others may have newer ones. Agents
// count for nothing here: one that is not what it should be could tell the highest number there is,
// after which there is none.
func (p *poolKeys) Rebuild(older document) (document, error) {
	own := p.Own.Ring()
	d := p.own(own)
	d.Keys = d.Keys[:min(len(d.Keys), 2)]
	if len(d.Keys) == 2 {
		d.Step, d.Began, d.StepBegan = Use, time.Now(), time.Now() // what was under way comes to its end
	}
	d.Generation = max(d.Generation, older.Generation)
	for _, member := range p.Members() {
		if member.Role == pki.RoleServer && member.Barred == "" {
			d.Generation = max(d.Generation, member.Generation)
		}
	}
	d.Generation++
	return p.sealAnew(d, own)
}

func (p *poolKeys) Waiting(d document) []string { return d.holdUp(p.Members(), time.Now()) }

func (p *poolKeys) Next(d document) (document, error) {
	return p.sealAnew(d.next(time.Now()), p.Own.Ring())
}

// sealAnew seals the keys that this server has: the CA's key may be another one than when they
// were.
func (p *poolKeys) sealAnew(d document, own Ring) (document, error) {
	d.Keys = slices.Clone(d.Keys)
	for _, key := range own.Keys {
		i := slices.IndexFunc(d.Keys, func(k sealedKey) bool { return k.ID == KeyID(key) })
		if i < 0 {
			continue
		}
		var err error
		if d.Keys[i], err = p.seal(key, d.Keys[i].Made); err != nil {
			return d, err
		}
	}
	return d, nil
}

// Fetch opens the document's keys.
func (p *poolKeys) Fetch(_ context.Context, d document) (use func() error, err error) {
	keys, err := d.ring(p.Sealer)
	if err != nil {
		return nil, err
	}
	return func() error {
		news, err := p.Own.Install(keys)
		if news {
			p.Logger.Info("gossip keys changed", "generation", d.Generation, "step", d.Step, "keys", d.ids())
		}
		return err
	}, nil
}

func (d document) ids() []string {
	ids := make([]string, len(d.Keys))
	for i, k := range d.Keys {
		ids[i] = k.ID
	}
	return ids
}

// Tidy has nothing to do: a ring that was replaced is gone.
func (p *poolKeys) Tidy() error { return nil }
