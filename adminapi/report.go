package adminapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Report collects a server's report on itself and on the cluster from these sources.
type Report struct {
	Self, DataDir string
	Started       time.Time
	// Pool is nil before the server has begun to gossip.
	Pool         *gossip.Pool
	Certificates func() credentials.NodeCertificates
	Trust        *pki.Trust
	Backups      interface {
		Status() *clusterstatus.BackupStatus
	}
	// The others are nil before the Nodes are synced.
	Former   func() []clusterstatus.FormerServer
	Apart    func() []clusterstatus.ApartAgent
	Profiles func() []clusterstatus.AgentProfile
	Unready  func() []clusterstatus.UnreadyNode
	Failing  func() []clusterstatus.FailingCall
	Exchange func() exchange.Status
	DataKeys func(ctx context.Context) datakeys.Progress
	Lost     func() []clusterstatus.LostVolume
	// Addresses returns those for which nodes answer; nil while this server does not lead.
	Addresses func() []clusterstatus.AnsweredAddress
	// Edge returns the pools, and the faults of Services and routes; nil while this server does not
	// lead. Conflicts are the addresses of this server for which another machine answers.
	Edge      func() *clusterstatus.EdgeStatus
	Upgrade   func() *clusterstatus.UpgradeStatus
	Conflicts func() []clusterstatus.Conflict
	// AuditLosses returns the sinks of the audit log that have lost events.
	AuditLosses func() []clusterstatus.AuditLoss
	// Files returns the configuration files that must be the same on all servers.
	Files func() []clusterstatus.ConfigFile
	// Admissions returns how machines joined; nil before the store is open.
	Admissions func(ctx context.Context) (map[string]admissions.Admission, error)
	Logger     *slog.Logger
}

// Observe asks all members of the store for their state. It takes as long as the slowest member, at
// most the store's timeout for a call. It needs neither a leader nor a quorum.
func (r *Report) Observe(ctx context.Context, cluster string, store interface {
	PeerDetails(ctx context.Context) []raftstore.PeerStatus
}) *clusterstatus.Observation {
	nodes := r.Views(ctx, false)
	peers := store.PeerDetails(ctx)
	return &clusterstatus.Observation{Cluster: cluster, From: r.Self, Time: time.Now(), Nodes: nodes, Peers: peers,
		Joined: r.joined(ctx)}
}

// joined returns how machines joined, from this server's records.
func (r *Report) joined(ctx context.Context) map[string]clusterstatus.JoinedStatus {
	if r.Admissions == nil {
		return nil
	}
	all, err := r.Admissions(ctx)
	if err != nil {
		r.Logger.Warn("the status does not say how machines joined", "err", err)
	}
	out := map[string]clusterstatus.JoinedStatus{}
	for name, a := range all {
		out[name] = clusterstatus.JoinedStatus{At: a.At, Token: a.TokenID, By: a.By}
	}
	return out
}

// JSON is this server's ServerReport, the part of an observation outside the store.
func (r *Report) JSON(ctx context.Context) []byte {
	s := clusterstatus.ServerReport{Time: time.Now(), Started: r.Started, Nodes: r.Views(ctx, true),
		Certificates: r.certificateEnds(), Backups: r.Backups.Status(), Disk: volumeOf(r.DataDir)}
	if r.Former != nil {
		s.Former = r.Former()
	}
	if r.Apart != nil {
		s.Apart = r.Apart()
	}
	if r.Profiles != nil {
		s.Profiles = r.Profiles()
	}
	if r.Unready != nil {
		s.Unready = r.Unready()
	}
	if r.Failing != nil {
		s.Failing = r.Failing()
	}
	if r.Lost != nil {
		s.Lost = r.Lost()
	}
	if r.Addresses != nil {
		s.Addresses = r.Addresses()
	}
	if r.Edge != nil {
		s.Edge = r.Edge()
	}
	if r.Upgrade != nil {
		s.Upgrade = r.Upgrade()
	}
	if r.Conflicts != nil {
		s.Conflicts = r.Conflicts()
	}
	if r.AuditLosses != nil {
		s.AuditLosses = r.AuditLosses()
	}
	if r.Files != nil {
		s.Files = r.Files()
	}
	if r.Exchange != nil {
		s.CA = new(r.Exchange())
	}
	if r.DataKeys != nil {
		s.DataKeys = new(r.DataKeys(ctx))
	}
	data, err := json.Marshal(s)
	if err != nil {
		r.Logger.Error("this server cannot report on itself", "err", err)
		return nil
	}
	return data
}

// certificateEnds returns the ends of this server's certificates and of the CAs that it trusts.
func (r *Report) certificateEnds() []clusterstatus.CertificateStatus {
	var out []clusterstatus.CertificateStatus
	for _, c := range r.Certificates().Certificates {
		out = append(out,
			clusterstatus.CertificateStatus{Name: c.Name, NotBefore: c.NotBefore, NotAfter: c.NotAfter,
				Warning: c.Warning})
	}
	now, stays := time.Now(), !r.Trust.Bundle().ExchangesCA()
	for _, ca := range r.Trust.EveryCA() {
		c := clusterstatus.CertificateStatus{Name: credentials.NameOf(r.Trust, ca),
			NotBefore: ca.Certificate().NotBefore, NotAfter: ca.Certificate().NotAfter, External: ca.External()}
		if stays {
			c.Warning = credentials.CAWarning(ca, r.Trust.Issuer().External(), 0, now)
		}
		out = append(out, c)
	}
	return out
}

// Views returns this server's view of all nodes; none before it has begun to gossip. With asks it
// probes the other servers first, which takes a second at most.
func (r *Report) Views(ctx context.Context, asks bool) []clusterstatus.NodeView {
	if r.Pool == nil {
		return nil
	}
	seen := map[string]gossip.Seen{}
	if asks {
		for _, m := range r.Pool.View(ctx).Members {
			seen[m.Name] = m
		}
	}
	var views []clusterstatus.NodeView
	for _, m := range r.Pool.Members() {
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
