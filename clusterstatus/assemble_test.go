package clusterstatus

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/group"
)

var Noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// world is a cluster of three servers, s1 of which leads, as s1 saw it at noon. Tests break it.
type world struct {
	Observation
	reports map[string]*ServerReport
}

func newWorld() *world {
	w := &world{Observation: Observation{Cluster: "c", From: "s1", Time: Noon}, reports: map[string]*ServerReport{}}
	for _, name := range []string{"s1", "s2", "s3"} {
		w.Nodes = append(w.Nodes,
			NodeView{Node: name, Role: pki.RoleServer, Address: "10.0.0." + name[1:],
				API: "10.0.0." + name[1:] + ":6443", GossipPort: 6445, State: gossip.Alive, Version: "v1"})
		s := &raftstore.Status{ID: name + ".x", Name: name, Role: "follower", Term: 7, LeaderID: "s1.x", Revision: 100,
			AppliedIndex: 120, Keys: 5, StateBytes: 500, StateLimit: 1 << 20, Version: "v1",
			LastContact: 20 * time.Millisecond, DiskP50: time.Millisecond, DiskP99: 9 * time.Millisecond,
			Detail: &raftstore.Detail{}}
		w.Peers = append(w.Peers,
			raftstore.PeerStatus{Status: s,
				Member: raftstore.Member{ID: s.ID, Name: name, Address: "10.0.0." + name[1:] + ":6444", Voter: true,
					Leader: name == "s1", Self: name == "s1"}})
		w.reports[name] = &ServerReport{Time: Noon, Started: Noon.Add(-48 * time.Hour),
			Certificates: []CertificateStatus{
				{Name: "api", NotBefore: Noon.AddDate(0, -6, 0), NotAfter: Noon.AddDate(0, 6, 0)}},
			Disk: &VolumeStatus{Path: "/var/lib/barque", Bytes: 100 << 30, Free: 50 << 30},
			Backups: &BackupStatus{EverySeconds: 12 * 3600, Keep: 5,
				Newest: &BackupFile{Server: name, Created: Noon.Add(-time.Duration(name[1]-'0') * time.Hour)}}}
	}
	for i, p := range w.Peers {
		for j, other := range w.Peers {
			if i != j {
				p.Status.Detail.Ways = append(p.Status.Detail.Ways,
					raftstore.Way{ID: other.Member.ID, Name: other.Member.Name, RTT: 300 * time.Microsecond})
			}
		}
	}
	lead := w.server("s1")
	lead.Role, lead.LastContact = "leader", -1
	lead.Changes = []raftstore.LeaderChange{
		{At: Noon.Add(-time.Hour), Term: 7, Leader: "s1.x", Before: "s3.x",
			Why: "s3 handed over, or another server campaigned"},
		{At: Noon.Add(-time.Hour), Term: 6, Before: "s3.x", Why: "s3 handed over, or another server campaigned"},
		{At: Noon.Add(-9 * time.Hour), Term: 6, Leader: "s3.x"},
	}
	for _, p := range w.Peers {
		lead.Health = append(lead.Health,
			raftstore.MemberHealth{ID: p.Member.ID, Name: p.Member.Name, Healthy: true, Stable: time.Minute})
	}
	return w
}

func (w *world) server(name string) *raftstore.Status { return w.Peers[name[1]-'1'].Status }

func (w *world) silence(name, why string) {
	p := &w.Peers[name[1]-'1']
	p.Status, p.Error = nil, why
}

// agent adds a living agent in a version, and gives the servers theirs.
func (w *world) agent(name, of, servers string) {
	w.Nodes = append(w.Nodes, NodeView{Node: name, Role: pki.RoleAgent, State: gossip.Alive, Version: of})
	for _, p := range w.Peers {
		p.Status.Version = servers
	}
}

// agents are further agents as gossip sees them.
func (w *world) agents(state gossip.State, names ...string) {
	for _, name := range names {
		w.Nodes = append(w.Nodes, NodeView{Node: name, Role: pki.RoleAgent, State: state, Since: Noon})
	}
}

// view is how a server sees a node by gossip; all see all alive at first.
func (w *world) view(by, node string, state gossip.State) {
	r := w.reports[by]
	for i := range r.Nodes {
		if r.Nodes[i].Node == node {
			r.Nodes[i].State = state
		}
	}
}

func (w *world) observe(t *testing.T) *Observation {
	t.Helper()
	for i := range w.Peers {
		p := &w.Peers[i]
		if p.Status == nil || p.Status.Detail == nil {
			continue
		}
		data, err := json.Marshal(w.reports[p.Member.Name])
		if err != nil {
			t.Fatal(err)
		}
		p.Status.Detail.Report = data
	}
	return &w.Observation
}

