package node

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/redact"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/network/path"
	"github.com/barque/barque/network/wireguard"
)

func (s *server) serveDiagnosis(w http.ResponseWriter, r *http.Request) {
	adminapi.Answer(w, http.StatusOK, s.diagnose(r.Context()))
}

func (s *server) diagnose(ctx context.Context) *clusterstatus.Diagnosis {
	d := &clusterstatus.Diagnosis{Server: s.options.Name, Time: time.Now().UTC(), Files: adminapi.MachineFacts(s.options.DataDir, Check(s.options.DataDir, s.options.KubeletRootDir))}
	d.Files["goroutines.txt"] = adminapi.Goroutines()
	d.Files["metrics.txt"] = adminapi.MetricsText()
	d.Files["store.json"] = adminapi.Indented(s.store.Status())
	d.Files["members.json"] = adminapi.Indented(s.store.Members())
	d.Files["gossip.json"] = adminapi.Indented(s.gossipViews(ctx, true))
	d.Files["options.json"] = adminapi.Indented(s.options.public())
	d.Files["paths.json"] = adminapi.Indented(s.paths(ctx))
	d.Files["wireguard.json"] = adminapi.Indented(s.tunnels())
	d.Files["build.txt"] = adminapi.BuildText()
	if s.options.Logs != nil {
		d.Files["log.txt"] = string(s.options.Logs.Bytes())
	}
	clean := redact.New(s.secrets()...)
	for name, text := range d.Files {
		if name != "metrics.txt" { // numbers
			d.Files[name] = clean.Text(text)
		}
	}
	return d
}

// pathLimit bounds how long the ways to other nodes are looked at.
const pathLimit = 10 * time.Second

// paths tells which nodes packets as large as the link allows reach.
func (s *server) paths(ctx context.Context) []path.Finding {
	ctx, cancel := context.WithTimeout(ctx, pathLimit)
	defer cancel()
	nodes := map[string]netip.Addr{}
	for _, m := range s.pool.Members() {
		if m.Name != s.options.Name && m.State == gossip.Alive {
			nodes[m.Name] = m.Addr.Addr()
		}
	}
	return path.ProbeAll(ctx, nodes, s.options.addr())
}

// tunnels tells of the nodes that are reached by WireGuard; nil when there are none.
func (s *server) tunnels() []wireguard.Seen {
	packets := s.packets.Load()
	if packets == nil {
		return nil
	}
	seen, err := packets.Tunnels()
	if err != nil {
		s.logger.Warn("what WireGuard knows of other nodes cannot be read", "err", err)
	}
	return seen
}

// secrets are those of this server that have no form of their own.
func (s *server) secrets() []string {
	out := []string{s.options.Token}
	for _, key := range s.record.GossipRing().Keys {
		out = append(out, string(key), base64.StdEncoding.EncodeToString(key), fmt.Sprintf("%x", key), fmt.Sprint(key))
	}
	return out
}

// public are the options without what they keep secret.
func (o Options) public() Options {
	if o.Token != "" {
		o.Token = "[REDACTED]"
	}
	o.Logs = nil
	return o
}
