package clusterstatus

import (
	"time"

	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/gossip"
)

// The status of the cluster, as `barque cluster status -o json` prints it. The names of its fields
// stay; durations are in seconds, sizes in bytes, times in RFC 3339.

// ClusterHealth is the status in one word.
type ClusterHealth string

const (
	// Healthy clusters have nothing that needs a person.
	Healthy ClusterHealth = "healthy"
	// Degraded clusters serve, and something is wrong with them: see the warnings.
	Degraded ClusterHealth = "degraded"
	// NoQuorum is the health of a cluster without a leader: nothing can be written.
	NoQuorum ClusterHealth = "noQuorum"
	// NoAnswer is the health if no server answers.
	NoAnswer ClusterHealth = "noAnswer"
)

// ClusterStatus is the cluster in the view of all servers that answered.
type ClusterStatus struct {
	ID     string        `json:"id"`
	From   []string      `json:"from"` // the servers that were asked, and answered; they asked the others
	Time   time.Time     `json:"time"`
	Health ClusterHealth `json:"health"`
	Leader string        `json:"leader"` // empty without one
	// LeaderSince is when this leader was elected, and LeaderReason why the one before it was one
	// no more.
	LeaderSince  time.Time `json:"leaderSince,omitzero"`
	LeaderReason string    `json:"leaderReason,omitempty"`
	// LeaderChanges are the last ones, newest first, as the leader saw them since it was started.
	LeaderChanges []LeaderChange `json:"leaderChanges,omitempty"`
	Term          uint64         `json:"term"`
	Revision      uint64         `json:"revision"`
	Quorum        QuorumStatus   `json:"quorum"`
	Store         SizeStatus     `json:"store"`
	// Backup is the newest scheduled one on any server that answers.
	Backup *BackupFile `json:"backup,omitempty"`
	// CA is the progress of the CA's exchange; its step is empty when none is running.
	CA       *exchange.Status `json:"ca,omitempty"`
	Warnings []Warning        `json:"warnings,omitempty"`
	// Unreached are the addresses that were asked from here and did not answer.
	Unreached []Unreached    `json:"unreached,omitempty"`
	Members   []MemberStatus `json:"members"`
	// Former are the former servers that still have Nodes.
	Former []FormerServer `json:"former,omitempty"`
	// Apart are the agents that are Ready, and are not seen by gossip.
	Apart []ApartAgent `json:"apart,omitempty"`
	// Profiles are the agents with another profile than the leader's.
	Profiles []AgentProfile `json:"profiles,omitempty"`
	// Unready are the Nodes that are not Ready, and Failing the calls of the API server that fail.
	Unready []UnreadyNode `json:"unready,omitempty"`
	Failing []FailingCall `json:"failing,omitempty"`
	// Lost are the local volumes whose directory is gone.
	Lost []LostVolume `json:"lostVolumes,omitempty"`
	// Addresses are those for which the leader chooses the node that answers.
	Addresses []AnsweredAddress `json:"addresses,omitempty"`
	// Edge are the pools of addresses, and the leader's findings on Services and routes.
	Edge *EdgeStatus `json:"edge,omitempty"`
	// Upgrade is one that is under way, or the last one if that has not gone well.
	Upgrade *UpgradeStatus `json:"upgrade,omitempty"`
}

// ServerNames are the names of the cluster's servers.
func (s *ClusterStatus) ServerNames() []string {
	var names []string
	for _, m := range s.Members {
		if m.Role == "server" {
			names = append(names, m.Name)
		}
	}
	return names
}

// Servers are the cluster's servers.
func (s *ClusterStatus) Servers() (servers []MemberStatus) {
	for _, m := range s.Members {
		if m.Role == "server" {
			servers = append(servers, m)
		}
	}
	return servers
}

// Unreached is an address that did not answer.
type Unreached struct {
	Address string `json:"address"`
	Error   string `json:"error"`
}

