package backup

import (
	"errors"
	"fmt"
	"strings"

	"filippo.io/age"
)

// Key seals and opens backups. It is made from a text that the operator keeps:
//
//   - a secret key of age, AGE-SECRET-KEY-1…, as GenerateKey or age-keygen make it: seals and
//     opens;
//   - a public key of age, age1…: seals only, so that a server cannot open its backups;
//   - anything else is a passphrase: seals and opens.
type Key struct {
	recipient age.Recipient
	identity  age.Identity // nil for a public key
}

const (
	minPassphrase = 8
	// workFactor of scrypt for a passphrase is the binary logarithm of its cost: 64 MiB of memory
	// and a quarter of a second. A server with scheduled backups can afford that.
	workFactor    = 16
	maxWorkFactor = 20 // of files that are opened
)

// ParseKey makes a key from the operator's text. Lines that begin with # do not count, nor does the
// space around.
func ParseKey(text string) (*Key, error) {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 {
		return nil, fmt.Errorf("the backup key has %d lines, and should be one", len(lines))
	}
	switch text := lines[0]; {
	case strings.HasPrefix(text, "AGE-SECRET-KEY-1"):
		identity, err := age.ParseX25519Identity(text)
		if err != nil {
			return nil, errors.New("the backup key begins as a secret key of age and is none: was it copied whole?")
		}
		return &Key{recipient: identity.Recipient(), identity: identity}, nil
	case strings.HasPrefix(text, "age1"):
		recipient, err := age.ParseX25519Recipient(text)
		if err != nil {
			return nil, fmt.Errorf("the backup key begins as a public key of age and is none: %w", err)
		}
		return &Key{recipient: recipient}, nil
	case len(text) < minPassphrase:
		return nil,
			fmt.Errorf(
				"a passphrase of %d characters does not protect the keys of a cluster: give %d at least, or make a key with `barque snapshot key`", len(text), minPassphrase)
	default:
		return passphrase(text)
	}
}

func passphrase(text string) (*Key, error) {
	recipient, err := age.NewScryptRecipient(text)
	if err != nil {
		return nil, err
	}
	recipient.SetWorkFactor(workFactor)
	identity, err := age.NewScryptIdentity(text)
	if err != nil {
		return nil, err
	}
	identity.SetMaxWorkFactor(maxWorkFactor)
	return &Key{recipient: recipient, identity: identity}, nil
}

// CanOpen reports whether the key opens backups as well as sealing them.
func (k *Key) CanOpen() bool { return k != nil && k.identity != nil }

// GenerateKey makes a new secret key with its public key, as texts for ParseKey.
func GenerateKey() (secret, public string, err error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", fmt.Errorf("make a backup key: %w", err)
	}
	return identity.String(), identity.Recipient().String(), nil
}
