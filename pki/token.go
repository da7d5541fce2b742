package pki

import (
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
//	b1.<64 hexadecimal digits: SHA-256 of the CA's public key>.<id: 6>.<secret: 16>
//
// id and secret are those of a Kubernetes bootstrap token
// (https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/). The digest lets the
// joining machine know that it talks to the right cluster before it shows its secret.
type Token struct {
	CADigest string
	ID       string
	Secret   string
}

const tokenVersion = "b1"

var (
	digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	idForm     = regexp.MustCompile(`^[a-z0-9]{6}$`)
	secretForm = regexp.MustCompile(`^[a-z0-9]{16}$`)
)

// NewToken draws a token for the cluster of this CA.
func NewToken(caDigest string) (Token, error) {
	id, err := randomText(6)
	if err != nil {
		return Token{}, err
	}
	secret, err := randomText(16)
	if err != nil {
		return Token{}, err
	}
	return Token{CADigest: caDigest, ID: id, Secret: secret}, nil
}

// ParseToken reads the text form.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 4 || parts[0] != tokenVersion {
		return Token{}, errors.New("join token: want b1.<CA digest>.<id>.<secret>, as `barque token create` prints it")
	}
	t := Token{CADigest: parts[1], ID: parts[2], Secret: parts[3]}
	if !digestForm.MatchString(t.CADigest) || !idForm.MatchString(t.ID) || !secretForm.MatchString(t.Secret) {
		return Token{}, errors.New("join token: a part is cut off or has characters that do not belong; copy the whole token that `barque token create` printed")
	}
	return t, nil
}

func (t Token) String() string {
	return strings.Join([]string{tokenVersion, t.CADigest, t.ID, t.Secret}, ".")
}

// Pinned returns that CA of the PEM text which the token pins.
func (t Token) Pinned(caPEM []byte) (*Authority, error) {
	ders, err := splitPEM(caPEM)
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
