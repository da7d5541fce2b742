package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Roles of nodes.
const (
	RoleServer = "server"
	RoleAgent  = "agent"
)

// Credential is the CA's statement that a gossip member has this name and role. It serves gossip as
// an X.509 certificate serves TLS, in some 150 bytes. A member's whole metadata must fit into the
// 512 bytes that memberlist allows.
type Credential struct {
	Name     string
	Role     string // RoleServer or RoleAgent
	Public   ed25519.PublicKey
	NotAfter time.Time // seconds
	// Signer is the digest of the CA that has signed it. It is known after VerifyCredential only.
	Signer string
}

// credentialContext keeps a signature made for a credential from meaning anything elsewhere.
const credentialContext = "barque gossip credential v1\x00"

func (c Credential) payload() []byte {
	b := append([]byte(nil), byte(len(c.Name)))
	b = append(b, c.Name...)
	b = append(b, byte(len(c.Role)))
	b = append(b, c.Role...)
	b = append(b, c.Public...)
	return binary.BigEndian.AppendUint64(b, uint64(c.NotAfter.Unix()))
}

// SignCredential encodes the credential and signs it: payload, then an ASN.1 ECDSA signature.
func (a *Authority) SignCredential(c Credential) ([]byte, error) {
	if a.key == nil {
		return nil, errNoKey
	}
	if len(c.Name) == 0 || len(c.Name) > 255 || len(c.Role) > 255 || len(c.Public) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("credential of %q: the name must have 1 to 255 bytes and the key be of Ed25519", c.Name)
	}
	payload := c.payload()
	sum := sha256.Sum256(append([]byte(credentialContext), payload...))
	signature, err := a.key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign the credential of %q: %w", c.Name, err)
	}
	return append(payload, signature...), nil
}

var errCredential = errors.New("gossip credential is malformed")

// ErrCredentialEnded is returned, with the credential, when it is genuine but its time is over.
var ErrCredentialEnded = errors.New("gossip credential has ended")

// VerifyCredential decodes a credential and checks the CA's signature and its end.
func (a *Authority) VerifyCredential(data []byte, now time.Time) (Credential, error) {
	c, signature, err := decodeCredential(data)
	if err != nil {
		return Credential{}, err
	}
	public, ok := a.cert.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return Credential{}, fmt.Errorf("a CA key of type %T does not sign credentials", a.cert.PublicKey)
	}
	sum := sha256.Sum256(append([]byte(credentialContext), data[:len(data)-len(signature)]...))
	if !ecdsa.VerifyASN1(public, sum[:], signature) {
		return Credential{},
			fmt.Errorf(
				"gossip credential of %q was not signed by a CA that this node believes: it is of another cluster, or the CA was exchanged while one of the two was away, which must join again", c.Name)
	}
	c.Signer = a.Digest()
	if now.After(c.NotAfter) {
		return c, fmt.Errorf("%w: that of %q, at %s", ErrCredentialEnded, c.Name, c.NotAfter.UTC().Format(time.RFC3339))
	}
	return c, nil
}

func decodeCredential(data []byte) (c Credential, signature []byte, err error) {
	name, rest, ok := cutCounted(data)
	if !ok || len(name) == 0 {
		return c, nil, errCredential
	}
	role, rest, ok := cutCounted(rest)
	if !ok || len(rest) < ed25519.PublicKeySize+8 {
		return c, nil, errCredential
	}
	public, rest := rest[:ed25519.PublicKeySize], rest[ed25519.PublicKeySize:]
	end, signature := binary.BigEndian.Uint64(rest[:8]), rest[8:]
	return Credential{
		Name:     string(name),
		Role:     string(role),
		Public:   ed25519.PublicKey(public),
		NotAfter: time.Unix(int64(end), 0),
	}, signature, nil
}

func cutCounted(data []byte) (field, rest []byte, ok bool) {
	if len(data) == 0 || len(data) < 1+int(data[0]) {
		return nil, nil, false
	}
	n := 1 + int(data[0])
	return data[1:n], data[n:], true
}
