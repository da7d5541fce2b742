package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/raftstore"
)

// StatusPath answers with a ClusterStatus, to whoever RBAC allows it; with the parameter
// form=observation with the Observation that it is made of, see Assemble.
const StatusPath = "/barque/v1/status"

// FormObservation is the value of the parameter form.
const FormObservation = "observation"

// Observation is what one server knows of the cluster: its own word, and the others' as it heard
// it.
type Observation struct {
	Cluster string                 `json:"cluster"`
	From    string                 `json:"from"`
	Time    time.Time              `json:"time"`
	Nodes   []NodeView             `json:"nodes,omitempty"` // by gossip
	Peers   []raftstore.PeerStatus `json:"peers,omitempty"`
}

// observedStore is what an observation needs of the store.
type observedStore interface {
	PeerDetails(ctx context.Context) []raftstore.PeerStatus
}

// observe asks all members of the store. It takes as long as the slowest of them, at most the
// store's time-out for a call, and needs neither a leader nor a quorum.
func (s *server) observe(ctx context.Context) *Observation {
	return observe(ctx, s.options.Name, s.record.Cluster.ID, s.store, s.gossipViews(ctx, false))
}

func observe(ctx context.Context, self, clusterID string, store observedStore, nodes []NodeView) *Observation {
	peers := store.PeerDetails(ctx)
	return &Observation{Cluster: clusterID, From: self, Time: time.Now(), Nodes: nodes, Peers: peers}
}

// report is this server's part of an observation that the store does not know.
func (s *server) report(ctx context.Context) []byte {
	r := ServerReport{Time: time.Now(), Started: s.started, Nodes: s.gossipViews(ctx, true), Certificates: s.certificateEnds(), Backups: s.backups.status(), Disk: volumeOf(s.options.DataDir), Former: s.formerServers(), Apart: s.apartAgents(), CA: s.exchangeStatus()}
	data, err := json.Marshal(r)
	if err != nil {
		s.logger.Error("this server cannot report on itself", "err", err)
		return nil
	}
	return data
}

// certificateEnds tells until when the certificates of this server, and the CAs that it believes,
// are good.
func (s *server) certificateEnds() []CertificateStatus {
	own, now := s.ownCertificates().Certificates, time.Now()
	for _, ca := range s.ids.trust.CAs() {
		own = append(own, infoOf("ca", ca.Certificate(), false, now))
	}
	var out []CertificateStatus
	for _, c := range own {
		out = append(out, CertificateStatus{Name: c.Name, NotBefore: c.NotBefore, NotAfter: c.NotAfter, Warning: c.Warning})
	}
	return out
}

// gossipViews is how this server sees all nodes; none before it has begun to gossip. With asks the
// other servers are asked for an answer first, which takes a second at most.
func (s *server) gossipViews(ctx context.Context, asks bool) []NodeView {
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
	var views []NodeView
	for _, m := range pool.Members() {
		v := viewOf(m)
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

func viewOf(m gossip.Member) NodeView {
	v := NodeView{Node: m.Name, Role: m.Role, Address: m.Addr.Addr().String(), Zone: m.Facts.Zone, Version: m.Facts.Version, State: m.State, Since: m.Since, Ills: m.Facts.Health.Ills()}
	if m.Role == roleServer {
		v.API = netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort).String()
	}
	return v
}

// volumeOf returns the file system of a directory; nil when the kernel does not tell.
func volumeOf(dir string) *VolumeStatus {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return nil
	}
	return &VolumeStatus{Path: dir, Bytes: fs.Blocks * uint64(fs.Bsize), Free: fs.Bavail * uint64(fs.Bsize)}
}

// statusHandler serves StatusPath.
func statusHandler(observe func(context.Context) *Observation) http.Handler {
	return get(func(r *http.Request) any {
		o := observe(r.Context())
		if r.URL.Query().Get("form") == FormObservation {
			return o
		}
		return Assemble(time.Now(), o)
	})
}

// get serves a value in JSON.
func get(value func(r *http.Request) any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, fmt.Sprintf("only GET is served here, not %s", r.Method), http.StatusMethodNotAllowed)
			return
		}
		answer(w, http.StatusOK, value(r))
	})
}
