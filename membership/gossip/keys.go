package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/memberlist"
)

// SetKeys replaces the keys of the pool's traffic while it runs: the first one is used for sending,
// all of them for reading. The others are told the generation, in this member's signed facts. The
// caller has written the keys down before.
func (p *Pool) SetKeys(keys [][]byte, generation uint64) error {
	if err := setKeys(p.keyring, keys); err != nil {
		return fmt.Errorf("gossip keys of generation %d: %w", generation, err)
	}
	p.mu.Lock()
	p.facts.KeyGeneration = generation
	p.mu.Unlock()
	p.tell()
	return nil
}

// setKeys leaves exactly the keys in the ring. memberlist reads the ring meanwhile, and its
// RemoveKey moves what stands behind the key under the eyes of readers. So keys are removed from
// the end only.
func setKeys(ring *memberlist.Keyring, keys [][]byte) error {
	if len(keys) == 0 {
		return errors.New("there must be one at least")
	}
	for _, key := range keys {
		if err := ring.AddKey(key); err != nil {
			return err
		}
	}
	if err := ring.UseKey(keys[0]); err != nil { // moves it to the front
		return err
	}
	stays := func(key []byte) bool {
		return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
	}
	installed := ring.GetKeys()
	if firstGone := slices.IndexFunc(installed, func(k []byte) bool { return !stays(k) }); firstGone >= 0 && slices.ContainsFunc(installed[firstGone:], stays) {
		for _, key := range slices.Backward(keys) { // to the front, all that stay
			if err := ring.UseKey(key); err != nil {
				return err
			}
		}
	}
	for _, key := range slices.Backward(ring.GetKeys()) {
		if !stays(key) {
			if err := ring.RemoveKey(key); err != nil {
				return err
			}
		}
	}
	return nil
}
