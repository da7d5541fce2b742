package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Recovery makes one server, whose cluster has lost its quorum for good, the first of a new cluster
// with the old one's data. What carries the cluster's ID changes with it:
//
//	store/     the ID that servers greet each other with: the old members and this one refuse each other
//	node.json  the ID, which is gossip's label, too; new gossip keys; nobody else is known
//
// Everything else stays: the CA, so certificates and kubeconfigs go on to work; the names; the
// API's data, in which tokens and service accounts are.
//
// It is a plan on disk, whose steps can be repeated. A server that is started in the middle
// finishes it.
type recoverPlan struct {
	Format    int    `json:"format"`
	ClusterID string `json:"clusterID"` // the new one
	Was       string `json:"was"`
	GossipKey []byte `json:"gossipKey"`
}

const recoverFormat = 1

func recoverPath(dataDir string) string { return filepath.Join(dataDir, "recover.json") }

// Survivor is what a data directory, or a copy of one, knows.
type Survivor struct {
	Name    string `json:"name"`
	DataDir string `json:"dataDir"`
	*raftstore.Report
	// Recovering is the new cluster of a recovery that was begun here and not finished.
	Recovering string `json:"recovering,omitempty"`
}

// Survey reads data directories of servers that do not run. It fails with a *UsedError, at once,
// for one that does.
func Survey(dataDirs []string, logger *slog.Logger) ([]Survivor, error) {
	var all []Survivor
	for _, dir := range dataDirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		name, err := ServerName(dir)
		if err != nil {
			return nil, err
		}
		if err := checkUnused(dir); err != nil {
			return nil, err
		}
		plan, err := loadRecoverPlan(dir)
		if err != nil {
			return nil, err
		}
		s := Survivor{Name: name, DataDir: dir}
		if plan != nil {
			s.Recovering = plan.ClusterID
		}
		if s.Report, err = raftstore.Inspect(storeDir(dir), logger); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// UnfitError tells why a directory is not the one to recover.
type UnfitError struct{ Reason string }

func (e *UnfitError) Error() string { return e.Reason }

// Choose checks that the first of the survivors is the one to recover: nothing better is known.
func Choose(all []Survivor) error {
	first := all[0]
	if err := first.fit(); err != nil || first.Recovering != "" {
		return err // one that is being recovered is past the choice
	}
	if votesAlone(first.Members) {
		return unfit("%s is the only server of cluster %s that votes, so there is no quorum to recover: start it, and nothing is lost", first.Name, first.ClusterID)
	}
	for _, s := range all[1:] {
		switch {
		case s.ClusterID != first.ClusterID:
			return unfit("%s is of cluster %s and %s is of cluster %s: give directories of one cluster", s.DataDir, s.ClusterID, first.DataDir, first.ClusterID)
		case s.fit() == nil && s.Newer(first.Report):
			return unfit("%s has more than %s: its log ends with entry %d of term %d, the other one's with entry %d of term %d. Recover that one",
				s.DataDir, first.DataDir, s.LastIndex, s.LastTerm, first.LastIndex, first.LastTerm)
		}
	}
	return nil
}

// Best returns the one that Choose accepts when it is the first; if it accepts none, the error
// tells why, of each that nobody should recover. Where GoesOn tells of another cluster, it is the
// best one only if that is given up.
func Best(all []Survivor) (*Survivor, error) {
	best := -1
	for i, s := range all {
		if s.Recovering != "" {
			return &all[i], nil
		}
		if s.fit() == nil && (best < 0 || s.Newer(all[best].Report)) {
			best = i
		}
	}
	if best < 0 {
		var reasons []string
		for _, s := range all {
			reasons = append(reasons, s.fit().Error())
		}
		return nil, unfit("%s", strings.Join(reasons, "; "))
	}
	if err := Choose(slices.Concat(all[best:best+1], all[:best], all[best+1:])); err != nil {
		return nil, err
	}
	return &all[best], nil
}

// GoesOn tells as which other cluster that of the survivor goes on, as one of the directories has
// learned; nil when none has.
func GoesOn(of *Survivor, all []Survivor) *raftstore.Succession {
	if of.Superseded != nil {
		return of.Superseded
	}
	for _, s := range all {
		if s.Superseded != nil && s.Superseded.Cluster == of.ClusterID {
			return s.Superseded
		}
	}
	return nil
}

func unfit(format string, args ...any) error { return &UnfitError{fmt.Sprintf(format, args...)} }

// fit tells why nobody should recover the directory, whatever others have.
func (s *Survivor) fit() error {
	switch {
	case s.Recovering != "":
		return nil
	case s.Quarantined != "":
		return unfit("the state of %s is known to be wrong: %s", s.DataDir, s.Quarantined)
	case s.Removed != nil:
		return unfit("%s was taken out of the cluster at %s, so it does not know what came after", s.DataDir, s.Removed.At)
	case !slices.ContainsFunc(s.Members, func(m raftstore.Member) bool { return m.Self }):
		return unfit("%s is not of a member: it never heard all of the data", s.DataDir)
	}
	return nil
}

// votesAlone tells whether nobody but the server itself has a vote. A recovery would only shut the
// others out.
func votesAlone(members []raftstore.Member) bool {
	others := slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Voter && !m.Self })
	return !others && slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Voter && m.Self })
}

