package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/redact"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/network/path"
	"github.com/barque/barque/network/wireguard"
)

// Logs keep the end of what a node has logged.
type Logs interface{ Bytes() []byte }

func (s *server) serveDiagnosis(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusOK, s.diagnose(r.Context()))
}

func (s *server) diagnose(ctx context.Context) *clusterstatus.Diagnosis {
	d := &clusterstatus.Diagnosis{Server: s.options.Name, Time: time.Now().UTC(), Files: MachineFacts(s.options.DataDir, s.options.KubeletRootDir)}
	d.Files["goroutines.txt"] = goroutines()
	d.Files["metrics.txt"] = metricsText()
	d.Files["store.json"] = indented(s.store.Status())
	d.Files["members.json"] = indented(s.store.Members())
	d.Files["gossip.json"] = indented(s.gossipViews(ctx, true))
	d.Files["options.json"] = indented(s.options.public())
	d.Files["paths.json"] = indented(s.paths(ctx))
	d.Files["wireguard.json"] = indented(s.tunnels())
	d.Files["build.txt"] = buildText()
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
	for _, key := range s.record.gossipRing().Keys {
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

func goroutines() string {
	var out bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&out, 2); err != nil {
		return err.Error()
	}
	return out.String()
}

// metricsText is what /metrics shows.
func metricsText() string {
	request, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		return err.Error()
	}
	out := &page{header: http.Header{}}
	legacyregistry.Handler().ServeHTTP(out, request)
	return out.String()
}

// page keeps what a handler answers.
type page struct {
	bytes.Buffer
	header http.Header
}

func (p *page) Header() http.Header { return p.header }
func (p *page) WriteHeader(int)     {}

func buildText() string {
	text := fmt.Sprintf("barque %s, Kubernetes %s, %s on %s/%s\n", version.String(), version.Kubernetes, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		text += info.String()
	}
	return text
}
