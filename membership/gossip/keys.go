package gossip

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/memberlist"
)

// SetKeys replaces the keys of the pool's traffic while it runs. The first one is for sending, all
// of them are for reading. The generation goes into this member's signed facts. The caller has
// stored the keys before.
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

// SetDataKeys announces to the others the generation of this server's data keys.
func (p *Pool) SetDataKeys(generation uint64) {
	p.mu.Lock()
	p.facts.DataKeys = generation
	p.mu.Unlock()
	p.tell()
}

// SetEncryption announces to the others the digests of this server's file of providers and of the
// keys of its plugins, and whether it cannot read all objects.
func (p *Pool) SetEncryption(file uint32, keys uint16, blind bool) {
	p.mu.Lock()
	p.facts.EncryptionFile, p.facts.PluginKeys, p.facts.Blind = file, keys, blind
	p.mu.Unlock()
	p.tell()
}

// setKeys makes the ring exactly the keys. memberlist reads the ring concurrently, and its
// RemoveKey moves later keys under readers' eyes. So keys are only removed from the end.
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
	if firstGone := slices.IndexFunc(installed, func(k []byte) bool { return !stays(k) }); firstGone >= 0 &&
		slices.ContainsFunc(installed[firstGone:], stays) {
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