// LeaderChange is one change of leaders.
type LeaderChange struct {
	At     time.Time `json:"at"`
	Term   uint64    `json:"term"`
	Leader string    `json:"leader,omitempty"` // empty: no leader was known from then on
	Before string    `json:"before,omitempty"`
	Reason string    `json:"reason,omitempty"`
	// GapSeconds is the time from the last sign of the former leader to the first of this one, as
	// the leader of now saw it: for how long no write was accepted, at most. Absent if unknown.
	GapSeconds float64 `json:"gapSeconds,omitempty"`
}

// QuorumStatus has the number of servers that may be lost.
type QuorumStatus struct {
	Voters    int `json:"voters"`
	Needed    int `json:"needed"`
	Answering int `json:"answering"` // voters that answer
	MayFail   int `json:"mayFail"`   // how many of these may be lost without harm
}

// SizeStatus is how full the store is.
type SizeStatus struct {
	Keys  int    `json:"keys"`
	Bytes int64  `json:"bytes"`           // used by all objects, for --store-memory-limit
	Limit int64  `json:"limit"`           // how much they may take; 0: any
	Space string `json:"space,omitempty"` // "low" warns, "full" refuses new objects
}

// Severity of a warning.
type Severity string

const (
	// Critical is a loss of data or service, now or at the next fault.
	Critical Severity = "critical"
	// Attention needs a person's attention.
	Attention Severity = "warning"
)

// Warning is something that needs a person.
type Warning struct {
	Severity Severity `json:"severity"`
	// Node is the affected node; empty for the whole cluster.
	Node string `json:"node,omitempty"`
	Text string `json:"text"`
	// Mend is the remedy, a command or a procedure; On is the machine to run it on, empty for any.
	Mend string `json:"mend,omitempty"`
	On   string `json:"on,omitempty"`
}

func (w Warning) String() string {
	text := string(w.Severity) + ": " + w.Text
	if w.Mend != "" {
		text += " → " + w.Mend
	}
	return text
}

// MemberStatus is one node, from gossip, the store, and its own report.
type MemberStatus struct {
	Name       string       `json:"name"`
	Role       string       `json:"role"`
	Address    string       `json:"address"`
	API        string       `json:"api,omitempty"` // of a server
	Zone       string       `json:"zone,omitempty"`
	Version    string       `json:"version"`
	Gossip     gossip.State `json:"gossip"`
	Since      time.Time    `json:"gossipSince,omitzero"`
	GossipPort uint16       `json:"gossipPort,omitempty"`
	// faults that it finds in itself: kubelet, runtime, network, disk, memory, pids, certificates
	Faults  []string     `json:"ills,omitempty"`
	Voter   bool         `json:"voter"`
	Store   *StoreStatus `json:"store,omitempty"`   // servers that answer
	Problem string       `json:"problem,omitempty"` // why Store is missing
	// Health is the leader's judgement of a server.
	Health *HealthStatus `json:"health,omitempty"`
	// Ways are the ways from this server to the other ones, and Views how it sees all nodes by
	// gossip.
	Ways         []WayStatus         `json:"ways,omitempty"`
	Views        []NodeView          `json:"views,omitempty"`
	Certificates []CertificateStatus `json:"certificates,omitempty"`
	DataKeys     *datakeys.Progress  `json:"dataKeys,omitempty"` // of servers
	// why a server cannot take over the result of a CA exchange
	CAProblem   string        `json:"caProblem,omitempty"`
	Backups     *BackupStatus `json:"backups,omitempty"`
	Disk        *VolumeStatus `json:"disk,omitempty"` // the one of the data directory
	AuditLosses []AuditLoss   `json:"auditLosses,omitempty"`
	Files       []ConfigFile  `json:"files,omitempty"` // nil if its version does not report them
	Conflicts   []Conflict    `json:"conflicts,omitempty"`
	Started     time.Time     `json:"started,omitzero"`
	// Joined is absent for the first server, and for one that joined before this was noted.
	Joined *JoinedStatus `json:"joined,omitempty"`
	// ClockOffset is by how much its clock is ahead of the asked server's, with an error of a
	// second or two.
	ClockOffset float64 `json:"clockOffsetSeconds"`
}

// JoinedStatus is how a machine joined last.
type JoinedStatus struct {
	At    time.Time `json:"at"`
	Token string    `json:"tokenID"`
	By    string    `json:"by"` // the server that let it in
}

