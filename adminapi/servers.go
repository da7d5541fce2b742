package adminapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/liveness"
)

// Servers finds and calls the servers of the cluster.
type Servers struct {
	Pool  *gossip.Pool
	Known func() []join.Server // from the last start
	TLS   func() *tls.Config   // of calls
	// AdminTLS is of calls of servers of earlier versions, which answer administrators only.
	AdminTLS func() *tls.Config
	Logger   *slog.Logger
}

// All returns the servers in gossip and in the record.
func (s *Servers) All() []join.Server {
	all := liveness.KnownServers(s.Pool)
	for _, k := range s.Known() {
		if !slices.ContainsFunc(all, func(a join.Server) bool { return a.Name == k.Name }) {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b join.Server) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// callTimeout bounds a call to another server's API on behalf of a client.
const callTimeout = 5 * time.Second

// Call calls the API of another server, which answers with JSON. Its certificate identifies it.
func (s *Servers) Call(ctx context.Context, method, name, path string, out any) error {
	m, err := s.living(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort)
	transport := func(config *tls.Config) http.RoundTripper {
		return &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}
	}
	calls := callers{transport(s.TLS()), transport(s.AdminTLS()), Earlier(s.Pool), s.Logger}
	return CallJSON(ctx, &http.Client{Transport: calls}, method, name, "https://"+at.String()+path, out)
}

// living finds a living server in gossip.
func (s *Servers) living(name string) (gossip.Member, error) {
	m, ok := s.Pool.Member(name)
	switch {
	case !ok:
		return m, fmt.Errorf("server %s is not known to gossip", name)
	case m.State != gossip.Alive:
		return m, fmt.Errorf("server %s shows no life since %s", name, m.Since.UTC().Format(time.RFC3339))
	}
	return m, nil
}
