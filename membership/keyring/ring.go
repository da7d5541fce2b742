package keyring

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/membership/rollover"
)

// KeySize is the size of a key in bytes: AES-256.
const KeySize = 32

// Ring is the keys of the pool at one generation. The first key is used for sending, all for
// reading.
type Ring struct {
	Generation uint64
	Keys       [][]byte
}

// KeyID names a key without telling it.
func KeyID(key []byte) string {
	sum := sha256.Sum256(append([]byte("barque gossip key\x00"), key...))
	return hex.EncodeToString(sum[:4])
}

func (r Ring) valid() error {
	if len(r.Keys) == 0 {
		return errors.New("there is no key")
	}
	for _, key := range r.Keys {
		if len(key) != KeySize {
			return fmt.Errorf("a key has %d bytes, want %d", len(key), KeySize)
		}
	}
	return nil
}

// Own is the ring of this member: on its disk, and in use in its pool.
type Own struct {
	mu   sync.Mutex
	ring Ring
	save func(Ring) error
	use  func(Ring) error
}

// NewOwn returns the ring that is on disk and in use now. save writes another one to the disk, use
// has the pool use it.
func NewOwn(now Ring, save, use func(Ring) error) *Own { return &Own{ring: now, save: save, use: use} }

// Ring returns the ring. The caller does not change its keys.
func (o *Own) Ring() Ring {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ring
}

// Install takes a newer ring, and does nothing with another one. It tells whether it did.
func (o *Own) Install(r Ring) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Generation <= o.ring.Generation {
		return false, nil
	}
	if err := r.valid(); err != nil {
		return false, fmt.Errorf("gossip keys of generation %d: %w", r.Generation, err)
	}
	if err := o.save(r); err != nil {
		return false, fmt.Errorf("write gossip keys of generation %d to disk: %w", r.Generation, err)
	}
	if err := o.use(r); err != nil {
		return false, err
	}
	o.ring = r
	return true, nil
}

// Step is where a rotation stands.
type Step string

// Steps; see the package's drawing.
const (
	AtRest   Step = ""
	Add      Step = "add"
	Use      Step = "use"
	Remove   Step = "remove"
	Back     Step = "back"
	Withdraw Step = "withdraw"
)

// Text says what members do in the step.
func (s Step) Text() string {
	return map[Step]string{
		AtRest:   "at rest",
		Add:      "the members get the new key and send with the old one",
		Use:      "the members send with the new key and still read the old one",
		Remove:   "the members drop the old key",
		Back:     "undo: the members send with the old key again",
		Withdraw: "undo: the members drop the new key",
	}[s]
}

// format is raised when an older Barque could no longer read a document.
const format = 1

// document is the state of the keys, which all servers share.
type document struct {
	rollover.Envelope
	Generation uint64      `json:"generation"`
	Step       Step        `json:"step,omitempty"`
	Forced     bool        `json:"forced,omitempty"` // goes on without members that do not follow
	Began      time.Time   `json:"began,omitzero"`
	StepBegan  time.Time   `json:"stepBegan,omitzero"`
	Keys       []sealedKey `json:"keys"` // the first one is for sending
}

// At implements rollover.State.
func (d document) At() (generation uint64, step string) { return d.Generation, string(d.Step) }

type sealedKey struct {
	ID     string    `json:"id"`
	Made   time.Time `json:"made,omitzero"` // zero: with the cluster
	Sealed []byte    `json:"sealed"`
}

// Sealer encrypts what is only for machines that have the CA's key. pki.Authority is one.
type Sealer interface {
	Seal(purpose string, plain, bound []byte) ([]byte, error)
	Open(purpose string, sealed, bound []byte) ([]byte, error)
}

const sealPurpose = "barque gossip keys v1"

func (p *poolKeys) seal(key []byte, made time.Time) (sealedKey, error) {
	id := KeyID(key)
	sealed, err := p.Sealer.Seal(sealPurpose, key, []byte(p.Cluster+"\x00"+id))
	if err != nil {
		return sealedKey{}, fmt.Errorf("seal gossip key %s: %w", id, err)
	}
	return sealedKey{ID: id, Made: made, Sealed: sealed}, nil
}

// ring opens the document's keys.
func (d document) ring(s Sealer) (Ring, error) {
	r := Ring{Generation: d.Generation}
	for _, k := range d.Keys {
		key, err := s.Open(sealPurpose, k.Sealed, []byte(d.Cluster+"\x00"+k.ID))
		if err != nil {
			return Ring{}, fmt.Errorf("open gossip key %s of generation %d: %w", k.ID, d.Generation, err)
		}
		r.Keys = append(r.Keys, key)
	}
	return r, r.valid()
}