func TestAssembleAHealthyCluster(t *testing.T) {
	w := newWorld()
	w.server("s3").Changes = []raftstore.LeaderChange{
		{At: Noon.Add(-time.Hour - time.Millisecond), Term: 6, Before: "s3.x",
			Why: "s3 gave it up: it has handed over to s1, because it stops"}}
	s := Assemble(Noon, w.observe(t))
	if s.Health != Healthy || len(s.Warnings) > 0 || s.ID != "c" || s.Leader != "s1" || s.Term != 7 ||
		s.Revision != 100 {
		t.Errorf("%+v", s)
	}
	if !s.LeaderSince.Equal(Noon.Add(-time.Hour)) ||
		s.LeaderReason != "s3 gave it up: it has handed over to s1, because it stops" {
		t.Errorf("it leads since %v: %s", s.LeaderSince, s.LeaderReason)
	}
	if c := s.LeaderChanges; len(c) != 3 || c[0].Leader != "s1" || c[0].Before != "s3" || c[2].Leader != "s3" {
		t.Errorf("changes %+v", c)
	}
	if s.Quorum != (QuorumStatus{Voters: 3, Needed: 2, Answering: 3, MayFail: 1}) ||
		s.Store != (SizeStatus{Keys: 5, Bytes: 500, Limit: 1 << 20}) || s.Backup == nil || s.Backup.Server != "s1" {
		t.Errorf("quorum %+v, store %+v, backup %+v", s.Quorum, s.Store, s.Backup)
	}
	if len(s.Members) != 3 {
		t.Fatalf("%d members", len(s.Members))
	}
	m := s.Members[1]
	if m.Name != "s2" || m.API != "10.0.0.2:6443" || len(m.Ways) != 2 || *m.Ways[0].RTTSeconds != 0.0003 ||
		*m.Store.LastContactSeconds != 0.02 || *m.Store.LagSeconds != 0 || m.Health.StableSeconds != 60 {
		t.Errorf("%+v, store %+v, health %+v", m, m.Store, m.Health)
	}
	if s.Members[0].Store.LastContactSeconds != nil {
		t.Error("the leader has a last contact with the leader")
	}
}

