// Package addresses lets a node answer for addresses that are no machine's own: those of the API
// and of Services. A server grants them while it leads, and a server and an agent hold what they
// were granted. Package edge/hold has the rules.
package addresses

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/edge/announce"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/edge/redirect"
	"github.com/barque/barque/internal/cutoff"
	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// protoHold is the protocol of held addresses at the servers' own port.
const protoHold = "barque-hold/1"

// ServerConfig has the parts of a server that answering for addresses needs.
type ServerConfig struct {
	Options *options.Options
	Store   *raftstore.Server
	Pool    *gossip.Pool
	Mux     *raftstore.Mux
	Trust   *pki.Trust
	// Check returns the reason why a certificate counts no more, or nil. Its answers may change
	// when one of Changed does.
	Check     func(*x509.Certificate) error
	Changed   []func() <-chan struct{}
	Conflicts *Conflicts
	Logger    *slog.Logger
}

// Server is a server's part. A nil one knows nothing yet.
type Server struct {
	ServerConfig
	// holder is what this node answers for, and grants what this server has granted while it leads.
	holder *hold.Holder
	grants *hold.Leader
	// services are the addresses of Services.
	services ofServices
	// life ends when this server stops to grant.
	life context.Context
	// sessions are those of agents that hold addresses.
	sessions *cutoff.Requests
}

// StartServer starts what answers for addresses. It needs the store and gossip, and no API. It
// stops before gossip does, which liveness.Processes relies on.
func StartServer(ctx context.Context, stack *lifecycle.Stack, config ServerConfig) (*Server, error) {
	s := &Server{ServerConfig: config, holder: hold.NewHolder(hold.Boot)}
	o, logger := s.Options, s.Logger
	processes := liveness.NewProcesses(s.Pool, o.Name)
	s.grants = hold.NewLeader(hold.LeaderConfig{
		Confirm: s.Store.ConfirmTerm, Earlier: s.Store.SinceEarlierProof, Demands: s.demands, Gone: processes.Gone,
		Clock: hold.Boot, Logger: logger,
		Granted: s.services.granted,
	})
	node := hold.NewNode(hold.NodeConfig{Holder: s.holder, Dial: s.dial, Clock: hold.Boot, Logger: logger})
	announcer := announce.New(
		announce.Config{Holder: s.holder, Own: o.Addresses.All(), Conflict: s.Conflicts.note, Logger: logger})
	for _, c := range announcer.Collectors() {
		if err := legacyregistry.Registerer().Register(c); err != nil {
			return nil, err
		}
	}
	listener := s.Mux.Listener(protoHold)
	s.sessions = s.newSessions()
	run := []func(context.Context) error{processes.Run, node.Run, announcer.Run, s.lead, s.endSessions,
		func(ctx context.Context) error {
			return s.serve(ctx, listener)
		}}
	if len(o.APIAddresses) > 0 {
		run = append(run, func(ctx context.Context) error {
			return redirect.Run(ctx,
				redirect.Config{Table: redirect.TableOfAPI, Of: "the API's address", To: o.Addresses.Internal,
					Wanted: redirect.Held(s.holder.Held, o.APIAddresses, o.APIPort), Logger: logger})
		})
	}
	life, end := context.WithCancel(context.Background())
	s.life = life
	return s, stack.Start(ctx, lifecycle.Component{Name: "addresses", Run: func(ctx context.Context) error {
		defer context.AfterFunc(ctx, end)()
		defer end()
		return lifecycle.All(ctx, run...)
	}})
}

// Use begins to read the Services, and how their pools are announced.
func (s *Server) Use(all informers.SharedInformerFactory, announced *bgp.Objects) error {
	return s.services.use(all, announced)
}

// Routine is the leader's work for users: grants need no API.
func (s *Server) Routine() runtime.Routine {
	return runtime.Routine{Name: "addresses", Run: s.services.events}
}

// Leads reports whether this server grants addresses.
func (s *Server) Leads() bool { return s != nil && s.grants.Grants() != nil }

// demands returns the addresses that nodes are to answer for. Those of the API belong to the
// leader. Those of Services are known when the informers of the API server are synced.
func (s *Server) demands() (out []hold.Demand, partial bool, changed <-chan struct{}) {
	var servers []string
	for _, m := range s.Store.Members() {
		servers = append(servers, m.Name)
	}
	for _, addr := range s.Options.APIAddresses {
		out = append(out, hold.Demand{Addr: addr, Eligible: []string{s.Options.Name}, Possible: servers})
	}
	ofServices, changed, err := s.services.get()
	for _, d := range ofServices {
		out = append(out, d.Demand)
	}
	return out, err != nil, changed
}

