package pki

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
)

// Seal encrypts data for the machines with the CA's key: the servers. Open needs bound again, which
// is not encrypted. Data sealed for one purpose does not open for another. It is AES-256-GCM under
// a key that HKDF derives from the CA's key and the purpose.
func (a *Authority) Seal(purpose string, plain, bound []byte) ([]byte, error) {
	aead, err := a.sealer(purpose)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	return aead.Seal(nonce, nonce, plain, bound), nil
}

// ErrSealed is returned for data that does not open: sealed by another CA's key, for another
// purpose, with other bound data, or damaged.
var ErrSealed = errors.New("it was not sealed with this CA's key, or was changed since")

// Open decrypts the output of Seal.
func (a *Authority) Open(purpose string, sealed, bound []byte) ([]byte, error) {
	aead, err := a.sealer(purpose)
	if err != nil {
		return nil, err
	}
	if len(sealed) < aead.NonceSize() {
		return nil, ErrSealed
	}
	plain, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], bound)
	if err != nil {
		return nil, ErrSealed
	}
	return plain, nil
}

func (a *Authority) sealer(purpose string) (cipher.AEAD, error) {
	if a.key == nil {
		return nil, errNoKey
	}
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("the CA's key: %w", err)
	}
	key, err := hkdf.Key(sha256.New, der, nil, purpose, 32)
	if err != nil {
		return nil, fmt.Errorf("derive a key from the CA's: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
