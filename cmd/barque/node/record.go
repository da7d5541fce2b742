package node

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// recordFormat is raised when an older Barque could no longer read a data directory.
const recordFormat = 3

// Phases of a node's life in its cluster. A node that stopped in one goes on from it.
const (
	phaseBootstrap = "bootstrap" // begins a cluster of its own
	phaseAsking    = "asking"    // asks a server to be let in, and must not begin a cluster of its own
	phaseJoining   = "joining"   // has the cluster's secrets, is not a member of the store yet
	phaseMember    = "member"
	phaseWiping    = "wiping" // was admitted as a new server, and drops the store that it had before
)

// record is what a node remembers of its cluster: DataDir/node.json. The gossip keys in it are
// secret.
type record struct {
	Format  int          `json:"format"`
	Phase   string       `json:"phase"`
	Name    string       `json:"name"`
	Role    string       `json:"role"`
	Asked   string       `json:"asked,omitempty"` // address of that server, while asking
	Cluster join.Cluster `json:"cluster"`         // Cluster.Servers: see servers

	Missed map[string]int `json:"missedHours,omitempty"` // on an agent: servers that show no life, and for how many hours; see absences

	Rejoined string `json:"rejoined,omitempty"` // ID of the rejoinPlan that made the record
	Token    string `json:"token,omitempty"`    // ID of the token by which a server was let in, or a node let in again

	Restore  *backups.RestoreOptions `json:"restore,omitempty"`  // the backup whose state the store does not have yet
	Restored string                  `json:"restored,omitempty"` // the one that the cluster began with

	dir string
	mu  sync.Mutex // guards Cluster and Missed once the node runs
}

// servers returns the cluster's servers as they were last known.
func (r *record) servers() []join.Server {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.Cluster.Servers)
}

// clusterID is that of the cluster which this node takes itself to be of.
func (r *record) clusterID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Cluster.ID
}

// ca returns what this node believes.
func (r *record) ca() pki.Bundle {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Cluster.CA
}

// believe writes down what this node believes from now on; also as a file, for people and other
// programs.
func (r *record) believe(b pki.Bundle) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.Cluster.CA
	r.Cluster.CA = b
	if err := r.save(); err != nil {
		r.Cluster.CA = before
		return err
	}
	return writeCA(r.dir, b)
}

// caFile has the CAs that a node believes, for people and other programs; the record is what
// counts.
func caFile(dataDir string) string { return filepath.Join(pkiDir(dataDir), "ca.crt") }

func writeCA(dataDir string, b pki.Bundle) error {
	return atomicfile.Write(caFile(dataDir), b.PEM(), 0o644)
}

// remember adds what gossip shows of the servers to what was known, for the next start, and
// stores it if that is news. A server that gossip does not show stays: just after a start it shows
// nobody yet. Those who are gone for good are dropped.
func (r *record) remember(seen []join.Server, gone []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := slices.DeleteFunc(slices.Clone(r.Cluster.Servers), func(k join.Server) bool { return slices.Contains(gone, k.Name) })
	for _, s := range seen {
		if i := slices.IndexFunc(known, func(k join.Server) bool { return k.Name == s.Name }); i >= 0 {
			known[i] = s
		} else {
			known = append(known, s)
		}
	}
	if slices.Equal(r.Cluster.Servers, known) {
		return nil
	}
	before := r.Cluster.Servers
	r.Cluster.Servers = known
	if err := r.save(); err != nil {
		r.Cluster.Servers = before // so that the next call tries again
		return err
	}
	return nil
}

// missed returns the servers that show no life, and for how many hours.
func (r *record) missed() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.Missed)
}

// miss stores them, if that is news.
func (r *record) miss(hours map[string]int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if maps.Equal(r.Missed, hours) {
		return nil
	}
	before := r.Missed
	r.Missed = hours
	if err := r.save(); err != nil {
		r.Missed = before // so that the next call tries again
		return err
	}
	return nil
}

func (r *record) path() string { return filepath.Join(r.dir, "node.json") }

func pkiDir(dataDir string) string { return filepath.Join(dataDir, "pki") }

// loadRecord reads a node's record; nil when the data directory is new.
func loadRecord(dir string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &record{dir: dir}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; restore it from a backup, or join again with an empty data directory", r.path(), err)
	}
	if r.Format > recordFormat {
		return nil, fmt.Errorf("data directory %s was written by a newer Barque (format %d, this one reads up to %d): start that version again", dir, r.Format, recordFormat)
	}
	if r.Format < recordFormat {
		return nil, fmt.Errorf("data directory %s was written by an older Barque (format %d, this one reads %d), before the first release: begin with an empty directory", dir, r.Format, recordFormat)
	}
	return r, nil
}

// ServerName returns the name of the server whose data directory it is; of any other one, an error
// with ExitUsage.
func ServerName(dataDir string) (string, error) {
	r, err := loadRecord(dataDir)
	switch {
	case err != nil:
		return "", err
	case r == nil || r.Role != pki.RoleServer:
		return "", wrongOption("%s is no server's data directory: give its own with --data-dir", dataDir)
	}
	return r.Name, nil
}

// KnownServers returns the addresses of the API of the servers that the node of a data directory
// knew of last; none when it cannot be read.
func KnownServers(dataDir string) []string {
	r, err := loadRecord(dataDir)
	if err != nil || r == nil {
		return nil
	}
	var out []string
	for _, s := range r.servers() {
		out = append(out, s.API.String())
	}
	return out
}