// StoreStatus is a server's part of the store.
type StoreStatus struct {
	ID        string `json:"id"`
	State     string `json:"state"` // leader, follower, candidate, nonvoter
	Term      uint64 `json:"term"`
	Applied   uint64 `json:"appliedIndex"`
	Committed uint64 `json:"commitIndex"`
	Revision  uint64 `json:"revision"`
	Keys      int    `json:"keys"`
	Bytes     int64  `json:"stateBytes"`
	Hash      string `json:"stateHash"`
	// LagEntries is the number of log entries that it is behind the leader. LagSeconds is the age
	// of the first of them; absent if unknown.
	LagEntries uint64   `json:"lagEntries"`
	LagSeconds *float64 `json:"lagSeconds,omitempty"`
	// LastContactSeconds is the time since the last contact with the leader; absent on the leader,
	// and without any contact.
	LastContactSeconds *float64 `json:"lastContactSeconds,omitempty"`
	// DiskP50Seconds and DiskP99Seconds are how long the last DiskWrites writes to the log took.
	DiskWrites     int     `json:"diskWrites"`
	DiskP50Seconds float64 `json:"diskP50Seconds"`
	DiskP99Seconds float64 `json:"diskP99Seconds"`
	DiskError      string  `json:"diskError,omitempty"` // why the last one failed
	// SchedulingDelaySeconds is how late the server was scheduled lately, and ExtensionSeconds by
	// how much it extends the store's time-outs for that; absent when it is not short of CPU.
	SchedulingDelaySeconds float64 `json:"schedulingDelaySeconds,omitempty"`
	ExtensionSeconds       float64 `json:"extensionSeconds,omitempty"`
	DiskFull               bool    `json:"diskFull,omitempty"` // it runs on its reserve
	// Quarantined is why it serves nothing: its state differs from that of most servers.
	Quarantined string `json:"quarantined,omitempty"`
}

// HealthStatus is how a server does, as the leader sees it.
type HealthStatus struct {
	Healthy       bool    `json:"healthy"`
	Reason        string  `json:"reason,omitempty"`   // why not, or why it has no vote
	State         string  `json:"standing,omitempty"` // standby or leaving; scripts use the name
	StableSeconds float64 `json:"stableSeconds"`      // for how long it has been well
	SilentSeconds float64 `json:"silentSeconds"`      // for how long it has not answered
	// BlockedSeconds is how long its removal or demotion has been blocked. The reason is in Reason.
	BlockedSeconds float64 `json:"blockedSeconds,omitempty"`
}

// WayStatus is the way from one server to another.
type WayStatus struct {
	To         string   `json:"to"`
	RTTSeconds *float64 `json:"rttSeconds,omitempty"`
	Error      string   `json:"error,omitempty"` // why there is none
}

// NodeView is how one server sees a node by gossip.
type NodeView struct {
	Node       string       `json:"node"`
	Role       string       `json:"role"`
	Address    string       `json:"address"`
	GossipPort uint16       `json:"gossipPort,omitempty"`
	API        string       `json:"api,omitempty"`
	Zone       string       `json:"zone,omitempty"`
	Version    string       `json:"version"`
	State      gossip.State `json:"state"`
	Since      time.Time    `json:"since,omitzero"`
	// Faults are those that the node finds in itself: kubelet, runtime, network, disk, memory,
	// pids, certificates (the servers refuse them).
	Faults []string `json:"ills,omitempty"`
	// Silent is set if a server did not answer this one directly, though others may have reached
	// it. Heard is the time of the last answer, and RTTSeconds its round trip; absent if gossip has
	// not probed.
	Silent     bool       `json:"silent,omitempty"`
	Heard      *time.Time `json:"heard,omitempty"`
	RTTSeconds *float64   `json:"rttSeconds,omitempty"`
}

// CertificateStatus is one certificate that a server shows.
type CertificateStatus struct {
	Name      string    `json:"name"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter"`
	// why it should have been renewed, and was not; or that a CA ends soon
	Warning  string `json:"warning,omitempty"`
	External bool   `json:"external,omitempty"` // a CA that an operator has brought
}

