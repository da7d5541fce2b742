package keyring

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/trouble"
)

// Store keeps one value for all servers.
type Store interface {
	// Get returns the newest value and the revision of its last change; 0 is no value.
	Get(ctx context.Context) (value []byte, revision uint64, err error)
	// Put sets the value if its revision is still the one given, and, unless term is 0, only while
	// that term of the leader lasts. It fails with ErrConflict when somebody else was faster.
	Put(ctx context.Context, value []byte, revision, term uint64) error
	// Follow calls f with the value that this server has, and then after each change, until ctx
	// ends.
	Follow(ctx context.Context, f func(value []byte, revision uint64)) error
}

// ErrConflict is returned by Store.Put when the value is not what the caller has seen.
var ErrConflict = errors.New("the gossip keys were changed at the same time by somebody else; look with `barque cluster keys list`")

// Config of a Manager.
type Config struct {
	ClusterID string
	Store     Store
	Own       *Own
	Sealer    Sealer
	// Members returns all members of the cluster, those that are away included; Changed a channel
	// that is closed at the next change of them.
	Members func() []Member
	Changed func() <-chan struct{}
	Logger  *slog.Logger
	Now     func() time.Time // time.Now when nil
}

// Manager is a server's part in the rotation of keys.
type Manager struct {
	config Config

	mu      sync.Mutex
	newest  *document            // as this server's store has it
	made    map[string]time.Time // when keys were made, by their IDs: a restored backup may not know of the newest
	changed chan struct{}        // closed and replaced when newest is another one

	installing trouble.Trouble
}

// New returns a Manager; Run has to be called.
func New(c Config) *Manager {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Manager{config: c, newest: &document{}, made: map[string]time.Time{}, changed: make(chan struct{})}
}

// retryEvery is how soon what failed is tried again.
const retryEvery = 5 * time.Second

// Run installs the keys that the store has, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var retrying sync.WaitGroup
	defer retrying.Wait()
	retrying.Go(func() { m.retry(ctx) })
	return m.config.Store.Follow(ctx, func(value []byte, revision uint64) {
		d, err := m.decode(value, revision)
		if err != nil {
			m.config.Logger.Warn("gossip keys in the store are not used", "reason", err)
			if !repairable(err) {
				return
			}
		}
		m.mu.Lock()
		m.newest = d
		close(m.changed)
		m.changed = make(chan struct{})
		m.mu.Unlock()
		m.install(d)
	})
}

// retry installs what could not be installed when it came: the disk may have been full.
func (m *Manager) retry(ctx context.Context) {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d, _ := m.latest()
			m.install(d)
		}
	}
}

func (m *Manager) latest() (*document, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newest, m.changed
}

func (m *Manager) install(d *document) {
	if d.Generation <= m.config.Own.Ring().Generation {
		return
	}
	ring, err := d.ring(m.config.Sealer)
	if err == nil {
		_, err = m.config.Own.Install(ring)
	}
	if err != nil {
		if _, tell := m.installing.Failed(err); tell {
			m.config.Logger.Warn("gossip keys of the cluster are not in use here; it is tried again", "generation", d.Generation, "every", retryEvery, "err", err)
		}
		return
	}
	m.installing.Over()
	m.config.Logger.Info("gossip keys changed", "generation", d.Generation, "step", d.Step, "keys", d.ids())
}

func (d *document) ids() []string {
	ids := make([]string, len(d.Keys))
	for i, k := range d.Keys {
		ids[i] = k.ID
	}
	return ids
}

