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

// rejoinPlan is what a node with data was granted when it joined again. Keys, certificates and
// record are files of their own, and half of them would be of no cluster; so the whole grant is on
// disk before any is replaced, and a node that is started in the middle goes on with it. Each step
// may be repeated.
type rejoinPlan struct {
	Format int               `json:"format"`
	ID     string            `json:"id"`              // random; the record has it once the plan was carried out
	Token  string            `json:"token,omitempty"` // ID of the token that it was granted for
	Server *join.ServerGrant `json:"server,omitempty"`
	Agent  *join.AgentGrant  `json:"agent,omitempty"`
}

const rejoinFormat = 2

// RejoinPath is where that plan is.
func RejoinPath(dataDir string) string { return filepath.Join(credentials.Dir(dataDir), "rejoin.json") }

// rejoinBy replaces what the node has by what it was granted.
func rejoinBy(o *Options, plan rejoinPlan) (*Record, error) {
	t, err := pki.ParseToken(o.Token)
	if err != nil {
		return nil, err
	}
	plan.Format, plan.ID, plan.Token = rejoinFormat, rand.Text(), t.ID
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

// end drops what was needed until the record was written.
func (p *rejoinPlan) end(dataDir string) error {
	return errors.Join(endAttempt(dataDir), atomicfile.Remove(RejoinPath(dataDir)))
}

func (p *rejoinPlan) replace(o *Options) (r *Record, err error) {
	switch {
	case p.Server != nil:
		r = &Record{Dir: o.DataDir, Phase: PhaseWiping, Name: o.Name, Role: pki.RoleServer, Cluster: p.Server.Cluster}
		err = saveGrant(o, *p.Server)
	case p.Agent != nil:
		r = &Record{Dir: o.DataDir, Phase: PhaseMember, Name: o.Name, Role: pki.RoleAgent, Cluster: p.Agent.Cluster}
		err = errors.Join(credentials.SaveCertificates(o.DataDir, p.Agent.Certificates), credentials.WriteCA(o.DataDir, p.Agent.Cluster.CA))
	default:
		return nil, fmt.Errorf("%s is damaged: join again", RejoinPath(o.DataDir))
	}
	if err != nil {
		return nil, err
	}
	r.Rejoined, r.Token = p.ID, p.Token
	return r, r.Save()
}

// finishRejoin goes on with a joining again that was granted, before a node starts. It returns the
// record if there was one to go on with, or nil.
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
	if p.Format != rejoinFormat {
		return nil, fmt.Errorf("%s was written by another version of Barque (format %d, this one reads %d)", RejoinPath(o.DataDir), p.Format, rejoinFormat)
	}
	old, err := Load(o.DataDir)
	if err != nil {
		return nil, err
	}
	if old != nil { // else nothing says whose the directory is
		if err := old.sameName(o, role); err != nil {
			return nil, err
		}
		if p.ID != "" && old.Rejoined == p.ID {
			// The record came last, so all is done. What the node has stored since must not be
			// dropped.
			return old, p.end(o.DataDir)
		}
	}
	logger.Info("going on with joining again", "dataDir", o.DataDir)
	return p.carryOut(o)
}