// BackupStatus is a server's view of its scheduled backups.
type BackupStatus struct {
	EverySeconds float64     `json:"everySeconds"` // 0: never
	Keep         int         `json:"keep"`
	Dir          string      `json:"dir"`
	Newest       *BackupFile `json:"newest,omitempty"`
	Problem      string      `json:"problem,omitempty"` // why the last one failed
	Mend         string      `json:"mend,omitempty"`    // its remedy, if the server knows one
	Refused      string      `json:"refused,omitempty"` // why none are made
}

// BackupFile is one backup.
type BackupFile struct {
	Server   string    `json:"server"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Revision uint64    `json:"revision"`
	Bytes    int64     `json:"bytes"`
	Sealed   bool      `json:"sealed"`
}

// VolumeStatus is the file system of a data directory.
type VolumeStatus struct {
	Path  string `json:"path"`
	Bytes uint64 `json:"bytes"`
	Free  uint64 `json:"free"`
}

// ServerReport is a server's report on itself beyond its store. It travels with the status of the
// store.
type ServerReport struct {
	Time         time.Time           `json:"time"`
	Started      time.Time           `json:"started"`
	Nodes        []NodeView          `json:"nodes,omitempty"`
	Certificates []CertificateStatus `json:"certificates,omitempty"`
	Backups      *BackupStatus       `json:"backups,omitempty"`
	Disk         *VolumeStatus       `json:"disk,omitempty"`
	Former       []FormerServer      `json:"former,omitempty"`
	Apart        []ApartAgent        `json:"apart,omitempty"`
	Profiles     []AgentProfile      `json:"profiles,omitempty"` // that differ from the server's
	Unready      []UnreadyNode       `json:"unready,omitempty"`
	Failing      []FailingCall       `json:"failing,omitempty"`
	CA           *exchange.Status    `json:"ca,omitempty"`
	DataKeys     *datakeys.Progress  `json:"dataKeys,omitempty"`
	Lost         []LostVolume        `json:"lostVolumes,omitempty"`
	Addresses    []AnsweredAddress   `json:"addresses,omitempty"` // of the leader
	Edge         *EdgeStatus         `json:"edge,omitempty"`      // of the leader
	Upgrade      *UpgradeStatus      `json:"upgrade,omitempty"`   // of the leader
	Conflicts    []Conflict          `json:"conflicts,omitempty"`
	AuditLosses  []AuditLoss         `json:"auditLosses,omitempty"`
	Files        []ConfigFile        `json:"files"` // empty is none; absent in a report of an earlier version
}

// AnsweredAddress is an address that is no machine's own, and the node that answers for it.
type AnsweredAddress struct {
	Address string `json:"address"`
	Service string `json:"service,omitempty"` // namespace/name; empty for the API's own address
	Node    string `json:"node,omitempty"`    // empty: none does
}

// AuditLoss is a sink of a server's audit log that has lost events since the server was started.
type AuditLoss struct {
	Sink   string    `json:"sink"`   // log, webhook, limit: of callers without an identity, or nodes: of refused nodes
	Target string    `json:"target"` // the path of the file, or of the webhook's kubeconfig
	Events uint64    `json:"events"`
	Last   time.Time `json:"last"`
	Reason string    `json:"reason"` // of the last one
}

// FormerServer is a server that has a Node and is no member of the store.
type FormerServer struct {
	Name string `json:"name"`
	// At is the time of its removal from the store, and Why the reason. They are absent if the
	// cluster was recovered, or restored from a backup, without it.
	At  time.Time `json:"at,omitzero"`
	Why string    `json:"why,omitempty"`
	// Succession is the time of a later recovery or restore, which left the server out if it had
	// joined again.
	Succession time.Time `json:"succession,omitzero"`
	// Dropped is set if it had no vote yet, and joins again by itself when it is back.
	Dropped bool `json:"dropped,omitempty"`
}

// ApartAgent is an agent that has its Node, which is Ready, and that a server does not see by
// gossip.
type ApartAgent struct {
	Name string `json:"name"`
	// Cluster is the ID that it has sent in a request to a server of this cluster.
	Cluster string `json:"cluster,omitempty"`
}
