package node

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// What agents tell of their certificates, by gossip: the servers issue them and keep none.

// about is what an agent tells of itself to who asks.
func (ids *agentIdentities) about() json.RawMessage {
	now := time.Now()
	own := []CertificateInfo{infoOf("api-client", ids.client.Certificate().Leaf, true, now), infoOf("kubelet", ids.serving.Certificate().Leaf, true, now)}
	own[0].File, own[1].File = ids.file(clientFile), ids.file(servingFile)
	data, err := json.Marshal(own)
	if err != nil {
		ids.logger.Error("this agent cannot tell of its certificates", "err", err)
		return nil
	}
	return data
}

const (
	// aboutPatience bounds how long one agent is waited for, and agentsPatience all of them.
	aboutPatience  = 2 * time.Second
	agentsPatience = 8 * time.Second
	// agentsAtOnce bounds how many are asked at a time.
	agentsAtOnce = 32
)

// agentCertificates describes those of all agents. Those that live are asked.
func (s *server) agentCertificates(ctx context.Context, now time.Time) []NodeCertificates {
	ctx, cancel := context.WithTimeout(ctx, agentsPatience)
	defer cancel()
	var agents []gossip.Member
	for _, m := range s.pool.Members() {
		if m.Role != pki.RoleServer {
			agents = append(agents, m)
		}
	}
	out := make([]NodeCertificates, len(agents))
	turn := make(chan struct{}, agentsAtOnce)
	var asking sync.WaitGroup
	for i, m := range agents {
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			out[i] = s.certificatesOfAgent(ctx, m, now)
		})
	}
	asking.Wait()
	return out
}

func (s *server) certificatesOfAgent(ctx context.Context, m gossip.Member, now time.Time) NodeCertificates {
	n := NodeCertificates{Node: m.Name, Role: m.Role, Generation: m.Facts.Trust}
	if m.State == gossip.Alive {
		ctx, cancel := context.WithTimeout(ctx, aboutPatience)
		defer cancel()
		told, err := s.pool.AboutOf(ctx, m.Name)
		if err == nil {
			n.Certificates, err = toldCertificates(told, now)
		}
		if err != nil {
			n.Problem = fmt.Sprintf("it does not tell of those of its kubelet: %v", err)
		}
	}
	proof := s.credentialInfo(m.Name, m.ProvenUntil, m.ProvenBy, now)
	proof.RenewAt = m.ProvenUntil.Add(-s.options.CertificateLifetime / 3)
	n.Certificates = append(n.Certificates, proof)
	for i := range n.Certificates {
		if c := &n.Certificates[i]; overdue(c.RenewAt, c.NotAfter, now) {
			c.Warning = "it should have been renewed: see the log of that agent; one that was off gets new ones when it starts"
		}
	}
	n.Certificates[len(n.Certificates)-1].RenewAt = time.Time{} // that was a guess: the server that issued it may have another lifetime
	return n
}

// toldCertificates reads what an agent tells. How much time is left is judged by this server's
// clock.
func toldCertificates(told json.RawMessage, now time.Time) ([]CertificateInfo, error) {
	var certificates []CertificateInfo
	if err := json.Unmarshal(told, &certificates); err != nil {
		return nil, fmt.Errorf("what it says is not understood: %w", err)
	}
	for i := range certificates {
		certificates[i].SecondsLeft, certificates[i].Warning = int64(certificates[i].NotAfter.Sub(now).Seconds()), ""
	}
	return certificates, nil
}
