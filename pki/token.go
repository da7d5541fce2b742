package pki

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Token lets a machine join. Its text form is
//
//	b2.<64 hexadecimal digits: SHA-256 of the CA's public key>.<id: 6>.<secret: 26>
//
// The digest lets the joining machine know that it talks to the right cluster. The secret never
// leaves the machine: Key derives a signing key from it, and the cluster keeps the public half. The
// secret has 134 random bits. So it cannot be guessed from the public half, and a slow hash would
// add nothing.
//
// Earlier versions made tokens of the form b1. Their secret has 16 characters, like that of a
// Kubernetes bootstrap token. The cluster kept it in clear, and the machine sent it.
type Token struct {
	CADigest string
	ID       string
	Secret   string
}

const (
	tokenVersion  = "b2"
	formerVersion = "b1"
	secretLength  = 26
	formerLength  = 16
)

var (
	digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	idForm     = regexp.MustCompile(`^[a-z0-9]{6}$`)
	secretForm = regexp.MustCompile(`^[a-z0-9]+$`)
)

// NewToken draws a token for the cluster of this CA.
func NewToken(caDigest string) (Token, error) {
	id, err := randomText(6)
	if err != nil {
		return Token{}, err
	}
	secret, err := randomText(secretLength)
	if err != nil {
		return Token{}, err
	}
	return Token{CADigest: caDigest, ID: id, Secret: secret}, nil
}

// ParseToken reads the text form.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != tokenVersion && parts[0] != formerVersion {
		return Token{}, errors.New("join token: want b2.<CA digest>.<id>.<secret>, as `barque token create` prints it")
	}
	t := Token{CADigest: parts[1], ID: parts[2], Secret: parts[3]}
	if !digestForm.MatchString(t.CADigest) || !idForm.MatchString(t.ID) || !secretForm.MatchString(t.Secret) ||
		t.version() != parts[0] {
		return Token{},
			errors.New(
				"join token: a part is cut off or has characters that do not belong; copy the whole token that `barque token create` printed")
	}
	return t, nil
}

func (t Token) String() string {
	return strings.Join([]string{t.version(), t.CADigest, t.ID, t.Secret}, ".")
}

// version returns the form of the token; empty if its secret has another length.
func (t Token) version() string {
	switch len(t.Secret) {
	case secretLength:
		return tokenVersion
	case formerLength:
		return formerVersion
	}
	return ""
}

// Former reports whether the token is of the form b1.
func (t Token) Former() bool { return t.version() == formerVersion }

// Key returns the key with which a holder of the token signs.
func (t Token) Key() (ed25519.PrivateKey, error) {
	seed, err := hkdf.Key(sha256.New, []byte(t.Secret), []byte(t.ID), "barque join token v2", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the join token's key: %w", err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// Pinned returns that CA of the PEM text which the token pins.
func (t Token) Pinned(caPEM []byte) (*Authority, error) {
	ders, err := SplitPEM(caPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate of the cluster: %w", err)
	}
	var shown []string
	for _, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("CA certificate of the cluster: %w", err)
		}
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(t.CADigest)) == 1 {
			return newAuthority(der, nil)
		}
		shown = append(shown, hex.EncodeToString(sum[:8]))
	}
	return nil, fmt.Errorf("the server shows a CA that this token was not made for (it shows %s, the token pins %s): "+
		"the address belongs to another cluster, or somebody stands in between, or the cluster's CA was exchanged since; "+
		"make a new token on a server with `barque token create`", strings.Join(shown, " and "), t.CADigest[:16])
}

func randomText(n int) (string, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	const unbiased = 256 - 256%len(letters) // larger bytes would favour the first letters
	out := make([]byte, 0, n)
	var buf [32]byte
	for len(out) < n {
		if _, err := rand.Read(buf[:]); err != nil {
			return "", fmt.Errorf("draw random text: %w", err)
		}
		for _, b := range buf {
			if int(b) < unbiased && len(out) < n {
				out = append(out, letters[int(b)%len(letters)])
			}
		}
	}
	return string(out), nil
}
