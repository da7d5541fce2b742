package clusterstatus

import (
	"cmp"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Assemble makes the status of the cluster from the observations of one or more servers. A server's
// own report outranks another server's copy of it. Of two copies the one with the newer leader
// counts. There is at least one observation, and all are of one cluster.
func Assemble(now time.Time, observations ...*Observation) *ClusterStatus {
	return AssembleFor(Services(), now, observations...)
}

// AssembleFor is Assemble with other procedures in the warnings.
func AssembleFor(procedures Procedures, now time.Time, observations ...*Observation) *ClusterStatus {
	observations = slices.Clone(observations)
	slices.SortStableFunc(observations, func(a, b *Observation) int { return cmp.Compare(b.rank(), a.rank()) })
	a := &assembly{now: now, base: observations[0], observed: observations, members: map[string]*MemberStatus{},
		former: map[string][]FormerServer{}, apart: map[string][]ApartAgent{}, lost: map[string][]LostVolume{},
		objects: map[string]*ServerReport{}, cas: map[string]*exchange.Status{}}
	a.status = &ClusterStatus{ID: a.base.Cluster, Time: now}
	for _, o := range observations {
		a.status.From = append(a.status.From, o.From)
	}
	a.peers = mergePeers(observations)
	a.nodes()
	a.servers()
	a.joined()
	a.leader()
	a.exchange()
	a.quorum()
	s := a.finish()
	s.Warnings = warningsOf(s, a.statuses(), procedures)
	s.Health = healthOf(s)
	return s
}

// rank orders observations by the term of the leader that they know, 0 without a leader.
func (o *Observation) rank() uint64 {
	var term uint64
	for _, p := range o.Peers {
		if p.Status != nil && p.Status.Role == "leader" {
			term = max(term, p.Status.Term)
		}
	}
	return term
}

// mergePeers returns the members of the first observation, each with its best report in any
// observation.
func mergePeers(observations []*Observation) []raftstore.PeerStatus {
	peers := slices.Clone(observations[0].Peers)
	for i := range peers {
		for _, o := range observations {
			for _, p := range o.Peers {
				if p.Member.ID == peers[i].Member.ID && p.Status != nil && (peers[i].Status == nil || p.Member.Self) {
					peers[i].Status, peers[i].Error = p.Status, ""
				}
			}
		}
	}
	return peers
}

// assembly is a status that is being made.
type assembly struct {
	now      time.Time
	base     *Observation
	observed []*Observation
	peers    []raftstore.PeerStatus
	status   *ClusterStatus
	members  map[string]*MemberStatus
	lead     *raftstore.Status         // of the leader
	former   map[string][]FormerServer // by the name of the observing server
	apart    map[string][]ApartAgent   // by the same
	objects  map[string]*ServerReport  // of which Unready and Failing count; by the same
	lost     map[string][]LostVolume   // by the same
	cas      map[string]*exchange.Status
}

func (a *assembly) nodes() {
	for _, v := range a.base.Nodes {
		a.members[v.Node] = &MemberStatus{Name: v.Node, Role: v.Role, Address: v.Address, API: v.API, Zone: v.Zone,
			Version: v.Version, Gossip: v.State, GossipPort: v.GossipPort, Since: v.Since, Faults: v.Faults}
	}
}

func (a *assembly) servers() {
	for i := range a.peers {
		p := &a.peers[i]
		m := a.members[p.Member.Name]
		if m == nil {
			m = &MemberStatus{Name: p.Member.Name, Role: pki.RoleServer, Gossip: "unknown"}
			if host, _, err := net.SplitHostPort(p.Member.Address); err == nil {
				m.Address = host
			}
			a.members[m.Name] = m
		}
		m.Voter, m.Problem = p.Member.Voter, p.Error
		s := p.Status
		if s == nil {
			continue
		}
		m.Version = cmp.Or(s.Version, m.Version)
		m.Store = storeStatusOf(s)
		a.status.Term, a.status.Revision = max(a.status.Term, s.Term), max(a.status.Revision, s.Revision)
		if s.Role == "leader" && (a.lead == nil || s.Term > a.lead.Term) {
			a.lead, a.status.Leader = s, m.Name
		}
		a.detail(m, s.Detail)
	}
}

// joined adds how the members joined, by the newest note of any server.
func (a *assembly) joined() {
	for _, o := range a.observed {
		for name, j := range o.Joined {
			if m := a.members[name]; m != nil && (m.Joined == nil || j.At.After(m.Joined.At)) {
				m.Joined = new(j)
			}
		}
	}
}

// detail adds a server's report on itself and on its paths to the others.
func (a *assembly) detail(m *MemberStatus, d *raftstore.Detail) {
	if d == nil {
		return
	}
	for _, w := range d.Ways {
		way := WayStatus{To: w.Name, Error: w.Error}
		if w.Error == "" {
			way.RTTSeconds = new(w.RTT.Seconds())
		}
		m.Ways = append(m.Ways, way)
	}
	slices.SortFunc(m.Ways, func(a, b WayStatus) int { return strings.Compare(a.To, b.To) })
	var r ServerReport
	if json.Unmarshal(d.Report, &r) != nil {
		return // a server of another version, which reports it differently
	}
	m.Views, m.Certificates, m.Backups, m.Disk, m.Started = r.Nodes, r.Certificates, r.Backups, r.Disk, r.Started
	m.AuditLosses, m.Files, m.DataKeys, m.Conflicts = r.AuditLosses, r.Files, r.DataKeys, r.Conflicts
	a.former[m.Name], a.apart[m.Name], a.lost[m.Name], a.objects[m.Name] = r.Former, r.Apart, r.Lost, &r
	if r.CA != nil {
		a.cas[m.Name] = r.CA
	}
	slices.SortFunc(m.Views, func(a, b NodeView) int { return strings.Compare(a.Node, b.Node) })
	if !r.Time.IsZero() {
		m.ClockOffset = r.Time.Sub(a.base.Time).Round(time.Second).Seconds()
	}
	if f := m.backup(); f != nil && (a.status.Backup == nil || f.Created.After(a.status.Backup.Created)) {
		a.status.Backup = f
	}
}

func (m *MemberStatus) backup() *BackupFile {
	if m.Backups == nil {
		return nil
	}
	return m.Backups.Newest
}

// leader adds the leader's view: the others' health, and the time and reason of its election.
func (a *assembly) leader() {
	s := a.status
	for _, p := range a.peers {
		// all servers have the same state, the leader the newest
		if p.Status != nil && (s.Store.Keys == 0 || p.Status == a.lead) {
			s.Store = SizeStatus{Keys: p.Status.Keys, Bytes: p.Status.StateBytes, Limit: p.Status.StateLimit,
				Space: p.Status.Space}
		}
	}
	if a.lead == nil {
		return
	}
	a.formerServers()
	a.apartAgents()
	a.unready()
	a.agentProfiles()
	a.status.Lost = a.lost[a.status.Leader]
	if r := a.objects[a.status.Leader]; r != nil {
		a.status.Addresses, a.status.Edge, a.status.Upgrade = r.Addresses, r.Edge, r.Upgrade
	}
	names := a.names()
	for _, h := range a.lead.Health {
		m := a.members[names[h.ID]]
		if m == nil {
			continue
		}
		m.Health = &HealthStatus{Healthy: h.Healthy, Reason: h.Reason, State: string(h.State),
			StableSeconds: h.Stable.Seconds(), SilentSeconds: h.Silent.Seconds(),
			BlockedSeconds: h.Blocked.Seconds()}
		if m.Store != nil && m.Store.State != "leader" {
			m.Store.LagEntries = h.Lag
			if h.LagFor > 0 || h.Lag == 0 {
				m.Store.LagSeconds = new(h.LagFor.Seconds())
			}
		}
	}
	for _, c := range a.lead.Changes {
		s.LeaderChanges = append(s.LeaderChanges,
			LeaderChange{At: c.At, Term: c.Term, Leader: cmp.Or(names[c.Leader], c.Leader),
				Before: cmp.Or(names[c.Before], c.Before), Reason: c.Why, GapSeconds: c.Gap.Seconds()})
		if c.Leader == a.lead.ID && c.Term == a.lead.Term && s.LeaderSince.IsZero() {
			s.LeaderSince, s.LeaderReason = c.At, a.whyElected(c)
		}
	}
}

// formerServers adds those in the leader's view. Another server may not have learned yet that a
// server has joined again.
func (a *assembly) formerServers() {
	for _, f := range a.former[a.status.Leader] {
		// by later reports
		if !slices.ContainsFunc(a.peers, func(p raftstore.PeerStatus) bool { return p.Member.Name == f.Name }) {
			a.status.Former = append(a.status.Former, f)
		}
	}
}

// apartAgents adds agents in the leader's view that no server sees in gossip. Any server may know
// an agent's cluster ID: the one that the agent has asked.
func (a *assembly) apartAgents() {
	said := map[string]string{}
	for _, server := range slices.Sorted(maps.Keys(a.apart)) {
		for _, agent := range a.apart[server] {
			said[agent.Name] = cmp.Or(agent.Cluster, said[agent.Name])
		}
	}
	for _, agent := range a.apart[a.status.Leader] {
		if a.members[agent.Name] == nil {
			agent.Cluster = said[agent.Name]
			a.members[agent.Name] = &MemberStatus{Name: agent.Name, Role: pki.RoleAgent, Gossip: unknownToGossip}
			a.status.Apart = append(a.status.Apart, agent)
		}
	}
}

// aroundChange is the largest difference of two servers' clocks within one change of leaders.
const aroundChange = 30 * time.Second

// whyElected returns the reason of the leader's election: why the leader before it was one no more.
// A leader that gave it up may have been elected again.
func (a *assembly) whyElected(c raftstore.LeaderChange) string {
	before, why := a.whyGone(c)
	why = cmp.Or(why, c.Why)
	if before == c.Leader && why != "" {
		return "it was elected again; before that, " + why
	}
	return why
}

// whyGone returns the ID of the former leader and its own reason for leaving, which is the most
// reliable one. If the leader has none, as after a restart, it returns another server's
// observation.
func (a *assembly) whyGone(c raftstore.LeaderChange) (before, why string) {
	if c.Before == "" {
		return a.seenByOthers(c)
	}
	for _, p := range a.peers {
		if p.Status == nil || p.Member.ID != c.Before {
			continue
		}
		for _, own := range p.Status.Changes {
			if own.Leader == "" && own.Before == c.Before && own.Term <= c.Term &&
				c.At.Sub(own.At).Abs() < aroundChange {
				return c.Before, own.Why
			}
		}
	}
	return c.Before, ""
}

// seenByOthers returns the same from a server that knows the former leader.
func (a *assembly) seenByOthers(c raftstore.LeaderChange) (before, why string) {
	for _, p := range a.peers {
		if p.Status == nil {
			continue
		}
		for _, seen := range p.Status.Changes {
			if seen.Leader == c.Leader && seen.Term == c.Term && seen.Before != "" && seen.Why != "" {
				before, why := a.whyGone(seen)
				return before, cmp.Or(why, seen.Why)
			}
		}
	}
	return "", ""
}

// names maps the members' IDs to their names.
func (a *assembly) names() map[string]string {
	names := map[string]string{}
	for _, p := range a.peers {
		names[p.Member.ID] = p.Member.Name
	}
	return names
}

func (a *assembly) quorum() {
	q := &a.status.Quorum
	for _, p := range a.peers {
		if !p.Member.Voter {
			continue
		}
		q.Voters++
		if p.Status != nil && p.Status.Quarantined == "" {
			q.Answering++
		}
	}
	q.Needed = q.Voters/2 + 1
	q.MayFail = max(0, q.Answering-q.Needed)
}

func (a *assembly) finish() *ClusterStatus {
	s := a.status
	for _, name := range slices.Sorted(maps.Keys(a.members)) {
		s.Members = append(s.Members, *a.members[name])
	}
	// servers first
	slices.SortStableFunc(s.Members, func(a, b MemberStatus) int { return -strings.Compare(a.Role, b.Role) })
	return s
}

// statuses are the servers' own words, by name.
func (a *assembly) statuses() map[string]*raftstore.Status {
	out := map[string]*raftstore.Status{}
	for _, p := range a.peers {
		if p.Status != nil {
			out[p.Member.Name] = p.Status
		}
	}
	return out
}

// healthOf is the status in one word.
func healthOf(s *ClusterStatus) ClusterHealth {
	switch {
	case s.Leader == "":
		return NoQuorum
	case len(s.Warnings) > 0:
		return Degraded
	}
	return Healthy
}

func storeStatusOf(s *raftstore.Status) *StoreStatus {
	out := &StoreStatus{ID: s.ID, State: s.Role, Term: s.Term, Applied: s.AppliedIndex, Committed: s.CommitIndex,
		Revision: s.Revision, Keys: s.Keys,
		Bytes: s.StateBytes, Hash: s.StateHash, DiskWrites: s.DiskWrites, DiskP50Seconds: s.DiskP50.Seconds(),
		DiskP99Seconds: s.DiskP99.Seconds(),
		DiskError:      s.DiskError, DiskFull: s.DiskFull, Quarantined: s.Quarantined}
	if s.Extension > 0 {
		out.SchedulingDelaySeconds, out.ExtensionSeconds = s.SchedulingDelay.Seconds(), s.Extension.Seconds()
	}
	if s.Role != "leader" && s.LastContact >= 0 {
		out.LastContactSeconds = new(s.LastContact.Seconds())
	}
	return out
}

// seenDead reports whether the answering server's gossip has lost the node.
func (m *MemberStatus) seenDead() bool { return m.Gossip == gossip.Dead }

// Warn adds a warning to those from the servers' reports.
func (s *ClusterStatus) Warn(w Warning) {
	s.Warnings = append(s.Warnings, w)
	s.Health = healthOf(s)
}
