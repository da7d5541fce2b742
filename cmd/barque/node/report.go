package node

import (
	"context"
	"encoding/json"
	"time"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
)

// observe asks all members of the store. It takes as long as the slowest of them, at most the
// store's time-out for a call, and needs neither a leader nor a quorum.
func (s *server) observe(ctx context.Context) *clusterstatus.Observation {
	nodes := s.gossipViews(ctx, false)
	peers := s.store.PeerDetails(ctx)
	return &clusterstatus.Observation{Cluster: s.record.Cluster.ID, From: s.options.Name, Time: time.Now(), Nodes: nodes, Peers: peers}
}

// report is this server's part of an observation that the store does not know.
func (s *server) report(ctx context.Context) []byte {
	r := clusterstatus.ServerReport{Time: time.Now(), Started: s.started, Nodes: s.gossipViews(ctx, true), Certificates: s.certificateEnds(), Backups: s.backups.Status(), Disk: adminapi.VolumeOf(s.options.DataDir), Former: s.formerServers(), Apart: s.apartAgents(), CA: s.exchangeStatus()}
	data, err := json.Marshal(r)
	if err != nil {
		s.logger.Error("this server cannot report on itself", "err", err)
		return nil
	}
	return data
}

// certificateEnds tells until when the certificates of this server, and the CAs that it believes,
// are good.
func (s *server) certificateEnds() []clusterstatus.CertificateStatus {
	own, now := s.ids.Certificates().Certificates, time.Now()
	for _, ca := range s.ids.Trust.CAs() {
		own = append(own, credentials.InfoOf("ca", ca.Certificate(), false, now))
	}
	var out []clusterstatus.CertificateStatus
	for _, c := range own {
		out = append(out, clusterstatus.CertificateStatus{Name: c.Name, NotBefore: c.NotBefore, NotAfter: c.NotAfter, Warning: c.Warning})
	}
	return out
}

// gossipViews is how this server sees all nodes; none before it has begun to gossip. With asks the
// other servers are asked for an answer first, which takes a second at most.
func (s *server) gossipViews(ctx context.Context, asks bool) []clusterstatus.NodeView {
	pool := s.met.Load()
	if pool == nil {
		return nil
	}
	seen := map[string]gossip.Seen{}
	if asks {
		for _, m := range pool.View(ctx).Members {
			seen[m.Name] = m
		}
	}
	var views []clusterstatus.NodeView
	for _, m := range pool.Members() {
		v := clusterstatus.ViewOf(m)
		if last, ok := seen[m.Name]; ok {
			v.Silent, v.Heard = last.Silent, last.Heard
			if last.Heard != nil {
				v.RTTSeconds = new(last.RTT)
			}
		}
		views = append(views, v)
	}
	return views
}

// exchangeStatus is how far this server sees the exchange of the CA; nil before it knows the nodes.
func (s *server) exchangeStatus() *exchange.Status {
	if s.nodes.Load() == nil { // stored after all that this looks at is there
		return nil
	}
	return new(s.exchange.Status())
}
