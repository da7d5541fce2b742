package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/barque/barque/internal/atomicfile"
)

// GenerateKey makes a new private key (ECDSA P-256).
func GenerateKey() (crypto.Signer, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// MarshalKey encodes a private key as PKCS #8 PEM.
func MarshalKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the private key: %w", err)
	}
	return encodePEM("PRIVATE KEY", der), nil
}

// ParseKey decodes a private key from PKCS #8 PEM.
func ParseKey(keyPEM []byte) (crypto.Signer, error) {
	der, err := decodePEM(keyPEM, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("parse the private key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}

// KeyDigest names a key: the SHA-256 of its public key, as Authority.Digest does.
func KeyDigest(key crypto.Signer) (string, error) { return publicDigest(key.Public()) }

func publicDigest(public crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("encode the public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), nil
}

// MarshalKeys encodes private keys one after the other.
func MarshalKeys(keys []crypto.Signer) ([]byte, error) {
	var out []byte
	for _, key := range keys {
		keyPEM, err := MarshalKey(key)
		if err != nil {
			return nil, err
		}
		out = append(out, keyPEM...)
	}
	return out, nil
}

// ParseKeys decodes the output of MarshalKeys.
func ParseKeys(keysPEM []byte) ([]crypto.Signer, error) {
	var keys []crypto.Signer
	for {
		block, rest := pem.Decode(keysPEM)
		if block == nil {
			break
		}
		key, err := ParseKey(pem.EncodeToMemory(block))
		if err != nil {
			return nil, err
		}
		keys, keysPEM = append(keys, key), rest
	}
	if len(keys) == 0 {
		return nil, errors.New("no PEM block \"PRIVATE KEY\" found")
	}
	return keys, nil
}

// LoadOrCreateKey reads the private key in the file, or makes one and writes it there.
func LoadOrCreateKey(path string) (crypto.Signer, error) {
	keyPEM, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		key, err := GenerateKey()
		if err != nil {
			return nil, err
		}
		if keyPEM, err = MarshalKey(key); err != nil {
			return nil, err
		}
		return key, atomicfile.Write(path, keyPEM, 0o600)
	}
	if err != nil {
		return nil, err
	}
	key, err := ParseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// ChainPEM encodes a certificate and its chain.
func ChainPEM(cert *tls.Certificate) []byte {
	var out []byte
	for _, der := range cert.Certificate {
		out = append(out, encodePEM("CERTIFICATE", der)...)
	}
	return out
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func decodePEM(data []byte, kind string) ([]byte, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("no PEM block %q found", kind)
	}
	if block.Type != kind {
		return nil, fmt.Errorf("found a PEM block %q where %q belongs", block.Type, kind)
	}
	return block.Bytes, nil
}