// TestWarnings breaks one thing at a time. Each must be told, be told of the right server, and come
// with a way out.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		breaks   func(w *world)
		health   ClusterHealth
		severity Severity
		node     string
		text     string
		mend     string
	}{
		"one is dead": {func(w *world) {
			w.silence("s3", "connection refused")
			w.Nodes[2].State = gossip.Dead
			w.Nodes[2].Since = Noon
		},
			Degraded, Critical, "s3",
			"s3 does not answer, and shows no life since 2026-11-20T12:00:00Z: connection refused",
			"barque cluster remove s3"},
		"no quorum": {func(w *world) {
			w.silence("s2", "refused")
			w.silence("s3", "refused")
			w.server("s1").Role = "follower"
			w.server("s1").Changes = []raftstore.LeaderChange{
				{At: Noon, Before: "s2.x", Why: "nothing was heard of s2 for 2s"}}
		}, NoQuorum, Critical, "",
			"no leader since 2026-11-20T12:00:00Z (nothing was heard of s2 for 2s), so nothing can be written: 1 of the 3 servers with a vote answers, and 2 are needed", "barque cluster recover --inspect"},
		"another cluster in its place": {func(w *world) {
			w.silence("s1", "it belongs to another cluster")
			w.silence("s3", "refused")
			w.server("s2").Foreign = map[string]string{"10.0.0.1:6444": "new"}
		}, NoQuorum, Critical, "", "a server of another cluster is at 10.0.0.1, where one of this was expected",
			"barque cluster status --server 10.0.0.1 shows the other one: if that took the place of this one, do not recover this one"},
		"left behind by a recovery": {func(w *world) {
			w.silence("s1", "it belongs to another cluster")
			w.silence("s3", "refused")
			w.server("s2").Superseded = &raftstore.Succession{Successor: "new", By: "s1.x", At: Noon}
		}, NoQuorum, Critical, "", "cluster new, which server s1 began, goes on in its place, without s2",
			"with that of s1; do not recover this one"},
		"an election": {func(w *world) { w.server("s1").Role = "candidate" }, NoQuorum, Critical, "",
			"they should elect one within seconds", "--watch"},
		"quarantine": {func(w *world) { w.server("s2").Quarantined = "it differs" }, Degraded, Critical, "s2",
			"in quarantine and serves nothing: it differs", "--wipe"},
		"disk error": {func(w *world) { w.server("s2").DiskError = "EIO" }, Degraded, Critical, "s2",
			"cannot write its log and falls behind: EIO", "dmesg"},
		"disk full": {func(w *world) { w.server("s2").DiskFull = true }, Degraded, Critical, "s2",
			"is full and it runs on its reserve", "df -h"},
		"slow disk": {func(w *world) { w.server("s2").DiskP50 = 80 * time.Millisecond }, Degraded, Attention, "s2",
			"half of its writes to the log take 80ms", "iostat"},
		"demoted": {func(w *world) {
			w.Peers[2].Member.Voter = false
			w.server("s1").Health[2] = raftstore.MemberHealth{ID: "s3.x", Healthy: true, State: group.Standby,
				Reason: "it was told to stay without a vote"}
		}, Degraded, Attention, "s3", "it was told to stay without a vote", "barque cluster promote s3"},
		"ill": {func(w *world) {
			w.server("s1").Health[2] = raftstore.MemberHealth{ID: "s3.x", Reason: "it is behind"}
		}, Degraded, Attention, "s3", "it is behind", "status"},
		"lag": {func(w *world) {
			w.server("s1").Health[1].Lag, w.server("s1").Health[1].LagFor = 12, 20*time.Second
		}, Degraded, Attention, "s2", "s2 is 12 entries behind the leader, which is 20s", "top"},
		"clock": {func(w *world) { w.reports["s2"].Time = Noon.Add(-time.Minute) }, Degraded, Attention, "s2",
			"the clock of server s2 is 1m0s off", "timedatectl"},
		"volume": {func(w *world) { w.reports["s2"].Disk.Free = 1 << 30 }, Degraded, Attention, "s2",
			"nearly full: 1024 MiB", "df -h /var/lib/barque"},
		"backup to come": {func(w *world) { w.reports["s2"].Backups.Newest.Created = Noon.AddDate(1, 0, 0) }, Degraded,
			Attention, "s2", "newest backup of server s2 is dated 2027-", "timedatectl status"},
		"old backup": {func(w *world) { w.reports["s2"].Backups.Newest.Created = Noon.AddDate(0, 0, -2) }, Degraded,
			Attention, "s2", "newest backup of server s2 is of 2026-11-18", "barque snapshot save"},
		"no backup": {func(w *world) { w.reports["s2"].Backups.Newest = nil }, Degraded, Attention, "s2",
			"made no backup", "barque snapshot save"},
		"a backup without its key": {func(w *world) {
			w.server("s2").Warnings = []string{"the scheduled backup failed"}
			w.reports["s2"].Backups.Problem, w.reports["s2"].Backups.Mend = "the scheduled backup failed",
				"put the key back"
		}, Degraded, Attention, "s2", "the scheduled backup failed", "put the key back"},
		"disk full, as the leader finds": {func(w *world) {
			w.server("s2").DiskFull = true
			w.server("s1").Health[1] = raftstore.MemberHealth{ID: "s2.x", Reason: "its disk is full"}
		}, Degraded, Critical, "s2", "is full and it runs on its reserve",
			"df -h /var/lib/barque; du -xh /var/lib/barque"},
		"failed backup": {func(w *world) { w.server("s2").Warnings = []string{"the scheduled backup failed"} },
			Degraded, Attention, "s2", "the scheduled backup failed", "barque snapshot save"},
		"unsealed backups, unasked": {func(w *world) {
			for _, name := range []string{"s1", "s3"} {
				w.reports[name].Backups.Refused = "no key seals them"
			}
		}, Degraded, Attention, "", "no scheduled backups are made by s1, s3: no key seals them",
			"--snapshot-unsealed"},
		"ended": {func(w *world) { w.reports["s2"].Certificates[0].NotAfter = Noon.Add(-time.Second) }, Degraded,
			Critical, "s2", `certificate "api" of server s2 ended`, "barque cert rotate --server s2"},
		"a CA of the cluster's own ends, beside one brought": {func(w *world) {
			r := w.reports["s2"]
			r.Certificates = append(r.Certificates,
				CertificateStatus{Name: "ca", NotAfter: Noon.AddDate(1, 0, 0), External: true},
				CertificateStatus{Name: "peers-ca", NotAfter: Noon.AddDate(0, 0, 1), Warning: "it ends soon"})
		}, Degraded, Attention, "s2", "it ends soon", "barque cert rotate --ca --ca-file CHAIN --ca-key-file KEY"},
		"ends soon": {
			func(w *world) { w.reports["s2"].Certificates[0].Warning = "it should have been renewed" }, Degraded,
			Attention, "s2", "it should have been renewed", "barque cert rotate --server s2"},
		"store low": {func(w *world) { w.server("s1").Space = "low" }, Degraded, Attention, "",
			"the store fills up", "--store-memory-limit"},
		"store full": {func(w *world) { w.server("s1").Space = "full" }, Degraded, Critical, "",
			"the store is full", "--store-memory-limit"},
		"undecided": {func(w *world) { w.server("s1").Undecided = "states differ" }, Degraded, Critical, "s1",
			"states differ", "status"},
		"an unknown peer": {func(w *world) { w.server("s2").Foreign = map[string]string{"10.0.0.1:6444": "other"} },
			Degraded, Critical, "s2", "another cluster, other, at 10.0.0.1:6444",
			"start the others; only if that cluster goes on in place of this one, which is abandoned: barque server --wipe"},
		"superseded": {func(w *world) { w.server("s2").Superseded = &raftstore.Succession{Successor: "other"} },
			Degraded, Critical, "s2", "superseded: cluster other goes on in place of its own, and it stops",
			"barque server --wipe"},
		"an agent is apart": {func(w *world) { w.reports["s1"].Apart = []ApartAgent{{Name: "a9"}} }, Degraded,
			Attention, "a9", "agent a9 is Ready, and no server sees it by gossip", "barque kubectl delete node a9"},
		"an agent is a stray": {func(w *world) {
			w.reports["s1"].Apart = []ApartAgent{{Name: "a9"}}
			w.reports["s2"].Apart = []ApartAgent{{Name: "a9", Cluster: "old"}} // the one that it has asked
		}, Degraded, Attention, "a9", "agent a9 considers itself a member of another cluster, old",
			"barque agent --rejoin"},
		"an agent has another profile": {func(w *world) {
			w.agents(gossip.Alive, "a1", "a2")
			w.reports["s1"].Profiles = OtherProfiles("cis", map[string]string{"a1": "none", "a2": "cis"})
			w.reports["s2"].Profiles = OtherProfiles("none", map[string]string{"a2": "cis"}) // not the leader's view
		}, Degraded, Attention, "a1", "another profile than the servers, none in place of cis: a1. ",
			"barque agent --profile cis"},
		"agents have another profile": {func(w *world) {
			w.agents(gossip.Alive, "a1", "a2", "a3", "a4", "a5", "a6")
			w.reports["s1"].Profiles = OtherProfiles("cis",
				map[string]string{"a1": "none", "a2": "none", "a3": "none", "a4": "none", "a5": "none", "a6": "none"})
		}, Degraded, Attention, "", "none in place of cis: a1, a2, a3, a4, a5 and 1 more",
			"barque agent --profile cis"},
		"one-way": {func(w *world) { w.server("s2").Detail.Ways[1].Error = "timeout" },
			Degraded, Critical, "s2", "s2 does not reach server s3, although s3 reaches s2: timeout",
			"nc -zv 10.0.0.3 6444"},
		"far": {
			func(w *world) { w.server("s2").Detail.Ways[1].RTT = 250 * time.Millisecond }, Degraded, Attention, "s2",
			"from server s2 to s3 and back takes 250ms", "cat /proc/net/dev"},
		"versions": {func(w *world) { w.server("s2").Version = "v2" }, Degraded,
			Attention, "", "s1 v1, s2 v2, s3 v1", "one version"},
		"versions that do not fit": {func(w *world) { w.server("s2").Version = "v1.37.2+barque.v0.2.0" },
			Degraded, Critical, "",
			"server s1 has version v1, from before v0.1.0, and server s2 has v0.2.0: servers may be one minor version apart", "one version"},
		"an agent in an old version": {
			func(w *world) { w.agent("a1", "v1.37.2+barque.v0.1.0", "v1.37.2+barque.v0.1.1") }, Degraded, Attention, "",
			"agents run other versions than the servers (v0.1.1): v0.1.0 (a1)", "restart barque-agent"},
		"an agent from before the first release": {
			func(w *world) { w.agent("a1", "v1.37.2+barque.0bca91a6", "v1.37.2+barque.v0.1.0") }, Degraded, Attention,
			"", "agents run other versions than the servers (v0.1.0): 0bca91a6, from before v0.1.0 (a1)",
			"restart barque-agent"},
		"an agent that is too old": {
			func(w *world) { w.agent("a1", "v1.37.2+barque.v0.1.0", "v1.37.2+barque.v0.3.0") }, Degraded, Attention,
			"a1",
			"agent a1 does not fit the servers: agent a1 has version v0.1.0, and server s1 has v0.3.0: an agent may be one minor version behind the servers", "restart barque-agent"},
		"an agent that is newer": {
			func(w *world) { w.agent("a1", "v1.37.2+barque.v0.2.0", "v1.37.2+barque.v0.1.0") }, Degraded, Attention,
			"a1", "an agent may not be of a later minor version than a server", "restart barque-agent"},
		"a restored agent does not come back": {func(w *world) {
			w.reports["s1"].Unready = []UnreadyNode{
				{Name: "a1", Role: pki.RoleAgent, Since: Noon, Why: "the node has not been heard of"}}
		}, Degraded, Attention, "a1",
			"agent a1 is not Ready since 2026-11-20T12:00:00Z, and no server sees it by gossip: the node has not been heard of", lookAtAgent + "; when it is lost for good, from anywhere: barque kubectl delete node a1"},
		"a node lives and is not Ready": {func(w *world) {
			w.reports["s1"].Unready = []UnreadyNode{
				{Name: "s2", Role: pki.RoleServer, Since: Noon.Add(-time.Hour), Why: "no network"},
				{Name: "s3", Role: pki.RoleServer, Since: Noon.Add(-time.Second)}}
		}, Degraded, Attention, "s2", "node s2 is alive, and not Ready since 2026-11-20T11:00:00Z: no network",
			"describe node s2"},
		"a node of unknown readiness": {func(w *world) {
			w.reports["s1"].Unready = []UnreadyNode{
				{Name: "s2", Role: pki.RoleServer, Since: Noon, Why: "its kubelet is silent", Unknown: true}}
		}, Degraded, Attention, "s2",
			"node s2 is alive, and not Ready since 2026-11-20T12:00:00Z: its kubelet is silent", "describe node s2"},
		"a node of others without a status": {func(w *world) {
			w.reports["s1"].Unready = []UnreadyNode{
				{Name: "k1", Since: Noon.Add(-startGrace), Why: "its kubelet has not reported a state"},
				{Name: "k2", Since: Noon.Add(time.Second - startGrace)}}
		}, Degraded, Attention, "", "not Ready, of the nodes that other software runs: k1", "describe node k1"},
		"a node of others of unknown readiness": {func(w *world) {
			w.reports["s1"].Unready = []UnreadyNode{{Name: "k1", Since: Noon, Unknown: true}}
		}, Degraded, Attention, "", "not Ready, of the nodes that other software runs: k1", "describe node k1"},
		"a member lives and has no Node": {func(w *world) {
			w.agent("a1", "v1", "v1")
			w.reports["s1"].Unready = []UnreadyNode{
				{Name: "a1", Role: pki.RoleAgent, Since: Noon.Add(-time.Hour), Why: "its kubelet has not registered it",
					Missing: true},
				{Name: "s3", Role: pki.RoleServer, Since: Noon.Add(-time.Second), Missing: true}}
		}, Degraded, Attention, "a1",
			"agent a1 is alive since 2026-11-20T11:00:00Z, and the API has no Node of it, so that no pod runs there",
			lookAtAgent},
		"nodes of others": {func(w *world) {
			for _, name := range []string{"k1", "k2", "k3", "k4", "k5", "k6", "k7"} {
				w.reports["s1"].Unready = append(w.reports["s1"].Unready,
					UnreadyNode{Name: name, Since: Noon.Add(-time.Hour)})
			}
		}, Degraded, Attention, "", "not Ready, of the nodes that other software runs: k1, k2, k3, k4, k5 and 2 more",
			"describe node k1"},
		"a webhook blocks": {func(w *world) {
			w.reports["s1"].Failing = []FailingCall{
				{Kind: "ValidatingWebhookConfiguration", Name: "v", Webhooks: []string{"pods.x.y"}, Service: "ns/hook",
					Why: "service not found"}}
		}, Degraded, Attention, "",
			`the ValidatingWebhookConfiguration "v" refuses the requests that its webhook pods.x.y selects: the Service ns/hook: service not found`, "barque kubectl delete validatingwebhookconfiguration v"},
		"several webhooks block": {func(w *world) {
			w.reports["s1"].Failing = []FailingCall{
				{Kind: "MutatingWebhookConfiguration", Name: "m", Webhooks: []string{"a", "b"}, Service: "ns/hook",
					Why: "x"}}
		}, Degraded, Attention, "", `its webhooks a, b select: the Service ns/hook: x`,
			"barque kubectl delete mutatingwebhookconfiguration m"},
		"a conversion fails": {func(w *world) {
			w.reports["s1"].Failing = []FailingCall{
				{Kind: "CustomResourceDefinition", Name: "things.x.y", Service: "ns/hook", Why: "no endpoints"}}
		}, Degraded, Attention, "",
			"objects of things.x.y cannot be converted between their versions, so requests for them fail: the webhook's Service ns/hook: no endpoints", "edit customresourcedefinition things.x.y"},
		"an extension is away": {func(w *world) {
			w.reports["s1"].Failing = []FailingCall{
				{Kind: "APIService", Name: "v1.x.y", Service: "ns/api", Why: "refused"}}
		}, Degraded, Attention, "",
			"the API v1.x.y is not available, and no namespace can be deleted: its Service ns/api: refused",
			"delete apiservice v1.x.y"},
		"an agent was stopped": {func(w *world) {
			w.Nodes = append(w.Nodes, NodeView{Node: "a1", Role: pki.RoleAgent, State: gossip.Left, Since: Noon})
		}, Degraded, Attention, "a1",
			"agent a1 was stopped at 2026-11-20T12:00:00Z: its pods run on, unless its machine is off, and nobody manages them", "start it again: systemctl start barque-agent; or make sure that its machine is off and stays off, or its pods may run twice, and then, from anywhere: barque kubectl delete node a1"},
		"a volume is lost": {func(w *world) {
			w.reports["s1"].Lost = []LostVolume{{Name: "pv", Node: "a1", Path: "/v/pv", Claim: "ns/c"}}
		}, Degraded, Critical, "a1",
			"the data of volume pv of claim ns/c is not on node a1 any more: the directory /v/pv was made before, and is gone", "barque kubectl annotate pv pv barque.io/local-volume-directory-"},
		"two voters": {func(w *world) { w.Peers, w.Nodes = w.Peers[:2], w.Nodes[:2] }, Degraded, Attention, "",
			"two servers vote, so neither may fail", "barque token create --role server"},
		"was taken out": {func(w *world) {
			w.reports["s1"].Former = []FormerServer{{Name: "s4", At: Noon, Why: "an operator removed it"}}
		}, Degraded, Attention, "s4",
			"s4 is no member of the store any more, but still has its Node: it was taken out at 2026-11-20T12:00:00Z (an operator removed it)", "barque server --wipe --join https://SERVER:6443 --token TOKEN; when it is lost for good, from anywhere: barque kubectl delete node s4"},
		"was taken out, or left out by a recovery": {func(w *world) {
			w.reports["s1"].Former = []FormerServer{
				{Name: "s4", At: Noon, Why: "an operator removed it", Succession: Noon.Add(time.Hour)}}
		}, Degraded, Attention, "s4",
			"it was taken out at 2026-11-20T12:00:00Z (an operator removed it); or it had joined again, and this cluster was recovered, or began with a backup, at 2026-11-20T13:00:00Z without it", "barque server --wipe"},
		"was dropped": {func(w *world) {
			w.reports["s1"].Former = []FormerServer{{Name: "s4", At: Noon, Why: "it had no vote yet", Dropped: true}}
		}, Degraded, Attention, "s4",
			"s4 was dropped from the store at 2026-11-20T12:00:00Z (it had no vote yet); it joins again by itself",
			lookAtServer + "; when it is lost for good, from anywhere: barque kubectl delete node s4"},
		"taken out, and seen by gossip": {func(w *world) {
			w.reports["s1"].Former = []FormerServer{{Name: "s4"}}
			w.Nodes = append(w.Nodes, NodeView{Node: "s4", Role: pki.RoleServer, State: gossip.Dead, Since: Noon})
		}, Degraded, Attention, "s4", "recovered, or began with a backup, without it", "barque server --wipe"},
		"on its way out": {func(w *world) {
			w.silence("s3", "refused")
			w.server("s1").Health[2] = raftstore.MemberHealth{ID: "s3.x", State: group.Leaving,
				Reason: "too few would stay"}
		}, Degraded, Critical, "s3",
			"does not answer, and is on its way out of the store (too few would stay): refused",
			"barque cluster status --watch"},
		"it is to leave, and cannot": {func(w *world) {
			w.server("s1").Health[2] = raftstore.MemberHealth{ID: "s3.x", State: group.Leaving,
				Reason: "too few would stay"}
		}, Degraded, Attention, "s3", "server s3 is to leave the store: too few would stay",
			"barque cluster promote s3"},
		"its departure is blocked": {func(w *world) {
			w.server("s1").Health[2] = raftstore.MemberHealth{ID: "s3.x", State: group.Leaving, Blocked: time.Second,
				Reason: "too few would stay"}
		}, Degraded, Attention, "s3", "server s3 is to leave the store and cannot yet: too few would stay",
			"barque cluster remove NAME"},
		"its demotion is blocked": {func(w *world) {
			w.server("s1").Health[2] = raftstore.MemberHealth{ID: "s3.x", State: group.Standby, Blocked: time.Second,
				Reason: "too few would stay"}
		}, Degraded, Attention, "s3", "server s3 is to lose its vote and cannot yet: too few would stay",
			"barque token create --role server"},
		"agent is gone": {func(w *world) {
			w.Nodes = append(w.Nodes, NodeView{Node: "a1", Role: pki.RoleAgent, State: gossip.Dead, Since: Noon})
		}, Degraded, Attention, "a1", "agent a1 shows no life since 2026-11-20T12:00:00Z",
			"barque kubectl delete node a1"},
		"it is ill": {func(w *world) { w.Nodes[1].Faults = []string{"runtime", "disk"} }, Degraded, Attention, "s2",
			"a fault of its runtime, disk", lookAtServer},
		"an agent is locked out": {func(w *world) {
			w.Nodes = append(w.Nodes,
				NodeView{Node: "a1", Role: pki.RoleAgent, State: gossip.Alive, Since: Noon,
					Faults: []string{"certificates"}})
		}, Degraded, Attention, "a1", "agent a1 is locked out", "barque cert readmit a1"},
		"gossip is deaf": {func(w *world) { w.Nodes[2].State = gossip.Dead }, Degraded, Attention, "s3",
			"answers, but gossip takes it for dead", "open port 6445, TCP and UDP, between the nodes"},
		"gossip differs": {func(w *world) {
			for _, r := range w.reports {
				r.Nodes = append(r.Nodes, NodeView{Node: "a1", State: gossip.Alive})
			}
			w.view("s2", "a1", gossip.Dead)
		}, Degraded, Attention, "a1", "do not see a1 alike by gossip: it is alive for s1, s3 and dead for s2",
			"open the port of gossip, TCP and UDP, between a1 and all nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.breaks(w)
			s := Assemble(Noon, w.observe(t))
			if s.Health != c.health {
				t.Errorf("the cluster is %s, want %s", s.Health, c.health)
			}
			for _, got := range s.Warnings {
				if got.Severity == c.severity && got.Node == c.node && strings.Contains(got.Text, c.text) &&
					strings.Contains(got.Mend, c.mend) {
					if len(s.Warnings) > 1 && s.Health != NoQuorum && name != "one is dead" {
						t.Errorf("there is more than one: %v", s.Warnings)
					}
					return
				}
			}
			t.Errorf("not told: %v", s.Warnings)
		})
	}
}