// Answered returns which node answers for which address, on the leader.
func (s *Server) Answered() []clusterstatus.AnsweredAddress {
	if !s.Leads() {
		return nil
	}
	grants := s.grants.Grants()
	var out []clusterstatus.AnsweredAddress
	for _, addr := range s.Options.APIAddresses {
		out = append(out, clusterstatus.AnsweredAddress{Address: addr.String(), Node: grants[addr]})
	}
	ofServices, _, _ := s.services.get()
	for _, d := range ofServices {
		for _, of := range d.Services {
			out = append(out,
				clusterstatus.AnsweredAddress{Address: d.Addr.String(), Service: of.Namespace + "/" + of.Name,
					Node: grants[d.Addr]})
		}
	}
	return out
}

// lead grants addresses in each term in which this server leads.
func (s *Server) lead(ctx context.Context) error {
	for {
		leading, term, err := s.Store.AwaitLeadership(ctx)
		if errors.Is(err, raftstore.ErrClosed) {
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.grants.Lead(leading, term); err != nil {
			return err
		}
	}
}

// serve serves the other servers.
func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			<-ctx.Done() // the servers' port is closed only at the end
			return nil
		}
		peer, ok := conn.(interface {
			PeerName() string
			Barred() error
		})
		if !ok || peer.Barred() != nil {
			conn.Close()
			continue
		}
		open.Go(func() { // ends with ctx, and with the connection
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			err := s.grants.Serve(ctx, peer.PeerName(), hold.NewLink(conn))
			s.Logger.Debug("a session for addresses has ended", "node", peer.PeerName(), "err", err)
		})
	}
}

// leaderPoll is how often a server looks whether another one leads. It is a look into memory.
const leaderPoll = 50 * time.Millisecond

// dial opens a link to the leader that this server knows, which may be itself.
func (s *Server) dial(ctx context.Context) (hold.Link, <-chan struct{}, error) {
	leader, ok := s.Store.Leader()
	if !ok {
		return nil, nil, errors.New("no leader is known")
	}
	var link hold.Link
	over := make(chan struct{})
	if leader.Self {
		near, far := net.Pipe()
		link = hold.NewLink(near)
		go func() { // ends with the link
			if err := s.grants.Serve(ctx, s.Options.Name, hold.NewLink(far)); err != nil {
				s.Logger.Debug("this server's own session for addresses has ended", "err", err)
			}
		}()
	} else {
		conn, err := s.Mux.Dial(ctx, leader.Address, protoHold)
		if err != nil {
			return nil, nil, fmt.Errorf("ask the leader %s for addresses: %w", leader.Name, err)
		}
		link = hold.NewLink(conn)
	}
	watched := &watchedLink{Link: link, closed: make(chan struct{})}
	go func() { // ends with the link
		tick := time.NewTicker(leaderPoll)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-watched.closed:
				return
			}
			if now, ok := s.Store.Leader(); ok && now.ID != leader.ID {
				close(over)
				return
			}
		}
	}()
	return watched, over, nil
}

// watchedLink tells its watcher of its end.
type watchedLink struct {
	hold.Link
	once   sync.Once
	closed chan struct{}
}

// Close implements hold.Link.
func (l *watchedLink) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Link.Close()
}

// Handler takes the sessions of agents at the API's port.
func (s *Server) Handler(agent func(*http.Request) (string, error)) http.Handler {
	return &hold.Handler{
		Leader: s.grants, Agent: agent, LeaderAt: s.leaderAPI, Authenticated: httpserver.Authenticate,
		Sessions: s.sessions, Until: s.life,
	}
}

// newSessions returns the agents' sessions, none yet.
func (s *Server) newSessions() *cutoff.Requests {
	return cutoff.New(cutoff.ByCluster, s.Check, func(*x509.Certificate) (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: s.Trust.PoolFor(pki.Clients),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}, func(*http.Request) bool { return true })
}

// endSessions ends sessions whose certificates count no more.
func (s *Server) endSessions(ctx context.Context) error {
	s.sessions.Run(ctx, s.Changed...)
	return nil
}

// leaderAPI returns the address of the leader's API, as gossip has it.
func (s *Server) leaderAPI() (netip.AddrPort, bool) {
	leader, ok := s.Store.Leader()
	if !ok {
		return netip.AddrPort{}, false
	}
	m, ok := s.Pool.Member(leader.Name)
	return netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort), ok && m.Facts.APIPort != 0
}
