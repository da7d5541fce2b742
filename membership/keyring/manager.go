package keyring

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/rollover"
)

// Config of a Manager.
type Config struct {
	rollover.Server
	Own    *Own
	Sealer Sealer
	// Members returns all members of the cluster, those that are away included.
	Members func() []rollover.Member
}

// Manager is a server's part in the rotation of keys.
type Manager struct {
	*rollover.Manager[document]
	keys *poolKeys
}

// New returns a Manager; Run has to be called.
func New(c Config) *Manager {
	keys := &poolKeys{Config: c, made: map[string]time.Time{}}
	about := rollover.About{Name: "the rotation of the gossip keys", Keys: "the gossip keys", Format: format}
	return &Manager{rollover.New(c.Server, about, keys), keys}
}

// Rotate begins a rotation, or tells of the one that is under way; force lets that one go on
// without members that do not follow. It fails with a RefusedError while members are away, unless
// forced. With dryRun it only checks.
func (m *Manager) Rotate(ctx context.Context, force, dryRun bool) error {
	return m.change(ctx, dryRun, func(d document) (document, error) { return m.keys.rotate(d, force) })
}

// Undo takes a rotation that is under way back. It fails with a RefusedError when there is none, or
// it is too late.
func (m *Manager) Undo(ctx context.Context, dryRun bool) error {
	return m.change(ctx, dryRun, func(d document) (document, error) { return d.undo(time.Now()) })
}

func (m *Manager) change(ctx context.Context, dryRun bool, plan func(document) (document, error)) error {
	_, err := m.Change(ctx, func(now document) (document, bool, error) {
		next, err := plan(now)
		if err != nil || dryRun || next.Generation == now.Generation && next.Forced == now.Forced {
			return now, false, err
		}
		next, err = m.keys.sealAnew(next, m.keys.Own.Ring())
		return next, true, err
	})
	return err
}

func (p *poolKeys) rotate(d document, force bool) (document, error) {
	switch {
	case d.Step == Back || d.Step == Withdraw:
		return d, &RefusedError{"the last rotation is being undone; begin another one when that is done"}
	case d.Step != AtRest:
		d.Forced = d.Forced || force // goes on by itself
		return d, nil
	}
	if away := missing(p.Members()); len(away) > 0 && !force {
		return d, &RefusedError{awayText(away)}
	}
	key := make([]byte, KeySize)
	if _, err := rand.Read(key); err != nil {
		return d, err
	}
	now := time.Now()
	sealed, err := p.seal(key, now)
	if err != nil {
		return d, err
	}
	next := d.step(Add, now, d.Keys[0], sealed)
	next.Began, next.Forced = now, force
	return next, nil
}

func awayText(away []rollover.Member) string {
	var names []string
	for _, a := range away {
		names = append(names, fmt.Sprintf("%s (%s)", a.Name, a.State))
	}
	return fmt.Sprintf("not all members are here: %s. They would get the new key when they come back, from a server. "+
		"Start them, or take them out of the cluster; or give --force to go on without them", strings.Join(names, ", "))
}

// Status is where the keys stand, without the keys.
type Status struct {
	Generation uint64            `json:"generation"` // of the cluster; each change of keys has the next one
	Step       Step              `json:"step"`       // empty at rest
	Text       string            `json:"text"`       // the step in words
	Forced     bool              `json:"forced,omitempty"`
	Began      time.Time         `json:"began,omitzero"`
	Keys       []KeyStatus       `json:"keys"`
	Members    []rollover.Member `json:"members"`
	Waiting    []string          `json:"waiting,omitempty"` // living members that have not done the step
	Away       []string          `json:"away,omitempty"`    // members that do not live
}

// KeyStatus is one key.
type KeyStatus struct {
	ID    string    `json:"id"`
	Sends bool      `json:"sends"`         // members send with it; all keys are read
	Made  time.Time `json:"made,omitzero"` // missing: with the cluster
}

// Status reads where the keys stand.
func (m *Manager) Status(ctx context.Context) (Status, error) {
	d, ok, err := m.Current(ctx)
	if err != nil {
		return Status{}, err
	}
	if !ok { // the leader is about to put it right, or no key was ever changed
		d = m.keys.own(m.keys.Own.Ring())
	}
	members := slices.SortedFunc(slices.Values(m.keys.Members()),
		func(a, b rollover.Member) int { return strings.Compare(a.Name, b.Name) })
	s := Status{Generation: d.Generation, Step: d.Step, Text: d.Step.Text(), Forced: d.Forced, Began: d.Began,
		Members: members}
	if d.Step != AtRest {
		s.Waiting = waiting(members, d.Generation)
	}
	for i, k := range d.Keys {
		s.Keys = append(s.Keys, KeyStatus{ID: k.ID, Sends: i == 0, Made: k.Made})
	}
	for _, a := range missing(members) {
		s.Away = append(s.Away, a.Name)
	}
	return s, nil
}