// TestOneVoter: a cluster that was made with one server is well; one that had more, or has more, is
// not.
func TestOneVoter(t *testing.T) {
	alone := func(w *world) { w.Peers, w.Nodes = w.Peers[:1], w.Nodes[:1] }
	for name, c := range map[string]struct {
		breaks func(w *world)
		text   string // how it ends; empty for none
		mend   string
	}{
		"made so": {alone, "", ""},
		"with an agent": {func(w *world) {
			alone(w)
			w.Nodes = append(w.Nodes, NodeView{Node: "a1", Role: pki.RoleAgent, State: gossip.Alive})
		}, "", ""},
		"recovered without the others": {
			func(w *world) { alone(w); w.reports["s1"].Former = []FormerServer{{Name: "s2"}, {Name: "s3"}} },
			"only server s1 votes, so it may not fail", "barque token create --role server"},
		"the others were demoted": {func(w *world) { w.unvote(group.Standby, "s2", "s3") },
			"without a vote: s2, s3", "barque cluster promote s3"},
		"another one is on its way there": {func(w *world) { w.unvote(group.Regular, "s2", "s3") }, "", ""},
		"another one does not answer": {func(w *world) {
			w.unvote(group.Regular, "s2", "s3")
			w.silence("s2", "refused")
			w.silence("s3", "refused")
		}, "without a vote: s2, s3", "barque token create"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.breaks(w)
			var told []Warning
			for _, got := range Assemble(Noon, w.observe(t)).Warnings {
				if got.Node == "" {
					told = append(told, got)
				}
			}
			switch {
			case c.text == "" && len(told) > 0, c.text != "" && len(told) != 1:
				t.Errorf("told: %v", told)
			case c.text != "" &&
				(told[0].Severity != Critical || !strings.HasSuffix(told[0].Text, c.text) ||
					!strings.Contains(told[0].Mend, c.mend)):
				t.Errorf("told: %v, want %q and %q", told, c.text, c.mend)
			}
		})
	}
}

