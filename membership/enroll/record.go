package enroll

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/membership/skew"
	"github.com/barque/barque/pki"
)

// The format is raised when an older Barque could no longer read a data directory. A server's has
// plainFormat while its store has no encrypted objects: earlier versions know no other, and could
// not read these. While a CA is External it has externalFormat, and while a purpose has CAs of its
// own separateFormat: earlier versions would lose the fields that are new.
const (
	separateFormat  = 6
	externalFormat  = 5
	encryptedFormat = 4
	plainFormat     = 3
)

// Phases of a node's membership. A node stopped in one continues there.
const (
	PhaseBootstrap = "bootstrap" // begins its own cluster
	PhaseAsking    = "asking"    // asks a server for admission, and must not begin its own cluster
	PhaseJoining   = "joining"   // has the cluster's secrets, and is no member of the store yet
	PhaseMember    = "member"
	PhaseWiping    = "wiping" // was admitted as a new server, and drops the store that it had before
)

// Restore is the backup whose state a new cluster begins with.
type Restore struct {
	File    string `json:"file"`
	KeyFile string `json:"keyFile,omitempty"`
	// Gap is the distance of the new cluster's revision to the backup's. The new revision must be
	// above all that the old cluster handed out after the backup.
	Gap uint64 `json:"gap"`
}

// Backup is the data of a backup for a new cluster, without the state.
type Backup struct {
	ClusterID string
	Created   time.Time
	Revision  uint64
	Items     uint64
	Settings  json.RawMessage
	Secrets   map[string][]byte // by file name; nil without any
}

// Options configure how a node enters its cluster.
type Options struct {
	DataDir, Name string
	Address       netip.Addr
	Labels        map[string]string // that the node registers with

	Join, Token           string // the address of a server to join, and the token for it
	Replace, Wipe, Rejoin bool
	// Ended reports whether the store in that directory knows that it is needed no more: its server
	// was removed, or its cluster has a successor. Servers only.
	Ended func(storeDir string) (bool, error)

	APIPort, PeerPort, KubeletPort uint16
	GossipPort                     uint16 // 0: the cluster's, see Record.GossipPort

	// CAFile and CAKeyFile are those of an external CA, with which a new cluster begins: see
	// pki.ReadExternal. Certificates describes those that the server issues to itself.
	CAFile, CAKeyFile string
	Certificates      func() []pki.Request

	Restore    Restore
	ReadBackup func() (Backup, error) // reads the backup in Restore
	// Settings returns those of a new cluster. Those of a backup, nil without one, take precedence
	// over the defaults.
	Settings func(ofBackup json.RawMessage) (json.RawMessage, error)
}

// Record is a node's record of its cluster: DataDir/node.json. The gossip keys in it are secret.
type Record struct {
	Format  int    `json:"format"`              // in the file; in memory plainFormat or encryptedFormat
	Encrypt bool   `json:"encrypted,omitempty"` // with a higher format, for encryptedFormat
	Phase   string `json:"phase"`
	Name    string `json:"name"`
	Role    string `json:"role"`
	// that used the directory last; empty: one from before the first release
	Version string       `json:"version,omitempty"`
	Asked   string       `json:"asked,omitempty"` // address of that server, while asking
	Cluster join.Cluster `json:"cluster"`         // Cluster.Servers: see servers

	// on an agent: servers that show no life, and for how many hours; see absences
	Missed map[string]int `json:"missedHours,omitempty"`

	Rejoined string `json:"rejoined,omitempty"` // ID of the rejoinPlan that made the record
	Token    string `json:"token,omitempty"`    // ID of the token by which the node was let in, or let in again
	Spent    string `json:"spent,omitempty"`    // that, if --wipe or --rejoin was given with it

	// Fresh is set on an agent from its admission until it is registered as a node.
	Fresh bool `json:"fresh,omitempty"`

	Restore  *Restore `json:"restore,omitempty"`  // the backup whose state is not in the store yet
	Restored string   `json:"restored,omitempty"` // the backup that the cluster began with

	Dir string     `json:"-"`
	mu  sync.Mutex // guards Cluster, Missed, Fresh and Format once the node runs
}

// Servers returns the cluster's last known servers.
func (r *Record) Servers() []join.Server {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.Cluster.Servers)
}

// ClusterID is the ID of the node's cluster, in its own view.
func (r *Record) ClusterID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Cluster.ID
}

// CA returns the CAs that this node trusts.
func (r *Record) CA() pki.Bundle {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Cluster.CA
}

