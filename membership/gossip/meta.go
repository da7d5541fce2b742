package gossip

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// Facts are a member's data about itself. They travel as JSON with short names: all metadata must
// fit into memberlist's 512 bytes.
type Facts struct {
	Zone     string `json:"z,omitempty"`
	Version  string `json:"v,omitempty"`
	APIPort  uint16 `json:"a,omitempty"` // servers only
	PeerPort uint16 `json:"p,omitempty"` // servers only
	PeerID   string `json:"i,omitempty"` // servers only: id in the consensus group
	// Leaving is set just before a member leaves on purpose. memberlist's events do not distinguish
	// a good-bye from a death, and this flag is signed.
	Leaving bool `json:"l,omitempty"`
	// Health is the faults that the member finds in itself; see Pool.SetHealth.
	Health Health `json:"h,omitempty"`
	// KeyGeneration is that of the member's gossip keys; see Pool.SetKeys.
	KeyGeneration uint64 `json:"k,omitempty"`
	// Trust is the generation of the CAs that the member believes; see Proof.
	Trust uint64 `json:"t,omitempty"`
	// Tokens is the form in which a server keeps join tokens, token.Kept. Earlier versions do not
	// send it.
	Tokens int `json:"j,omitempty"`
	// Revoked is the version of a server's list of revoked certificates. Agents send none.
	Revoked uint64 `json:"r,omitempty"`
	// DataKeys is the generation of the data keys that a server has taken over, datakeys.First or
	// more. Earlier versions, which cannot read encrypted objects, do not send it.
	DataKeys uint64 `json:"e,omitempty"`
	// EncryptionFile is a digest of the file of providers by which a server encrypts objects; 0 is
	// none. Earlier versions have none.
	EncryptionFile uint32 `json:"f,omitempty"`
	// PluginKeys is a digest of the keys with which the file's providers encrypt, also those in a
	// KMS; 0: they are not known, or about to change.
	PluginKeys uint16 `json:"y,omitempty"`
	// Blind is set while a server cannot read all objects that were encrypted by a file, or does
	// not know whether it can.
	Blind bool `json:"b,omitempty"`
	// CAs is the form of bundles of CAs that a server handles, pki.BundleForm. Earlier versions do
	// not send it.
	CAs int `json:"c,omitempty"`
}

// Proof is how a member proves itself.
type Proof struct {
	Credential []byte // as pki.Authority.SignCredential made it
	Key        ed25519.PrivateKey
	// Trust is the generation of the CAs that this member believes, pki.Bundle.Generation. The
	// others see by it how far an exchange of the CA is.
	Trust uint64
}

// Verifier verifies the credentials of this cluster. pki.Trust is one.
type Verifier interface {
	VerifyCredential(data []byte, now time.Time) (pki.Credential, error)
	// Changed returns a channel that is closed, and replaced, when the CAs that are believed
	// change.
	Changed() <-chan struct{}
}

// The versions of metadata. namelessMeta has the credential without the member's name, which
// memberlist sends anyway. It is for metadata that do not fit otherwise, as with a long name and
// the longer signature of a CA's key of P-384: earlier versions read metaVersion only.
const (
	metaVersion  = 1
	namelessMeta = 2
	signContext  = "barque gossip metadata v1\x00"
)

// signed is the signed data. It includes the cluster and the address, so that copied metadata
// authenticate no other member.
func signed(clusterID, name string, addr netip.AddrPort, credential, facts []byte) []byte {
	b := []byte(signContext)
	for _, field := range [][]byte{[]byte(clusterID), []byte(name), []byte(addr.String()), credential, facts} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
		b = append(b, field...)
	}
	return b
}

func encodeMeta(clusterID, name string, addr netip.AddrPort, proof Proof, facts Facts) ([]byte, error) {
	text, err := json.Marshal(facts)
	if err != nil {
		return nil, fmt.Errorf("encode gossip facts: %w", err)
	}
	signature := ed25519.Sign(proof.Key, signed(clusterID, name, addr, proof.Credential, text))
	version, credential := byte(metaVersion), proof.Credential
	if 3+len(credential)+len(signature)+len(text)+signatureSlack > memberlist.MetaMaxSize {
		if rest, ok := bytes.CutPrefix(credential, counted(name)); ok {
			version, credential = namelessMeta, rest
		}
	}
	b := []byte{version}
	b = binary.BigEndian.AppendUint16(b, uint16(len(credential)))
	b = append(b, credential...)
	b = append(b, signature...)
	b = append(b, text...)
	if len(b) > memberlist.MetaMaxSize {
		return nil, tooLong(name, len(b))
	}
	return b, nil
}

// counted is a name as it begins a credential.
func counted(name string) []byte { return append([]byte{byte(len(name))}, name...) }

// signatureSlack is how much longer the signature in the next credential may be: the length of an
// ECDSA signature varies.
const signatureSlack = 4

func tooLong(name string, size int) error {
	return fmt.Errorf("gossip metadata of %q takes %d bytes, %d are allowed: use a shorter node name or zone", name,
		size, memberlist.MetaMaxSize)
}

var errMeta = errors.New("gossip metadata is malformed or of a newer version")

// decodeMeta verifies and reads a member's metadata. For an expired credential it returns
// pki.ErrCredentialEnded, after all other checks.
func decodeMeta(
	ca Verifier, clusterID string, node *memberlist.Node, now time.Time,
) (holder pki.Credential, facts Facts, err error) {
	meta := node.Meta
	if len(meta) < 3 || meta[0] != metaVersion && meta[0] != namelessMeta {
		return holder, Facts{}, errMeta
	}
	n, rest := int(binary.BigEndian.Uint16(meta[1:])), meta[3:]
	if len(rest) < n+ed25519.SignatureSize {
		return holder, Facts{}, errMeta
	}
	credential, signature, text := rest[:n], rest[n:n+ed25519.SignatureSize], rest[n+ed25519.SignatureSize:]
	if meta[0] == namelessMeta {
		credential = append(counted(node.Name), credential...)
	}
	holder, credErr := ca.VerifyCredential(credential, now)
	if credErr != nil && !errors.Is(credErr, pki.ErrCredentialEnded) {
		return holder, Facts{}, credErr
	}
	if holder.Name != node.Name {
		return holder, Facts{}, fmt.Errorf("member %q shows the credential of %q", node.Name, holder.Name)
	}
	if !ed25519.Verify(holder.Public, signed(clusterID, node.Name, addrOf(node), credential, text), signature) {
		return holder, Facts{},
			fmt.Errorf("metadata of member %q at %s is not signed by its credential's key", node.Name, addrOf(node))
	}
	if err := json.Unmarshal(text, &facts); err != nil {
		return holder, Facts{}, errMeta
	}
	return holder, facts, credErr
}

func addrOf(node *memberlist.Node) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(node.Addr)
	return netip.AddrPortFrom(ip.Unmap(), node.Port)
}