// unvote takes the votes of servers away.
func (w *world) unvote(state group.State, names ...string) {
	for _, name := range names {
		i := name[1] - '1'
		w.Peers[i].Member.Voter, w.server(name).Role = false, "nonvoter"
		w.server("s1").Health[i] = raftstore.MemberHealth{ID: w.Peers[i].Member.ID, Healthy: true, State: state,
			Reason: "it has no vote"}
	}
}

// TestALeaderThatIsElectedAgain: the reason why it had given it up does not read as if it led no
// more.
func TestALeaderThatIsElectedAgain(t *testing.T) {
	w := newWorld()
	w.server("s1").Changes = []raftstore.LeaderChange{
		{At: Noon.Add(-time.Minute), Term: 7, Leader: "s1.x", Before: "s1.x",
			Why: "s1 gave it up: the disk does not finish a write"},
		{At: Noon.Add(-time.Minute - time.Second), Term: 6, Before: "s1.x",
			Why: "s1 gave it up: the disk does not finish a write"},
	}
	const want = "it was elected again; before that, s1 gave it up: the disk does not finish a write"
	if s := Assemble(Noon, w.observe(t)); s.LeaderReason != want {
		t.Errorf("%q", s.LeaderReason)
	}
}

// TestUnreadyNodesWithAWarning: a fault has one warning, although its Node is not Ready either.
func TestUnreadyNodesWithAWarning(t *testing.T) {
	w := newWorld()
	w.Nodes = append(w.Nodes, NodeView{Node: "a1", Role: pki.RoleAgent, State: gossip.Dead, Since: Noon})
	w.Nodes[1].Faults = []string{"runtime"}
	w.silence("s3", "refused")
	w.reports["s1"].Former = []FormerServer{{Name: "s4"}}
	for _, name := range []string{"a1", "s2", "s3", "s4"} {
		role := pki.RoleServer
		if name == "a1" {
			role = pki.RoleAgent
		}
		w.reports["s1"].Unready = append(w.reports["s1"].Unready,
			UnreadyNode{Name: name, Role: role, Since: Noon.Add(-time.Hour)})
	}
	about := map[string]int{}
	for _, got := range Assemble(Noon, w.observe(t)).Warnings {
		about[got.Node]++
	}
	for _, name := range []string{"a1", "s2", "s3", "s4"} {
		if about[name] != 1 {
			t.Errorf("%d warnings of %s", about[name], name)
		}
	}
}

