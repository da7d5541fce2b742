package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"aead.dev/minisign"
)

// sum is the SHA-256 of a file.
type sum struct {
	name, hex string
}

type sums []sum

// text is in the format of sha256sum(1).
func (s sums) text() []byte {
	var b bytes.Buffer
	for _, one := range s {
		fmt.Fprintf(&b, "%s  %s\n", one.hex, one.name)
	}
	return b.Bytes()
}

// sumsOf returns the sums of the files of a directory, by their names in order.
func sumsOf(dir string) (sums, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all sums
	for _, e := range entries {
		digest, err := sumOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, sum{e.Name(), digest})
	}
	return all, nil
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// signer has the key of the caller.
type signer struct {
	key minisign.PrivateKey
}

// readKey reads a minisign secret key, and its password if it is encrypted.
func readKey(file, passwordFile string) (*signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the key: %w", err)
	}
	var key minisign.PrivateKey
	if !minisign.IsEncrypted(text) {
		if err := key.UnmarshalText(text); err != nil {
			return nil, fmt.Errorf("%s is no minisign secret key: %w", file, err)
		}
		return &signer{key}, nil
	}
	if passwordFile == "" {
		return nil, fmt.Errorf("%s is encrypted: name a file with its password: make release KEY=%s PASSWORD_FILE=file",
			file, file)
	}
	password, err := os.ReadFile(passwordFile)
	if err != nil {
		return nil, fmt.Errorf("the key's password: %w", err)
	}
	key, err = minisign.DecryptKey(strings.TrimRight(string(password), "\r\n"), text)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the password of %s does not open %s", passwordFile, file), err)
	}
	return &signer{key}, nil
}

// sign returns the signature file of a text. It is of the pre-hashed kind, and has no time in it:
// the same text and key give the same bytes.
func (s *signer) sign(text []byte, comment string) []byte {
	r := minisign.NewReader(bytes.NewReader(text))
	_, _ = io.Copy(io.Discard, r) // it reads from memory
	return r.SignWithComments(s.key, comment, fmt.Sprintf("signature of barque's release by the key %016X", s.key.ID()))
}
