package datakeys

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/scope"
	"github.com/barque/barque/membership/rollover"
)

// Step is how far a change of the keys is.
type Step string

// Steps; see the package's drawing.
const (
	AtRest  Step = ""
	Spread  Step = "spread"
	Rewrite Step = "rewrite"
	Clean   Step = "clean"
)

// Text describes the step.
func (s Step) Text() string {
	return map[Step]string{
		AtRest:  "at rest",
		Spread:  "the servers take over the state of the keys",
		Rewrite: "the leader rewrites the objects",
		Clean:   "the servers remove earlier values from their disks",
	}[s]
}

// The format is raised when an older Barque could no longer read a document. One that lists a file,
// or has wildcards, is of fileFormat: earlier versions know neither, and would write in clear.
const (
	format     = 1
	fileFormat = 2
)

// KeySize is the length of a key.
const KeySize = 32

// DefaultResources are encrypted unless the operator names others.
func DefaultResources() []string { return []string{"secrets"} }

// document is the state of the keys, which all servers share. Its envelope names no cluster: a
// cluster that begins with a backup of another one goes on with the keys of that.
type document struct {
	rollover.Envelope
	Generation uint64    `json:"generation"`
	Step       Step      `json:"step,omitempty"`
	Began      time.Time `json:"began,omitzero"`
	// Resources are encrypted, or may be soon, without those of Except. See package scope.
	Resources []string `json:"resources"`
	Except    []string `json:"except,omitempty"`
	// Writes is the ID of the key that encrypts; empty: objects are written in clear.
	Writes string `json:"writes,omitempty"`
	// Next will be Writes, after Spread.
	Next string      `json:"next,omitempty"`
	Keys []sealedKey `json:"keys"`
	// File is the hash of the file of providers that is in use, and Labels are those of the keys
	// under which its providers write. Both are empty without one.
	File   string   `json:"file,omitempty"`
	Labels []string `json:"labels,omitempty"`
	// Probes are values under keys in a KMS, by their labels, that all servers decrypt before the
	// keys are in use.
	Probes map[string][]byte `json:"probes,omitempty"`
	// Cleaned is the generation of the last step Clean, and Floor the revision up to which history
	// had values of before.
	Cleaned uint64 `json:"cleaned,omitempty"`
	Floor   uint64 `json:"floor,omitempty"`
}

// At implements rollover.State.
func (d document) At() (generation uint64, step string) { return d.Generation, string(d.Step) }

// MarshalJSON implements json.Marshaler.
func (d document) MarshalJSON() ([]byte, error) {
	type plain document
	if d.Format = format; d.File != "" || !d.scope().Plain() {
		d.Format = fileFormat
	}
	return json.Marshal(plain(d))
}

func (d document) scope() scope.Scope { return scope.Scope{Names: d.Resources, Except: d.Except} }

func (d document) in(s scope.Scope) document {
	d.Resources, d.Except = s.Names, s.Except
	return d
}

func (d document) epoch(revision uint64) Epoch {
	return Epoch{Revision: revision, Resources: d.Resources, Except: d.Except, Writes: d.Writes, File: d.File,
		Labels: d.Labels}
}

// sealedKey is a key, sealed with the CA's.
type sealedKey struct {
	ID     string    `json:"id"`
	Made   time.Time `json:"made"`
	Sealed []byte    `json:"sealed"`
	CA     string    `json:"ca"` // digest of the CA whose key seals it
}

func (d document) key(id string) (sealedKey, bool) {
	i := slices.IndexFunc(d.Keys, func(k sealedKey) bool { return k.ID == id })
	if i < 0 {
		return sealedKey{}, false
	}
	return d.Keys[i], true
}

// only returns the document with the key that encrypts, and no other.
func (d document) only() document {
	d.Keys = slices.DeleteFunc(slices.Clone(d.Keys), func(k sealedKey) bool { return k.ID != d.Writes })
	return d
}

// step returns the document of the next generation.
func (d document) step(s Step) document {
	d.Generation++
	d.Step = s
	return d
}

// KeyID is a name of the key that does not give it away.
func KeyID(key []byte) string {
	sum := sha256.Sum256(append([]byte("barque data key v1\x00"), key...))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

func newKey() ([]byte, error) {
	key := make([]byte, KeySize)
	_, err := rand.Read(key)
	return key, err
}

// Sealer encrypts for machines that have the CA's key. pki.Trust is one.
type Sealer interface {
	Seal(purpose string, plain, bound []byte) ([]byte, error)
	Open(purpose string, sealed, bound []byte) ([]byte, error)
	// Digest is that of the CA whose key seals now.
	Digest() string
}

const sealPurpose = "barque data key v1"

// seal seals a key. It is bound to its ID, and to no cluster: see document.
func seal(s Sealer, key []byte, made time.Time) (sealedKey, error) {
	id, ca := KeyID(key), s.Digest()
	sealed, err := s.Seal(sealPurpose, key, []byte(id))
	if err != nil {
		return sealedKey{}, fmt.Errorf("seal data key %s: %w", id, err)
	}
	return sealedKey{ID: id, Made: made, Sealed: sealed, CA: ca}, nil
}

func open(s Sealer, k sealedKey) ([]byte, error) {
	key, err := s.Open(sealPurpose, k.Sealed, []byte(k.ID))
	switch {
	case err != nil:
		return nil,
			fmt.Errorf(
				"data key %s cannot be opened: it is sealed with the key of the CA %s, and this server's CA is %s: %w",
				k.ID, k.CA, s.Digest(), err)
	case len(key) != KeySize || KeyID(key) != k.ID:
		return nil, fmt.Errorf("data key %s is another one", k.ID)
	}
	return key, nil
}
