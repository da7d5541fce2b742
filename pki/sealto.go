package pki

import (
	"crypto/hpke"
	"crypto/sha256"
	"errors"
	"fmt"
)

// ErrSealedTo is returned for data sealed to a SealingKey that does not open.
var ErrSealedTo = errors.New("it was not sealed to this machine's key and for this request, or was changed since")

// Sealing is HPKE (RFC 9180) in its base mode. The key agreement is a hybrid one: keys of a CA last
// ten years, and a recorded answer must stay closed for as long.
var (
	sealKEM  = hpke.MLKEM768X25519()
	sealKDF  = hpke.HKDFSHA256()
	sealAEAD = hpke.AES256GCM()
)

// SealingKey is a machine's key for one exchange, to which others seal with SealTo.
type SealingKey struct{ private hpke.PrivateKey }

// SealingKeyOf derives the key from a random text of at least 128 bits. It is always the same, so
// that a retry after a restart uses it too.
func SealingKeyOf(text string) (SealingKey, error) {
	seed := sha256.Sum256([]byte("barque sealing key v1\x00" + text))
	private, err := sealKEM.DeriveKeyPair(seed[:])
	if err != nil {
		return SealingKey{}, fmt.Errorf("derive the sealing key: %w", err)
	}
	return SealingKey{private}, nil
}

// Public returns the half that SealTo takes.
func (k SealingKey) Public() []byte { return k.private.PublicKey().Bytes() }

// Open returns the plain text of SealTo, or ErrSealedTo.
func (k SealingKey) Open(sealed, bound []byte) ([]byte, error) {
	plain, err := hpke.Open(k.private, sealKDF, sealAEAD, bound, sealed)
	if err != nil {
		return nil, ErrSealedTo
	}
	return plain, nil
}

// SealTo encrypts for the holder of the key with that public half. Open needs the same bound data.
func SealTo(public, plain, bound []byte) ([]byte, error) {
	key, err := sealKEM.NewPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("the sealing key: %w", err)
	}
	return hpke.Seal(key, sealKDF, sealAEAD, bound, plain)
}
