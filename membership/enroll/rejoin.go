package enroll

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// rejoinPlan is the grant to a node with data that joins again. Keys, certificates and record are
// separate files, and a mixture would belong to no cluster. So the whole grant is on disk before
// any file is replaced, and a node started in the middle continues. Each step may be repeated.
type rejoinPlan struct {
	Format int               `json:"format"`
	ID     string            `json:"id"`              // random; in the record once the plan was carried out
	Token  string            `json:"token,omitempty"` // ID of the token that it was granted for
	Server *join.ServerGrant `json:"server,omitempty"`
	Agent  *join.AgentGrant  `json:"agent,omitempty"`
}

// The formats of a plan. Earlier versions would lose new fields of the CAs in it, and refuse one
// with CAs of their own for purposes, or with an operator's.
const (
	rejoinFormat    = 2
	rejoinCAsFormat = 3
)

// format is that of the plan.
func (p *rejoinPlan) format() int {
	if p.Server != nil && p.Server.Cluster.CA.Form() > 0 {
		return rejoinCAsFormat
	}
	return rejoinFormat
}

// RejoinPath is where that plan is.
func RejoinPath(dataDir string) string { return filepath.Join(credentials.Dir(dataDir), "rejoin.json") }

// rejoinBy replaces the node's data by the grant.
func rejoinBy(o *Options, plan rejoinPlan) (*Record, error) {
	t, err := pki.ParseToken(o.Token)
	if err != nil {
		return nil, err
	}
	plan.Format, plan.ID, plan.Token = plan.format(), rand.Text(), t.ID
	data, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(RejoinPath(o.DataDir), data, 0o600); err != nil {
		return nil, fmt.Errorf("nothing was changed: %w", err)
	}
	return plan.carryOut(o)
}

// carryOut does the plan and ends it.
func (p *rejoinPlan) carryOut(o *Options) (*Record, error) {
	r, err := p.replace(o)
	if err != nil {
		return nil, err
	}
	return r, p.end(o.DataDir)
}

// end drops the data that were kept until the record was written.
func (p *rejoinPlan) end(dataDir string) error {
	return errors.Join(endAttempt(dataDir), atomicfile.Remove(RejoinPath(dataDir)))
}

func (p *rejoinPlan) replace(o *Options) (r *Record, err error) {
	// The store that they are for goes, too. A server gets its keys with the state of its store.
	if err := atomicfile.Remove(credentials.DataKeysFile(o.DataDir)); err != nil {
		return nil, fmt.Errorf("remove the data keys of before: %w", err)
	}
	switch {
	case p.Server != nil:
		r = &Record{Dir: o.DataDir, Phase: PhaseWiping, Name: o.Name, Role: pki.RoleServer, Cluster: p.Server.Cluster}
		err = saveGrant(o, *p.Server)
	case p.Agent != nil:
		r = &Record{Dir: o.DataDir, Phase: PhaseMember, Name: o.Name, Role: pki.RoleAgent, Cluster: p.Agent.Cluster,
			Fresh: true}
		err = errors.Join(credentials.SaveCertificates(o.DataDir, p.Agent.Certificates),
			credentials.WriteCA(o.DataDir, p.Agent.Cluster.CA))
	default:
		return nil, fmt.Errorf("%s is damaged: join again", RejoinPath(o.DataDir))
	}
	if err != nil {
		return nil, err
	}
	r.Rejoined, r.Token, r.Spent = p.ID, p.Token, p.Token
	return r, r.Save()
}

// counts reports whether a flag, --wipe or --rejoin, is given and not used up. It is used up when
// the node was let in with it and the same token, and its data have been needed since. So a unit
// may keep both. A token that is missing counts as the same: it is of no use after it was spent.
//
// Earlier versions did not note the flag of a node that began with an empty directory. For their
// nodes it counts: the cluster refuses a member, and a guess could keep data that are to go.
func (r *Record) counts(given bool, flag string, o *Options, logger *slog.Logger) (bool, error) {
	if !given || r == nil {
		return given, nil
	}
	spent := r.Spent
	if spent == "" && r.Rejoined != "" { // with the flag, by a version that did not note it
		spent = r.Token
	}
	if spent == "" {
		return true, nil
	}
	if o.Token != "" {
		if t, err := pki.ParseToken(o.Token); err != nil || t.ID != spent {
			return true, err
		}
	}
	if r.Role == pki.RoleServer {
		if ended, err := o.Ended(StoreDir(r.Dir)); err != nil || ended {
			return true, err
		}
	}
	logger.Info(
		"the token was used up when this node was let in: it starts with its data; to let it in anew, give another one",
		"flag", flag, "dataDir", r.Dir)
	return false, nil
}

// HasJoined reports whether a node has its place in a cluster, by its data directory. It needs no
// token any more.
func HasJoined(dataDir string) bool {
	r, err := Load(dataDir)
	return err == nil && r != nil && r.Phase != PhaseAsking
}

// finishRejoin continues an interrupted rejoin, before a node starts. It returns the record, or nil
// without an interrupted one.
func finishRejoin(o *Options, role string, logger *slog.Logger) (*Record, error) {
	data, err := os.ReadFile(RejoinPath(o.DataDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var p rejoinPlan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; remove it and join again", RejoinPath(o.DataDir), err)
	}
	if p.Format != rejoinFormat && p.Format != rejoinCAsFormat {
		return nil,
			fmt.Errorf("%s was written by another version of Barque (format %d, this one reads %d and %d)",
				RejoinPath(o.DataDir), p.Format, rejoinFormat, rejoinCAsFormat)
	}
	old, err := Load(o.DataDir)
	if err != nil {
		return nil, err
	}
	if old != nil { // otherwise the directory's owner is unknown
		if err := old.sameName(o, role); err != nil {
			return nil, err
		}
		if p.ID != "" && old.Rejoined == p.ID {
			// The record is written last, so all is done. The node's later data must not be
			// dropped.
			return old, p.end(o.DataDir)
		}
	}
	logger.Info("going on with joining again", "dataDir", o.DataDir)
	return p.carryOut(o)
}
