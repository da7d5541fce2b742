package backups

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/raftstore"
)

// Recovery makes one server the first of a new cluster with the old cluster's data. It is for a
// cluster that has lost its quorum for good. The carriers of the cluster's ID change:
//
//	store/     the ID in the servers' greeting: the old members and this one refuse each other
//	node.json  the ID, which is also gossip's label; new gossip keys; no other known server
//
// Everything else stays: the CA and thus certificates and kubeconfigs, the names, and the API's
// data with tokens and service accounts.
//
// The recovery is a plan on disk with repeatable steps. A server that is started in the middle
// finishes it.
type Recovery struct {
	Format    int    `json:"format"`
	ClusterID string `json:"clusterID"` // the new one
	Was       string `json:"was"`
	GossipKey []byte `json:"gossipKey"`
}

const recoverFormat = 1

func recoverPath(dataDir string) string { return filepath.Join(dataDir, "recover.json") }

// DataDir is a server's data directory, as a recovery needs it.
type DataDir interface {
	Path() string
	StoreDir() string
	// ServerName fails if the directory is no server's.
	ServerName() (string, error)
	// CheckUnused fails at once if a process uses the directory.
	CheckUnused() error
	// Lock keeps a server from starting with it.
	Lock() (io.Closer, error)
	// Cluster returns the ID of the server's cluster.
	Cluster() (string, error)
	// BeginAs records that the server is of a new cluster, without other known servers. It may be
	// repeated.
	BeginAs(clusterID string, gossipKey []byte) error
}

// Survey reads the data directory of a server that does not run.
func Survey(dir DataDir, logger *slog.Logger) (s Survivor, err error) {
	if s.Name, err = dir.ServerName(); err != nil {
		return s, err
	}
	if err := dir.CheckUnused(); err != nil {
		return s, err
	}
	plan, err := LoadRecovery(dir.Path())
	if err != nil {
		return s, err
	}
	s.DataDir = dir.Path()
	if plan != nil {
		s.Recovering = plan.ClusterID
	}
	s.Report, err = raftstore.Inspect(dir.StoreDir(), logger)
	return s, err
}

// SurveyAll reads data directories of servers. It fails at once for a running server.
func SurveyAll(dirs []DataDir, logger *slog.Logger) ([]Survivor, error) {
	var all []Survivor
	for _, dir := range dirs {
		one, err := Survey(dir, logger)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// RecoverSurvivor is Recover for a survivor and its directory.
func RecoverSurvivor(s *Survivor, dir DataDir, logger *slog.Logger) (*Recovered, error) {
	id, err := Recover(dir, logger)
	if err != nil {
		return nil, err
	}
	return &Recovered{Server: s.Name, DataDir: s.DataDir, Cluster: id, Was: s.ClusterID}, nil
}

// Recover turns the server of the data directory into the first of a new cluster, or finishes an
// interrupted recovery. It returns the new cluster's ID.
func Recover(dir DataDir, logger *slog.Logger) (string, error) {
	held, err := dir.Lock() // a server started meanwhile finishes it, too
	if err != nil {
		return "", err
	}
	defer held.Close()
	plan, err := LoadRecovery(dir.Path())
	if err != nil {
		return "", err
	}
	if plan == nil {
		was, err := dir.Cluster()
		if err != nil {
			return "", err
		}
		plan = &Recovery{Format: recoverFormat, ClusterID: rand.Text()[:10], Was: was, GossipKey: make([]byte, 32)}
		if _, err := rand.Read(plan.GossipKey); err != nil {
			return "", err
		}
		data, err := json.MarshalIndent(plan, "", "  ")
		if err != nil {
			return "", err
		}
		if err := atomicfile.Write(recoverPath(dir.Path()), append(data, '\n'), 0o600); err != nil {
			return "", fmt.Errorf("begin the recovery: %w", err)
		}
	}
	return plan.ClusterID, plan.carryOut(dir, logger)
}

// LoadRecovery returns nil when no recovery is under way.
func LoadRecovery(dataDir string) (*Recovery, error) {
	data, err := os.ReadFile(recoverPath(dataDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := new(Recovery)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", recoverPath(dataDir), err)
	}
	if p.Format > recoverFormat {
		return nil,
			fmt.Errorf("%s was written by a newer Barque (format %d, this one reads up to %d)", recoverPath(dataDir),
				p.Format, recoverFormat)
	}
	return p, nil
}

// carryOut executes the rest of the plan. Each step may be repeated.
func (p *Recovery) carryOut(dir DataDir, logger *slog.Logger) error {
	if err := raftstore.Recover(
		raftstore.RecoverConfig{Dir: dir.StoreDir(), ClusterID: p.ClusterID, Logger: logger}); err != nil {
		return err
	}
	if err := dir.BeginAs(p.ClusterID, p.GossipKey); err != nil {
		return err
	}
	if err := atomicfile.Remove(recoverPath(dir.Path())); err != nil {
		return fmt.Errorf("end the recovery: %w", err)
	}
	logger.Warn("this server was recovered as the first of a new cluster", "cluster", p.ClusterID, "was", p.Was)
	return nil
}

// FinishRecovery continues an interrupted recovery, before a server starts.
func FinishRecovery(dir DataDir, logger *slog.Logger) error {
	plan, err := LoadRecovery(dir.Path())
	if err != nil || plan == nil {
		return err
	}
	return plan.carryOut(dir, logger)
}
