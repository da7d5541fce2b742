package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/raftstore"
)

// StatusPath answers with a ClusterStatus, to whoever RBAC allows it.
const StatusPath = "/barque/v1/status"

// ClusterStatus is the cluster as one server sees it.
type ClusterStatus struct {
	ID       string         `json:"id"`
	From     string         `json:"from"`   // the server that answers
	Leader   string         `json:"leader"` // empty when there is none
	Term     uint64         `json:"term"`
	Revision uint64         `json:"revision"`
	Warnings []string       `json:"warnings,omitempty"`
	Members  []MemberStatus `json:"members"`
}

// MemberStatus is one node, by what gossip and the store know of it.
type MemberStatus struct {
	Name    string       `json:"name"`
	Role    string       `json:"role"`
	Address string       `json:"address"`
	Zone    string       `json:"zone,omitempty"`
	Version string       `json:"version"`
	Gossip  gossip.State `json:"gossip"`
	Since   time.Time    `json:"gossipSince"`
	Store   *StoreStatus `json:"store,omitempty"`   // servers that answer
	Problem string       `json:"problem,omitempty"` // why Store is missing
	// Health is the leader's judgement of a server.
	Health *raftstore.MemberHealth `json:"health,omitempty"`
}

// StoreStatus is a server's part of the store. Durations are text, such as "1.2ms".
type StoreStatus struct {
	ID          string `json:"id"`
	State       string `json:"state"` // leader, follower, candidate, nonvoter
	Term        uint64 `json:"term"`
	Applied     uint64 `json:"appliedIndex"`
	Committed   uint64 `json:"commitIndex"`
	Revision    uint64 `json:"revision"`
	Keys        int    `json:"keys"`
	StateBytes  int64  `json:"stateBytes"`      // what all objects take, for --store-memory-limit
	StateLimit  int64  `json:"stateLimit"`      // how much they may take; 0: any
	Space       string `json:"space,omitempty"` // "low" warns, "full" says that new objects are refused
	Hash        string `json:"stateHash"`
	LastContact string `json:"lastContact"` // since the leader was heard
	DiskP50     string `json:"diskP50"`     // of writes to the log
	DiskP99     string `json:"diskP99"`
	DiskError   string `json:"diskError,omitempty"`   // why the last one failed
	Quarantined string `json:"quarantined,omitempty"` // why it serves nothing: its state differs from that of most servers
}

// statusOf puts what the store and gossip say together. It takes as long as the slowest member,
// at most the store's time-out for a call.
func statusOf(ctx context.Context, self, clusterID string, store storeStatus, pool *gossip.Pool) *ClusterStatus {
	s := &ClusterStatus{ID: clusterID, From: self}
	byName := map[string]*MemberStatus{}
	for _, m := range pool.Members() {
		byName[m.Name] = &MemberStatus{Name: m.Name, Role: m.Role, Address: m.Addr.Addr().String(), Zone: m.Facts.Zone, Version: m.Facts.Version, Gossip: m.State, Since: m.Since}
	}
	peers, space := store.PeerStatus(ctx), ""
	health := healthByID(peers)
	for _, peer := range peers {
		name := peer.Member.Name
		m := byName[name]
		if m == nil {
			m = &MemberStatus{Name: name, Role: roleServer, Gossip: "unknown"}
			m.Address, _, _ = strings.Cut(peer.Member.Address, ":")
			byName[name] = m
		}
		if peer.Member.Leader {
			s.Leader = name
		}
		if h, ok := health[peer.Member.ID]; ok {
			m.Health = &h
			if h.Standing != "" || peer.Status != nil && !h.Healthy && peer.Status.Quarantined == "" && peer.Status.DiskError == "" || !peer.Member.Voter && h.Healthy {
				s.Warnings = append(s.Warnings, fmt.Sprintf("server %s: %s", name, h.Reason))
			}
		}
		if peer.Status == nil {
			m.Problem = peer.Error
			s.Warnings = append(s.Warnings, fmt.Sprintf("server %s does not answer: %s", name, peer.Error))
			continue
		}
		m.Store = storeStatusOf(peer.Status)
		if peer.Status.DiskError != "" {
			s.Warnings = append(s.Warnings, fmt.Sprintf("server %s cannot write its log and falls behind: %s", name, peer.Status.DiskError))
		}
		if peer.Status.DiskFull {
			s.Warnings = append(s.Warnings, fmt.Sprintf("the disk of server %s is full and it runs on its reserve: make room on the volume of its data directory", name))
		}
		if warning := spaceWarning(peer.Status); peer.Member.Leader || space == "" {
			space = warning // all servers have the same state, the leader the newest
		}
		if peer.Status.Quarantined != "" {
			s.Warnings = append(s.Warnings, fmt.Sprintf("server %s is in quarantine and serves nothing: %s", name, peer.Status.Quarantined))
		}
		for _, warning := range peer.Status.Warnings {
			s.Warnings = append(s.Warnings, fmt.Sprintf("server %s: %s", name, warning))
		}
		if peer.Status.Undecided != "" {
			s.Warnings = append(s.Warnings, fmt.Sprintf("server %s, which leads: %s", name, peer.Status.Undecided))
		}
		s.Term, s.Revision = max(s.Term, peer.Status.Term), max(s.Revision, peer.Status.Revision)
	}
	if space != "" {
		s.Warnings = append(s.Warnings, space)
	}
	for _, m := range byName {
		s.Members = append(s.Members, *m)
		if m.Gossip == gossip.Dead {
			s.Warnings = append(s.Warnings, fmt.Sprintf("node %s shows no life since %s", m.Name, m.Since.Format(time.RFC3339)))
		}
	}
	slices.SortFunc(s.Members, func(a, b MemberStatus) int {
		if a.Role != b.Role {
			return -strings.Compare(a.Role, b.Role) // servers first
		}
		return strings.Compare(a.Name, b.Name)
	})
	slices.Sort(s.Warnings)
	return s
}

// healthByID finds the leader's judgement of the members.
func healthByID(peers []raftstore.PeerStatus) map[string]raftstore.MemberHealth {
	health := map[string]raftstore.MemberHealth{}
	for _, p := range peers {
		if p.Status == nil {
			continue
		}
		for _, h := range p.Status.Health {
			health[h.ID] = h
		}
	}
	return health
}

// storeStatus is what the status needs of the store.
type storeStatus interface {
	PeerStatus(ctx context.Context) []raftstore.PeerStatus
}

func storeStatusOf(s *raftstore.Status) *StoreStatus {
	contact := "-"
	if s.LastContact > 0 {
		contact = s.LastContact.Round(time.Millisecond).String()
	}
	return &StoreStatus{ID: s.ID, State: s.Role, Term: s.Term, Applied: s.AppliedIndex, Committed: s.CommitIndex, Revision: s.Revision, Keys: s.Keys, StateBytes: s.StateBytes, StateLimit: s.StateLimit, Space: s.Space, Hash: s.StateHash,
		LastContact: contact, DiskP50: s.DiskP50.Round(10 * time.Microsecond).String(), DiskP99: s.DiskP99.Round(10 * time.Microsecond).String(), DiskError: s.DiskError, Quarantined: s.Quarantined}
}

// statusHandler serves StatusPath.
func statusHandler(status func(context.Context) *ClusterStatus) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(status(r.Context())); err != nil {
			return // the client has gone
		}
	})
}