// Recover makes the server of the data directory the first of a new cluster, or finishes what was
// begun. It returns the new cluster's ID.
func Recover(dataDir string, logger *slog.Logger) (string, error) {
	held, err := lockData(context.Background(), dataDir) // a server that is started meanwhile finishes it, too
	if err != nil {
		return "", err
	}
	defer held.Close()
	plan, err := loadRecoverPlan(dataDir)
	if err != nil {
		return "", err
	}
	if plan == nil {
		r, err := loadRecord(dataDir)
		switch {
		case err != nil:
			return "", err
		case r == nil || r.Role != pki.RoleServer || r.Phase != phaseMember:
			return "", fmt.Errorf("%s is not the data directory of a server that is a member of its cluster", dataDir)
		}
		plan = &recoverPlan{Format: recoverFormat, ClusterID: rand.Text()[:10], Was: r.Cluster.ID, GossipKey: make([]byte, 32)}
		if _, err := rand.Read(plan.GossipKey); err != nil {
			return "", err
		}
		data, err := json.MarshalIndent(plan, "", "  ")
		if err != nil {
			return "", err
		}
		if err := atomicfile.Write(recoverPath(dataDir), append(data, '\n'), 0o600); err != nil {
			return "", fmt.Errorf("begin the recovery: %w", err)
		}
	}
	return plan.ClusterID, plan.carryOut(dataDir, logger)
}

// loadRecoverPlan returns nil when no recovery is under way.
func loadRecoverPlan(dataDir string) (*recoverPlan, error) {
	data, err := os.ReadFile(recoverPath(dataDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := new(recoverPlan)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", recoverPath(dataDir), err)
	}
	if p.Format > recoverFormat {
		return nil, fmt.Errorf("%s was written by a newer Barque (format %d, this one reads up to %d)", recoverPath(dataDir), p.Format, recoverFormat)
	}
	return p, nil
}

// carryOut does what is left of the plan. Each step may be repeated.
func (p *recoverPlan) carryOut(dataDir string, logger *slog.Logger) error {
	if err := raftstore.Recover(raftstore.RecoverConfig{Dir: storeDir(dataDir), ClusterID: p.ClusterID, Logger: logger}); err != nil {
		return err
	}
	r, err := loadRecord(dataDir)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%s has no node.json any more", dataDir)
	}
	r.Cluster.ID, r.Cluster.GossipKeys, r.Cluster.KeyGeneration, r.Cluster.Servers = p.ClusterID, [][]byte{p.GossipKey}, 0, nil
	if err := r.save(); err != nil {
		return err
	}
	if err := atomicfile.Remove(recoverPath(dataDir)); err != nil {
		return fmt.Errorf("end the recovery: %w", err)
	}
	logger.Warn("this server was recovered as the first of a new cluster", "cluster", p.ClusterID, "was", p.Was)
	return nil
}

// finishRecovery goes on with a recovery that was begun, before a server starts.
func finishRecovery(dataDir string, logger *slog.Logger) error {
	plan, err := loadRecoverPlan(dataDir)
	if err != nil || plan == nil {
		return err
	}
	return plan.carryOut(dataDir, logger)
}