// Believe stores the CAs that this node trusts from now on, also as a file for people and other
// programs.
func (r *Record) Believe(b pki.Bundle) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.Cluster.CA
	r.Cluster.CA = b
	if err := r.Save(); err != nil {
		r.Cluster.CA = before
		return err
	}
	return credentials.WriteCA(r.Dir, b)
}

// Remember merges the servers in gossip into the recorded ones for the next start, and stores
// changes. A server missing in gossip stays: just after a start gossip shows none. Servers in gone
// are dropped.
func (r *Record) Remember(seen []join.Server, gone []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := slices.DeleteFunc(slices.Clone(r.Cluster.Servers),
		func(k join.Server) bool { return slices.Contains(gone, k.Name) })
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
	if err := r.Save(); err != nil {
		r.Cluster.Servers = before // so that the next call tries again
		return err
	}
	return nil
}

// missed returns the servers that show no life, and for how many hours.
func (r *Record) missed() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.Missed)
}

// miss stores them, if that is news.
func (r *Record) miss(hours map[string]int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if maps.Equal(r.Missed, hours) {
		return nil
	}
	before := r.Missed
	r.Missed = hours
	if err := r.Save(); err != nil {
		r.Missed = before // so that the next call tries again
		return err
	}
	return nil
}

// Path is where it is.
func (r *Record) Path() string { return filepath.Join(r.Dir, "node.json") }

// Load reads a node's record; nil when the data directory is new.
func Load(dir string) (*Record, error) {
	data, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Record{Dir: dir}
	if err := json.Unmarshal(data, r); err != nil {
		return nil,
			fmt.Errorf("%s is damaged: %w; restore it from a backup, or join again with an empty data directory",
				r.Path(), err)
	}
	if r.Format > separateFormat {
		return nil,
			fmt.Errorf(
				"data directory %s was written by a newer Barque (format %d, this one reads up to %d): start that version again", dir, r.Format, separateFormat)
	}
	if r.Format >= externalFormat {
		if r.Format = plainFormat; r.Encrypt {
			r.Format = encryptedFormat
		}
	}
	if r.Format < plainFormat {
		return nil,
			fmt.Errorf(
				"data directory %s was written by an older Barque (format %d, this one reads %d), before the first release: begin with an empty directory", dir, r.Format, plainFormat)
	}
	return r, nil
}

// useDirectory notes that this version uses the data directory, unless it may not. A full disk
// keeps no server from its start, so a note that cannot be written is only a warning.
func useDirectory(dir string, logger *slog.Logger) error {
	r, err := Load(dir)
	if err != nil || r == nil {
		return err
	}
	own := version.String()
	if err := skew.Start(r.Dir, r.Role, r.Version, own); err != nil || r.Version == own {
		return err
	}
	if err := r.Save(); err != nil {
		logger.Warn("cannot note the version that uses the data directory", "dir", dir, "version", own, "err", err)
	}
	return nil
}

// ServerName returns the name of the server whose data directory it is. For any other directory the
// error has ExitUsage.
func ServerName(dataDir string) (string, error) {
	r, err := Load(dataDir)
	switch {
	case err != nil:
		return "", err
	case r == nil || r.Role != pki.RoleServer:
		return "", WrongOption("%s is no server's data directory: give its own with --data-dir", dataDir)
	}
	return r.Name, nil
}

// KnownServers returns the API addresses in a data directory's record of servers; none if it is
// unreadable.
func KnownServers(dataDir string) []string {
	r, err := Load(dataDir)
	if err != nil || r == nil {
		return nil
	}
	var out []string
	for _, s := range r.Servers() {
		out = append(out, s.API.String())
	}
	return out
}

// NoteEncryption writes down whether the server's store may have encrypted objects.
func (r *Record) NoteEncryption(encrypts bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, next := r.Format, plainFormat
	if encrypts {
		next = encryptedFormat
	}
	if r.Format = next; before == next {
		return nil
	}
	if err := r.Save(); err != nil {
		r.Format = before
		return err
	}
	return nil
}

