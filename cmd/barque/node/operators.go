package node

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/auditlog"
	"github.com/barque/barque/adminapi/hardening"
	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/cmd/barque/node/adapters"
	"github.com/barque/barque/cmd/barque/node/preflight"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/network/wireguard"
)

// handlers returns the operators' endpoints of this server's API.
func (s *server) handlers() map[string]http.Handler {
	logger := s.logger.With("part", "relay")
	servers := &adminapi.Servers{Pool: s.pool, Known: s.record.Servers, TLS: s.ids.CallTLS, AdminTLS: s.ids.CallAsAdmin,
		Logger: logger}
	relay := adminapi.NewRelay(s.options.Name, servers.All, s.ids.CallTLS(), s.ids.CallAsAdmin(),
		adminapi.Earlier(s.pool), logger)
	handlers := s.backups.Handlers(relay)
	handlers[clusterstatus.DiagnosisPath] = extra.MastersAndServers(http.MethodGet, relay.Pass(s.diagnosis().ServeHTTP))
	handlers[clusterstatus.StatusPath] = adminapi.StatusHandler(func(ctx context.Context) *clusterstatus.Observation {
		return s.says().Observe(ctx, s.record.Cluster.ID, s.store)
	})
	handlers[auditlog.Path] = extra.MastersAndServers(http.MethodGet,
		relay.Pass(auditlog.Handler(s.options.Name, s.access.audit.File)))
	handlers[cis.ReportPath] = extra.MastersAndServers(http.MethodGet, relay.Pass(hardening.Handler(s.hardening)))
	handlers[adminapi.MembersPath] = adminapi.MembersHandler(
		adapters.OrderedRemovals{Server: s.store, Book: s.joining.judge.Book, Logger: s.logger.With("part", "revocations")},
		s.leavers())
	handlers[token.Path] = adminapi.TokensHandler(s.joining.tokens, s.logger.With("part", "join"))
	certificates := s.certificatesAPI(servers)
	handlers[adminapi.RevocationsPath] = adminapi.RevocationsHandler(s.joining.revoked.Entries, s.joining.judge.Book,
		adminapi.InUse{IsCA: certificates.IsCA, Needed: s.joining.judge.Needed, Find: certificates.Find,
			Serials: certificates.Serials}, s.logger.With("part", "revocations"))
	handlers[adminapi.KeysPath] = adminapi.KeysHandler(s.keys)
	handlers[adminapi.EncryptionPath] = &adminapi.Encryption{Keys: s.encryption.manager, Resolve: s.encryptable,
		Relay: relay, Leader: s.leader, Logger: s.logger.With("part", "encryption")}
	handlers[clusterstatus.GossipPath] = adminapi.GossipHandler(s.options.Name, s.pool)
	certificates.AddHandlers(handlers)
	s.upgrade.AddHandlers(handlers)
	s.access.page.AddHandlers(handlers, servers, relay, s.logger.With("part", "page"))
	return handlers
}

// says returns this server's report on itself, from the parts started so far.
func (s *server) says() *adminapi.Report {
	r := &adminapi.Report{Self: s.options.Name, DataDir: s.options.DataDir, Started: s.started,
		Pool: s.late.pool.Load(), Certificates: s.ownCertificates, Trust: s.ids.Trust, Backups: s.backups,
		Logger: s.logger}
	r.Addresses, r.Edge, r.Conflicts = s.addresses.Answered, s.edgeStatus, s.conflicts.All
	if s.late.membersWithNodes.Load() != nil { // set after everything that these functions read
		r.Former, r.Apart, r.Exchange, r.Lost = s.leavers().Former, s.apartAgents, s.exchange.Status, s.lostVolumes
		r.Profiles = s.otherProfiles
		r.Unready, r.Failing, r.Admissions = s.unreadyNodes, s.failingCalls, s.joining.book.Admissions
		r.Upgrade = s.upgrade.Status
		r.AuditLosses, r.Files, r.DataKeys = s.auditLosses, s.configFiles, s.encryption.manager.Progress
	}
	return r
}

func (s *server) report(ctx context.Context) []byte { return s.says().JSON(ctx) }

// diagnosis returns this server's data for the doctor.
func (s *server) diagnosis() *adminapi.Diagnosis {
	o := s.options
	d := &adminapi.Diagnosis{
		Self: o.Name, DataDir: o.DataDir,
		Checks:  func() []check.Finding { return preflight.Check(o.DataDir, o.KubeletRootDir) },
		Store:   s.store,
		Gossip:  func(ctx context.Context) []clusterstatus.NodeView { return s.says().Views(ctx, true) },
		Options: o.Public(),
		Paths:   func(ctx context.Context) any { return adapters.Paths(ctx, s.pool, o.Name, o.Addr()) },
		Tunnels: func() any { return s.tunnels() },
		Secrets: []string{o.Token}, Keys: func() [][]byte { return s.record.GossipRing().Keys },
	}
	if o.Logs != nil {
		d.Logs = o.Logs
	}
	return d
}

// tunnels returns the nodes reached by WireGuard; nil without any.
func (s *server) tunnels() []wireguard.Seen {
	packets := s.packets.Load()
	if packets == nil {
		return nil
	}
	seen, err := packets.Tunnels()
	if err != nil {
		s.logger.Warn("cannot read WireGuard's state of other nodes", "err", err)
	}
	return seen
}

// ownCertificates describes this server's certificates, with a warning about the revoked ones.
func (s *server) ownCertificates() credentials.NodeCertificates {
	n := s.ids.Certificates()
	adminapi.MarkRevoked(&n, s.joining.revoked.Entries())
	return n
}

// agentNames are those of the agents with a Node, as far as this server knows.
func (s *server) agentNames() []string {
	known := s.synced()
	if known == nil {
		return nil
	}
	uids, _ := known.AgentUIDs()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(uids)), known.Marked) // a former server is no agent
}

// certificatesAPI shows the certificates of the cluster.
func (s *server) certificatesAPI(servers *adminapi.Servers) *adminapi.Certificates {
	return &adminapi.Certificates{
		Self: s.options.Name, Own: s.ownCertificates, Agents: s.agentNames, Revoked: s.joining.revoked.Entries,
		Renew: s.ids.Renew, Exchange: s.exchange, Ends: s.joining.judge.Overlap.Ends,
		Servers:  s.memberNames,
		IsServer: s.isServer, Call: servers.Call, Pool: s.pool, Trust: s.ids.Trust,
		CAFile:   credentials.CAFile(s.options.DataDir),
		Lifetime: s.options.CertificateLifetime, Logger: s.logger,
	}
}