func (r *record) save() error {
	r.Format = recordFormat
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(r.path(), append(data, '\n'), 0o600)
}

func (r *record) settings() (Settings, error) {
	var s Settings
	if err := json.Unmarshal(r.Cluster.Settings, &s); err != nil {
		return s, fmt.Errorf("%s: the cluster's settings: %w", r.path(), err)
	}
	return s, nil
}

// sameNode refuses a data directory that belongs to something else.
func (r *record) sameNode(o *Options, role string) error {
	if err := r.sameName(o, role); err != nil || o.Token == "" {
		return err
	}
	t, err := pki.ParseToken(o.Token)
	if err != nil {
		return err
	}
	if !r.Cluster.CA.Knows(t.CADigest) {
		return r.otherCluster()
	}
	return nil
}

func (r *record) sameName(o *Options, role string) error {
	if r.Role != role {
		return fmt.Errorf("data directory %s belongs to %s %q; it cannot run as %s", r.dir, r.Role, r.Name, role)
	}
	if r.Name != o.Name {
		return fmt.Errorf("data directory %s belongs to node %q, not to %q: give --name %s, or another --data-dir", r.dir, r.Name, o.Name, r.Name)
	}
	return nil
}

// otherCluster says what to do when the token is not of the data directory's cluster. One whose
// first start failed, as when a port was taken, holds nothing that anyone was told was written.
func (r *record) otherCluster() error {
	if r.Phase == phaseBootstrap {
		return fmt.Errorf("data directory %s belongs to another cluster than the token, to %s, which has never run: if it was begun by mistake, remove the directory", r.dir, r.Cluster.ID)
	}
	again := "--wipe"
	if r.Role == pki.RoleAgent {
		again = "--rejoin"
	}
	return fmt.Errorf("data directory %s belongs to another cluster than the token, to %s: give a token of that one, or another --data-dir; "+
		"if that cluster has exchanged its CA while this node was away, add %s", r.dir, r.Cluster.ID, again)
}

// sameCluster refuses a cluster that is not the one of the data directory, for a node that is let
// in again. It may have got another ID, when it was recovered, and another CA, which this node has
// never heard of when it was away: then it knows one of this node's from before.
func (r *record) sameCluster(is join.Cluster) error {
	known, err := r.Cluster.CA.Digests()
	if err != nil {
		return fmt.Errorf("%s: the cluster's CA: %w", r.path(), err)
	}
	if !slices.ContainsFunc(known, is.CA.Knows) {
		return r.otherCluster()
	}
	return nil
}

// bootstrapRecord begins a new cluster: its CA and keys are on disk before the record says so.
func bootstrapRecord(o *Options, clusterID string, ca *pki.Authority) (*record, error) {
	r, err := newClusterRecord(o, clusterID, ca)
	if err != nil {
		return nil, err
	}
	return r, r.save()
}

// newClusterRecord writes the CA and the keys, and makes the record without writing it.
func newClusterRecord(o *Options, clusterID string, ca *pki.Authority) (*record, error) {
	keyPEM, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	return newRecord(o, clusterID, pki.NewBundle(ca), keyPEM)
}

// newRecord is newClusterRecord with CAs that there are already.
func newRecord(o *Options, clusterID string, cas pki.Bundle, keysPEM []byte) (*record, error) {
	if err := atomicfile.Write(filepath.Join(pkiDir(o.DataDir), caKey), keysPEM, 0o600); err != nil {
		return nil, err
	}
	if err := writeCA(o.DataDir, cas); err != nil {
		return nil, err
	}
	if len(cas.AccountKeys) == 0 {
		account, err := pki.LoadOrCreateKey(filepath.Join(pkiDir(o.DataDir), serviceAccountKey))
		if err != nil {
			return nil, err
		}
		if cas, err = cas.WithAccountKey(account.Public()); err != nil {
			return nil, err
		}
	}
	gossipKey := make([]byte, 32)
	if _, err := rand.Read(gossipKey); err != nil {
		return nil, err
	}
	settings, err := json.Marshal(o.Settings)
	if err != nil {
		return nil, err
	}
	r := &record{dir: o.DataDir, Phase: phaseBootstrap, Name: o.Name, Role: pki.RoleServer,
		Cluster: join.Cluster{ID: clusterID, CA: cas, GossipKeys: [][]byte{gossipKey}, Settings: settings}}
	return r, nil
}

const (
	caKey             = "ca.key"
	serviceAccountKey = "service-account.key"
)

// clusterKeys returns the secret keys that every server has, by file name.
func clusterKeys(dataDir string) (map[string][]byte, error) {
	keys := map[string][]byte{}
	for _, name := range []string{caKey, serviceAccountKey} {
		data, err := os.ReadFile(filepath.Join(pkiDir(dataDir), name))
		if err != nil {
			return nil, err
		}
		keys[name] = data
	}
	return keys, nil
}

// gossipKeyOf returns the node's own Ed25519 key, making it at the first time.
func gossipKeyOf(dataDir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(pkiDir(dataDir), "gossip.key")
	seed, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		return key, atomicfile.Write(path, key.Seed(), 0o600)
	}
	if err != nil {
		return nil, err
	}
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%s is damaged: it has %d bytes, want %d; remove it, a new one is made", path, len(seed), ed25519.SeedSize)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
