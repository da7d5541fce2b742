package join

import (
	"crypto/sha256"
	"encoding/json"
	"net/netip"
	"time"

	"github.com/barque/barque/pki"
)

// Prefix of all paths that the Handler serves.
const Prefix = "/barque/join/v1/"

// ServersOrganization is the organization in the certificates that servers show each other.
const ServersOrganization = "barque:servers"

// Request is a joining machine's request.
type Request struct {
	// Token is on the wire only where it is a former one: see package token.
	Token   string    `json:"token,omitempty"`
	Name    string    `json:"name"`
	Address string    `json:"address"` // IP address that the other nodes reach it at
	Version string    `json:"version"`
	Clock   time.Time `json:"clock"`
	// Attempt is the machine's random text, the same for all retries: they count as one use of the
	// token. It is on the wire with a former token only.
	Attempt string `json:"attempt,omitempty"`
	// Role, TokenID, Nonce and SealTo are in a SignedRequest. SealTo is the public half of the
	// machine's pki.SealingKey. It stands for the attempt: the same use of a token never opens to
	// another key.
	Role    string `json:"role,omitempty"`
	TokenID string `json:"tokenID,omitempty"`
	Nonce   []byte `json:"nonce,omitempty"`
	SealTo  []byte `json:"sealTo,omitempty"`
	// Labels are those that the node registers with. Machines of earlier versions do not send them.
	Labels map[string]string `json:"labels,omitempty"`
	// DataKeys is the form of encrypted objects that a server reads, DataKeysForm. Servers of
	// earlier versions do not send it.
	DataKeys int `json:"dataKeys,omitempty"`
	// CAs is the form of bundles of CAs that a server handles, pki.BundleForm. Servers of earlier
	// versions do not send it.
	CAs int `json:"cas,omitempty"`
	// Replace is a server's wish to take the place of a dead one of the same name.
	Replace bool `json:"replace,omitempty"`
	// CSR and GossipKey are an agent's: the signing request of its key and its Ed25519 public key.
	CSR       []byte `json:"csr,omitempty"`
	GossipKey []byte `json:"gossipKey,omitempty"`
}

// DataKeysForm is the form of encrypted objects that this version reads and writes.
const DataKeysForm = 1

// SignedRequest is a Request with the signature of its token's key. The bytes are signed as
// they are: no attacker between the machine and the server can replace the key to which the
// answer is sealed.
type SignedRequest struct {
	Request   []byte `json:"request"`
	Signature []byte `json:"signature"`
}

// Sealed is the answer to a SignedRequest: a ServerGrant or an AgentGrant in JSON, sealed to the
// machine's key and bound to its request.
type Sealed struct {
	Sealed []byte `json:"sealed"`
}

const (
	signContext = "barque join request v2\x00"
	sealContext = "barque join grant v2\x00"
)

// signed returns the bytes that a token's key signs.
func signed(request []byte) []byte { return append([]byte(signContext), request...) }

// bound returns the bytes to which the answer is bound: the token's ID, the nonce, the name and all
// else of the request.
func bound(request []byte) []byte {
	sum := sha256.Sum256(request)
	return append([]byte(sealContext), sum[:]...)
}

// Server is one control-plane node.
type Server struct {
	Name   string         `json:"name"`
	API    netip.AddrPort `json:"api"`
	Peer   netip.AddrPort `json:"peer"`
	Gossip netip.AddrPort `json:"gossip"`
}

// Cluster is every node's knowledge of its cluster.
type Cluster struct {
	ID         string     `json:"id"`
	CA         pki.Bundle `json:"ca"`
	GossipKeys [][]byte   `json:"gossipKeys"` // the first one is used for sending
	// KeyGeneration is that of GossipKeys; 0 is the first one.
	KeyGeneration uint64   `json:"keyGeneration,omitempty"`
	Servers       []Server `json:"servers"`
	// GossipPort is the port of nodes that were given none. It is 0 in clusters that began with a
	// version from before 29 November 2026: see enroll.GossipPort.
	GossipPort uint16 `json:"gossipPort,omitempty"`
	// Settings are the cluster-wide settings (address ranges, DNS domain); cmd owns their meaning.
	Settings json.RawMessage `json:"settings"`
}

// ServerGrant is the answer to a server.
type ServerGrant struct {
	Cluster Cluster `json:"cluster"`
	// Keys are the cluster's secret keys by file name, PEM, as every server has them.
	Keys map[string][]byte `json:"keys"`
	// PeerKeys are those by which the servers know each other while the CA is exchanged; package
	// admissions owns their meaning. Servers of earlier versions send none.
	PeerKeys json.RawMessage `json:"peerKeys,omitempty"`
}

// AgentGrant is the answer to an agent.
type AgentGrant struct {
	Cluster      Cluster      `json:"cluster"`
	Certificates Certificates `json:"certificates"`
}

// Certificates are an agent's certificates for the key of its signing request, and its credential.
type Certificates struct {
	Client     []byte `json:"client"`     // PEM; system:node:<name>
	Serving    []byte `json:"serving"`    // PEM; the kubelet's server
	Credential []byte `json:"credential"` // gossip
	// CA is the CAs that the agent trusts from now on.
	CA pki.Bundle `json:"ca"`
}

// sharedKeyRequest asks for the key with the digest.
type sharedKeyRequest struct {
	Digest string `json:"digest"`
}

// SharedKey is the answer to a server that asks for a key that all servers have.
type SharedKey struct {
	Key []byte `json:"key"` // PEM
}

// Renewal asks for new certificates for the name in the certificate that the request is made with.
// That one may have ended, if the cluster allows it; then the signing request must be of its key.
type Renewal struct {
	CSR       []byte `json:"csr"`
	GossipKey []byte `json:"gossipKey"`
	Address   string `json:"address"`
}

// failure is the body of an answer that is not 200.
type failure struct {
	Error string `json:"error"`
}
