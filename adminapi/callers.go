package adminapi

import (
	"log/slog"
	"net/http"
	"slices"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

// callers are the two identities of a server at the API of another one. A server of a version
// before 30 November 2026 refuses the first, because it answers administrators only. So does any
// other until a leader of this version has created the role of servers. A refused request has
// changed nothing, and the other side has proven that it is a server, so it is asked again by the
// administrator's certificate. Requests have no body. The fallback is logged: a missing right would
// not be noticed otherwise.
//
// The fallback ends when all living servers are of this version: then the leader creates the role.
type callers struct {
	server, admin http.RoundTripper
	earlier       func() bool // a server of an earlier version lives
	logger        *slog.Logger
}

// Earlier returns a function that reports whether a server of a version before 30 November 2026
// lives, as gossip has it. Such a version does not say that it handles separate CAs.
func Earlier(pool *gossip.Pool) func() bool { return func() bool { return earlier(pool.Members()) } }

func earlier(members []gossip.Member) bool {
	return slices.ContainsFunc(members, func(m gossip.Member) bool {
		return m.Role == pki.RoleServer && m.State == gossip.Alive && m.Facts.CAs < pki.SeparateForm
	})
}

// RoundTrip implements http.RoundTripper.
func (c callers) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.server.RoundTrip(r)
	if err != nil || response.StatusCode != http.StatusForbidden || !c.earlier() {
		return response, err
	}
	response.Body.Close()
	c.logger.Info(
		"another server refuses this one, and is asked by the administrator's certificate: it is of an earlier version, or the role barque:server-client lacks the right",
		"at", r.URL.Host, "method", r.Method, "path", r.URL.Path)
	return c.admin.RoundTrip(r.Clone(r.Context()))
}

// CloseIdleConnections is called by http.Client.
func (c callers) CloseIdleConnections() {
	for _, t := range []http.RoundTripper{c.server, c.admin} {
		if closer, ok := t.(interface{ CloseIdleConnections() }); ok {
			closer.CloseIdleConnections()
		}
	}
}