// TestAgentsThatGossipDoesNotKnowAreMembers: they have a row in the table, Ready or not.
func TestAgentsThatGossipDoesNotKnowAreMembers(t *testing.T) {
	w := newWorld()
	w.reports["s1"].Unready = []UnreadyNode{
		{Name: "a1", Role: pki.RoleAgent, Address: "10.0.0.9", Version: "v1", Since: Noon},
		{Name: "foreign", Since: Noon}}
	w.reports["s1"].Apart = []ApartAgent{{Name: "a2"}}
	s := Assemble(Noon, w.observe(t))
	var agents []string
	for _, m := range s.Members {
		if m.Role == pki.RoleAgent {
			agents = append(agents, m.Name+" "+string(m.Gossip)+" "+m.Address)
		}
	}
	if !slices.Equal(agents, []string{"a1 unknown 10.0.0.9", "a2 unknown "}) {
		t.Errorf("agents %q", agents)
	}
}

// TestFormerServersAreTheLeaders: who leads knows best who is a member, and a member that is known
// as a former one by an older word is a member.
func TestFormerServersAreTheLeaders(t *testing.T) {
	w := newWorld()
	w.reports["s2"].Former = []FormerServer{{Name: "s4"}}
	w.reports["s1"].Former = []FormerServer{{Name: "s3"}}
	if s := Assemble(Noon, w.observe(t)); s.Health != Healthy || len(s.Members) != 3 || len(s.Former) > 0 {
		t.Errorf("%s, %+v, former %+v", s.Health, s.Members, s.Former)
	}
}