// Save writes the record down.
func (r *Record) Save() error {
	r.Version = version.String()
	if r.Format != encryptedFormat {
		r.Format = plainFormat
	}
	r.Encrypt = false
	if format, form := r.Format, r.Cluster.CA.Form(); r.Role == pki.RoleServer && form > 0 {
		r.Format, r.Encrypt = externalFormat, format == encryptedFormat
		if form == pki.SeparateForm {
			r.Format = separateFormat
		}
		defer func() { r.Format = format }()
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(r.Path(), append(data, '\n'), 0o600)
}

// SameNode refuses a data directory of another node. The token by which this one was let in may
// name a CA that the cluster has exchanged since.
func (r *Record) SameNode(o *Options, role string) error {
	if err := r.sameName(o, role); err != nil || o.Token == "" {
		return err
	}
	t, err := pki.ParseToken(o.Token)
	if err != nil {
		return err
	}
	if t.ID != r.Token && !r.Cluster.CA.Knows(t.CADigest) {
		return r.otherCluster()
	}
	return nil
}

func (r *Record) sameName(o *Options, role string) error {
	if r.Role != role {
		return fmt.Errorf("data directory %s belongs to %s %q; it cannot run as %s", r.Dir, r.Role, r.Name, role)
	}
	if r.Name != o.Name {
		return fmt.Errorf("data directory %s belongs to node %q, not to %q: give --name %s, or another --data-dir",
			r.Dir, r.Name, o.Name, r.Name)
	}
	return nil
}

// otherCluster returns the advice for a token of another cluster. A cluster whose first start
// failed, as for a taken port, has no acknowledged writes.
func (r *Record) otherCluster() error {
	if r.Phase == PhaseBootstrap {
		return fmt.Errorf(
			"data directory %s belongs to another cluster than the token, to %s, which has never run: if it was created by mistake, remove the directory", r.Dir, r.Cluster.ID)
	}
	again := "--wipe"
	if r.Role == pki.RoleAgent {
		again = "--rejoin"
	}
	return fmt.Errorf(
		"data directory %s belongs to another cluster than the token, to %s: give a token of that one, or another --data-dir; "+
			"if that cluster has exchanged its CA while this node was away, add %s", r.Dir, r.Cluster.ID, again)
}

// sameCluster refuses a cluster other than the data directory's, for a node that is readmitted.
// After a recovery the cluster has another ID. After an absence its CA may be unknown to this node:
// then the cluster still knows one of this node's earlier CAs.
func (r *Record) sameCluster(is join.Cluster) error {
	known, err := r.Cluster.CA.Digests()
	if err != nil {
		return fmt.Errorf("%s: the cluster's CA: %w", r.Path(), err)
	}
	if !slices.ContainsFunc(known, is.CA.Knows) {
		return r.otherCluster()
	}
	return nil
}

// bootstrapRecord begins a new cluster: its CAs and keys are on disk before the record.
func bootstrapRecord(o *Options, clusterID string, cas newCAs) (*Record, error) {
	settings, err := o.Settings(nil)
	if err != nil {
		return nil, err
	}
	r, err := newRecord(o, clusterID, cas.bundle, cas.keys, settings)
	if err != nil {
		return nil, err
	}
	return r, r.Save()
}

// newRecord writes the CAs and their keys, by file name, and makes the record without writing it.
func newRecord(
	o *Options, clusterID string, cas pki.Bundle, keys map[string][]byte, settings json.RawMessage,
) (*Record, error) {
	for name, data := range keys {
		if err := atomicfile.Write(filepath.Join(credentials.Dir(o.DataDir), name), data, 0o600); err != nil {
			return nil, err
		}
	}
	if err := credentials.WriteCA(o.DataDir, cas); err != nil {
		return nil, err
	}
	if len(cas.AccountKeys) == 0 {
		account, err := pki.LoadOrCreateKey(filepath.Join(credentials.Dir(o.DataDir), credentials.ServiceAccountKey))
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
	r := &Record{Dir: o.DataDir, Phase: PhaseBootstrap, Name: o.Name, Role: pki.RoleServer,
		Cluster: join.Cluster{ID: clusterID, CA: cas, GossipKeys: [][]byte{gossipKey}, Settings: settings,
			GossipPort: GossipPort}}
	return r, nil
}

// GossipRing returns the gossip keys on disk.
func (r *Record) GossipRing() keyring.Ring {
	r.mu.Lock()
	defer r.mu.Unlock()
	return keyring.Ring{Generation: r.Cluster.KeyGeneration, Keys: slices.Clone(r.Cluster.GossipKeys)}
}

// Registered notes that the agent is a node now.
func (r *Record) Registered() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.Fresh {
		return nil
	}
	r.Fresh = false
	return r.Save()
}

// SetGossipRing writes other gossip keys to the disk, in a file that is its owner's alone.
func (r *Record) SetGossipRing(ring keyring.Ring) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys, generation := r.Cluster.GossipKeys, r.Cluster.KeyGeneration
	r.Cluster.GossipKeys, r.Cluster.KeyGeneration = ring.Keys, ring.Generation
	if err := r.Save(); err != nil {
		r.Cluster.GossipKeys, r.Cluster.KeyGeneration = keys, generation
		return err
	}
	return nil
}
