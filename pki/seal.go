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

// Seal encrypts what only machines with the CA's key may read: the servers. bound is what Open has
// to be given again, in clear; purpose keeps what was sealed for one thing from being opened as
// another. AES-256-GCM under a key that HKDF derives from the CA's, by the purpose.
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

// ErrSealed is returned when what was sealed cannot be opened: by another CA's key, for another
// purpose, with other bound data, or damaged.
var ErrSealed = errors.New("it was not sealed with this CA's key, or was changed since")

// Open decrypts what Seal made.
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