// Drive moves rotations on while this server leads: until ctx, which is that of the term, ends.
func (m *Manager) Drive(ctx context.Context, term uint64) error {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	var driving trouble.Trouble
	for {
		members := m.config.Changed()
		_, document := m.latest()
		if err := m.drive(ctx, term); err == nil {
			if past, was := driving.Over(); was {
				m.config.Logger.Info("the rotation of the gossip keys goes on again", "after", time.Since(past.Since).Round(time.Second))
			}
		} else if ctx.Err() == nil {
			if _, tell := driving.Failed(err); tell {
				m.config.Logger.Warn("the rotation of the gossip keys does not go on; it is tried again", "every", retryEvery, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-members:
		case <-document:
		case <-ticker.C:
		}
	}
}

// drive makes one step, if one is to be made. What this server's own store has is enough to see
// that there is none: the leader has all that was acknowledged.
func (m *Manager) drive(ctx context.Context, term uint64) error {
	d, _ := m.latest()
	if !m.behind(d) && (d.Step == AtRest || d.advance(m.config.Members(), m.config.Now()) == nil) {
		return nil
	}
	d, err := m.read(ctx)
	if err != nil && !repairable(err) {
		return err
	}
	next := d.advance(m.config.Members(), m.config.Now())
	if err != nil || m.behind(d) {
		if next, err = m.repair(d); err != nil {
			return err
		}
	}
	if next == nil {
		return nil
	}
	if err := m.write(ctx, next, term); err != nil {
		return err
	}
	m.config.Logger.Info("rotation of the gossip keys", "step", next.Step, "what", next.Step.Text(), "generation", next.Generation)
	return nil
}

// behind tells that the members have newer keys than the document: a backup was restored.
func (m *Manager) behind(d *document) bool { return d.Generation < m.config.Own.Ring().Generation }

// repair makes a document out of the keys that this server uses.
func (m *Manager) repair(d *document) (*document, error) {
	own := m.config.Own.Ring()
	next := &document{Cluster: m.config.ClusterID, Generation: m.newestGeneration(d) + 1, revision: d.revision}
	keys := own.Keys[:min(len(own.Keys), 2)]
	if len(keys) == 2 {
		next.Step, next.Began, next.StepBegan = Use, m.config.Now(), m.config.Now() // what was under way comes to its end
	}
	for _, key := range keys {
		sealed, err := seal(m.config.Sealer, m.config.ClusterID, key, m.madeAt(key))
		if err != nil {
			return nil, err
		}
		next.Keys = append(next.Keys, sealed)
	}
	return next, nil
}

// newestGeneration is the highest that any server is known to have. Agents count for nothing here:
// one that is not what it should be could tell the highest number there is, after which there is
// none.
func (m *Manager) newestGeneration(d *document) uint64 {
	newest := max(d.Generation, m.config.Own.Ring().Generation)
	for _, member := range m.config.Members() {
		if member.Role == "server" && member.Barred == "" {
			newest = max(newest, member.Generation)
		}
	}
	return newest
}

func (m *Manager) read(ctx context.Context) (*document, error) {
	value, revision, err := m.config.Store.Get(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the state of the gossip keys: %w", err)
	}
	return m.decode(value, revision)
}

// decode reads a document, and notes when its keys were made.
func (m *Manager) decode(value []byte, revision uint64) (*document, error) {
	d, err := decode(value, revision, m.config.ClusterID)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range slices.Concat(d.Keys, d.foreign) {
		if !k.Made.IsZero() {
			m.made[k.ID] = k.Made
		}
	}
	return d, err
}

// madeAt returns when the key was made, as far as this server has heard; zero is with the cluster.
func (m *Manager) madeAt(key []byte) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made[KeyID(key)]
}

// write seals the keys anew, where this server has them: the CA's key may be another one than when
// they were.
func (m *Manager) write(ctx context.Context, d *document, term uint64) error {
	d.Keys = slices.Clone(d.Keys)
	for _, key := range m.config.Own.Ring().Keys {
		i := slices.IndexFunc(d.Keys, func(k sealedKey) bool { return k.ID == KeyID(key) })
		if i < 0 {
			continue
		}
		var err error
		if d.Keys[i], err = seal(m.config.Sealer, d.Cluster, key, d.Keys[i].Made); err != nil {
			return err
		}
	}
	value, err := d.encode()
	if err != nil {
		return err
	}
	if err := m.config.Store.Put(ctx, value, d.revision, term); err != nil {
		return fmt.Errorf("write the state of the gossip keys: %w", err)
	}
	return nil
}

// current is the document to begin from: that in the store, or one of the keys in use when the
// store has none, or one that does not count.
func (m *Manager) current(ctx context.Context) (*document, error) {
	d, err := m.read(ctx)
	if err != nil && !repairable(err) {
		return nil, err
	}
	if err == nil && d.revision != 0 && !m.behind(d) {
		return d, nil
	}
	return m.repair(d)
}

// Rotate begins a rotation, or tells of the one that is under way; force lets that one go on
// without members that do not follow. It fails with a RefusedError while members are away, unless
// forced. With dryRun it only checks.
func (m *Manager) Rotate(ctx context.Context, force, dryRun bool) error {
	d, err := m.current(ctx)
	if err != nil {
		return err
	}
	now, next := m.config.Now(), *d
	switch {
	case d.Step == Back || d.Step == Withdraw:
		return &RefusedError{"the last rotation is being undone; begin another one when that is done"}
	case d.Step != AtRest && (d.Forced || !force):
		return nil // goes on by itself
	case d.Step != AtRest:
		next.Forced = true
	default:
		if away := missing(m.config.Members()); len(away) > 0 && !force {
			return &RefusedError{awayText(away)}
		}
		key := make([]byte, KeySize)
		if _, err := rand.Read(key); err != nil {
			return err
		}
		sealed, err := seal(m.config.Sealer, m.config.ClusterID, key, now)
		if err != nil {
			return err
		}
		next = *d.step(Add, now, d.Keys[0], sealed)
		next.Began, next.Forced = now, force
	}
	if dryRun {
		return nil
	}
	return m.write(ctx, &next, 0)
}

func awayText(away []Member) string {
	var names []string
	for _, a := range away {
		names = append(names, fmt.Sprintf("%s (%s)", a.Name, a.State))
	}
	return fmt.Sprintf("not all members are here: %s. They would get the new key when they come back, from a server. "+
		"Start them, or take them out of the cluster; or give --force to go on without them", strings.Join(names, ", "))
}

// Undo takes a rotation that is under way back. It fails with a RefusedError when there is none, or
// it is too late.
func (m *Manager) Undo(ctx context.Context, dryRun bool) error {
	d, err := m.current(ctx)
	if err != nil {
		return err
	}
	next, err := d.undo(m.config.Now())
	if err != nil || dryRun || next == d {
		return err
	}
	return m.write(ctx, next, 0)
}

// Status is where the keys stand, without the keys.
type Status struct {
	Generation uint64         `json:"generation"` // of the cluster; each change of keys has the next one
	Step       Step           `json:"step"`       // empty at rest
	Text       string         `json:"text"`       // the step in words
	Forced     bool           `json:"forced,omitempty"`
	Began      *time.Time     `json:"began,omitempty"`
	Keys       []KeyStatus    `json:"keys"`
	Members    []MemberStatus `json:"members"`
	Waiting    []string       `json:"waiting,omitempty"` // living members that have not done the step
	Away       []string       `json:"away,omitempty"`    // members that do not live
}

// KeyStatus is one key.
type KeyStatus struct {
	ID    string     `json:"id"`
	Sends bool       `json:"sends"`          // members send with it; all keys are read
	Made  *time.Time `json:"made,omitempty"` // missing: with the cluster
}

// MemberStatus is one member.
type MemberStatus struct {
	Name       string `json:"name"`
	Role       string `json:"role"`
	State      string `json:"state"`
	Generation uint64 `json:"generation"`
	Barred     string `json:"barred,omitempty"` // why it gets no keys
}

// Status reads where the keys stand.
func (m *Manager) Status(ctx context.Context) (Status, error) {
	d, err := m.read(ctx)
	if err != nil && !repairable(err) {
		return Status{}, err
	}
	own := m.config.Own.Ring()
	if err != nil || d.revision == 0 || m.behind(d) { // the leader is about to put it right, or no key was ever changed
		d = &document{Generation: own.Generation}
		for _, key := range own.Keys {
			d.Keys = append(d.Keys, sealedKey{ID: KeyID(key), Made: m.madeAt(key)})
		}
	}
	members := m.config.Members()
	s := Status{Generation: d.Generation, Step: d.Step, Text: d.Step.Text(), Forced: d.Forced, Began: optional(d.Began)}
	if d.Step != AtRest {
		s.Waiting = waiting(members, d.Generation)
	}
	for i, k := range d.Keys {
		s.Keys = append(s.Keys, KeyStatus{ID: k.ID, Sends: i == 0, Made: optional(k.Made)})
	}
	for _, member := range members {
		s.Members = append(s.Members, MemberStatus{Name: member.Name, Role: member.Role, State: member.State, Generation: member.Generation, Barred: member.Barred})
	}
	slices.SortFunc(s.Members, func(a, b MemberStatus) int { return strings.Compare(a.Name, b.Name) })
	for _, a := range missing(members) {
		s.Away = append(s.Away, a.Name)
	}
	return s, nil
}

func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
