package hold

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/barque/barque/internal/cutoff"
)

// Path is where servers take agents' sessions, at the API's port. The connection is then one of
// messages.
const Path = "/barque/v1/addresses"

// upgrade is the name of the protocol in HTTP's headers, and leaderHeader has the address of the
// leader in the answer of a server that does not lead.
const (
	upgrade      = "barque-hold"
	leaderHeader = "Barque-Leader"
)

// Handler takes the sessions of agents.
type Handler struct {
	Leader *Leader
	// Agent returns the name of the agent that makes a request, by its certificate. An error may
	// have the status of the answer: HTTPStatus() int.
	Agent func(r *http.Request) (string, error)
	// LeaderAt returns the address of the leader's API; false if it is unknown.
	LeaderAt func() (netip.AddrPort, bool)
	// Authenticated is called when a client has proven that it is an agent.
	Authenticated func(ctx context.Context)
	// Sessions ends a session when its certificate is revoked.
	Sessions *cutoff.Requests
	// Until ends all sessions.
	Until context.Context
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	cutoff.WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		agent, err := h.Agent(r)
		if err != nil {
			status := http.StatusForbidden
			var of interface{ HTTPStatus() int }
			if errors.As(err, &of) {
				status = of.HTTPStatus()
			}
			http.Error(w, err.Error(), status)
			return
		}
		h.Authenticated(r.Context())
		cutoff.Proven(r.Context(), cutoff.ByCluster)
		h.Sessions.Handler(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.session(w, r, agent) })).ServeHTTP(w, r)
	})).ServeHTTP(w, r)
}

// session serves an agent.
func (h *Handler) session(w http.ResponseWriter, r *http.Request, agent string) {
	if r.Header.Get("Upgrade") != upgrade {
		http.Error(w, "want the protocol "+upgrade, http.StatusUpgradeRequired)
		return
	}
	if !h.Leader.Leads() {
		if at, ok := h.LeaderAt(); ok {
			w.Header().Set(leaderHeader, at.String())
		}
		http.Error(w, ErrNotLeading.Error(), http.StatusMisdirectedRequest)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(h.Until, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return
	}
	if _, err := io.WriteString(conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+upgrade+"\r\n\r\n"); err != nil {
		return
	}
	_ = h.Leader.Serve(h.Until, agent, NewLink(upgraded{conn, buffered.Reader})) // the agent asks again
}

// upgraded is a connection of which HTTP has read a part already.
type upgraded struct {
	net.Conn
	in *bufio.Reader
}

// Read implements io.Reader.
func (u upgraded) Read(b []byte) (int, error) { return u.in.Read(b) }

// ElsewhereError is returned by Dial for a server that does not lead.
type ElsewhereError struct {
	At     netip.AddrPort
	Leader netip.AddrPort // invalid if that server knows none
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("the server at %s does not lead", e.At)
}

// dialPatience bounds a session's way through TLS and HTTP.
const dialPatience = time.Second

// Dial opens an agent's link to the server at the address, if that leads.
func Dial(ctx context.Context, at netip.AddrPort, config *tls.Config) (Link, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	config.NextProtos = []string{"http/1.1"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	link, err := begin(ctx, conn, at)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return link, nil
}

func begin(ctx context.Context, conn net.Conn, at netip.AddrPort) (Link, error) {
	end, _ := ctx.Deadline()
	if err := conn.SetDeadline(end); err != nil {
		return nil, err
	}
	request := "POST " + Path + " HTTP/1.1\r\nHost: " + at.String() + "\r\nConnection: Upgrade\r\nUpgrade: " + upgrade +
		"\r\nContent-Length: 0\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		return nil, err
	}
	in := bufio.NewReader(conn)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusSwitchingProtocols:
		return NewLink(upgraded{conn, in}), conn.SetDeadline(time.Time{})
	case http.StatusMisdirectedRequest:
		leader, _ := netip.ParseAddrPort(response.Header.Get(leaderHeader))
		return nil, &ElsewhereError{At: at, Leader: leader}
	}
	return nil, fmt.Errorf("the server at %s answers %s", at, response.Status)
}

// Leads reports whether this server leads.
func (l *Leader) Leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term != 0
}