// TestNobodyIsTakenOutWithoutALeader: what needs a quorum is no way out where there is none.
func TestNobodyIsTakenOutWithoutALeader(t *testing.T) {
	w := newWorld()
	w.silence("s2", "refused")
	w.silence("s3", "refused")
	w.server("s1").Role = "follower"
	w.Nodes = append(w.Nodes, NodeView{Node: "a1", Role: pki.RoleAgent, State: gossip.Dead, Since: Noon})
	told := map[string]bool{}
	for _, got := range Assemble(Noon, w.observe(t)).Warnings {
		if got.Node == "" {
			continue
		}
		told[got.Node] = true
		if !strings.Contains(got.Mend, "journalctl") || strings.Contains(got.Mend, "lost for good") {
			t.Errorf("%s", got)
		}
	}
	if !told["s2"] || !told["s3"] || !told["a1"] {
		t.Errorf("told are %v", told)
	}
}

// TestMerge: what one server cannot reach another one has seen, and a server's own word counts
// most.
func TestMerge(t *testing.T) {
	cut := newWorld() // s1 alone, which has not noticed yet that it leads no more
	cut.silence("s2", "timeout")
	cut.silence("s3", "timeout")
	most := newWorld() // s2 leads the others
	most.From = "s2"
	for i := range most.Peers {
		most.Peers[i].Member.Self = most.Peers[i].Member.Name == "s2"
	}
	most.silence("s1", "timeout")
	for _, name := range []string{"s2", "s3"} {
		most.server(name).Term, most.server(name).Revision = 8, 200
	}
	most.server("s2").Role = "leader"
	for name, order := range map[string][]*Observation{"one way": {cut.observe(t), most.observe(t)},
		"the other": {most.observe(t), cut.observe(t)}} {
		s := Assemble(Noon, order...)
		if s.Leader != "s2" || s.Term != 8 || s.Revision != 200 || s.Quorum.Answering != 3 || s.From[0] != "s2" {
			t.Errorf("%s: leader %q, term %d, revision %d, %+v, from %v", name, s.Leader, s.Term, s.Revision, s.Quorum,
				s.From)
		}
		for _, m := range s.Members {
			if m.Store == nil || m.Problem != "" {
				t.Errorf("%s: %s is not known: %s", name, m.Name, m.Problem)
			}
		}
	}
}

// TestReportOfAnotherVersion: a report that cannot be read costs what is in it, and nothing else.
func TestReportOfAnotherVersion(t *testing.T) {
	w := newWorld()
	o := w.observe(t)
	o.Peers[1].Status.Detail.Report = []byte(`"something else"`)
	if s := Assemble(Noon, o); s.Health != Healthy || s.Members[1].Store == nil || s.Members[1].Disk != nil {
		t.Errorf("%+v", s)
	}
}

// Of a server that gossip does not know the store has the address, of whatever version.
func TestTheAddressOfAServerThatGossipDoesNotKnow(t *testing.T) {
	for address, want := range map[string]string{"10.0.0.2:6444": "10.0.0.2", "[2001:db8::2]:6444": "2001:db8::2"} {
		w := newWorld()
		w.Nodes = slices.DeleteFunc(w.Nodes, func(v NodeView) bool { return v.Node == "s2" })
		w.Peers[1].Member.Address = address
		members := Assemble(Noon, &w.Observation).Members
		i := slices.IndexFunc(members, func(m MemberStatus) bool { return m.Name == "s2" })
		if i < 0 || members[i].Address != want {
			t.Errorf("of the server at %s the status says %+v, want the address %q", address, members, want)
		}
	}
}
