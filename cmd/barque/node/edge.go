package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/edge/announce"
	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/edge/redirect"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/raftstore"
)

// protoHold is the protocol of held addresses at the servers' own port.
const protoHold = "barque-hold/1"

// completeAPIAddresses reads --api-address, and checks it against this machine's own addresses.
func (o *Options) completeAPIAddresses() error {
	o.apiAddresses = nil
	for _, text := range o.Serving.apiAddresses() {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil || !addr.IsGlobalUnicast() || addr.Zone() != "" || addr.Is4In6():
			return enroll.WrongOption(
				"--api-address %q: want a free address of the servers' network, such as 192.0.2.10", text)
		case slices.ContainsFunc(o.apiAddresses, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }):
			return enroll.WrongOption("--api-address %s: want one address, or one of each family", text)
		case slices.Contains(o.addresses.All(), addr):
			return enroll.WrongOption("--api-address %s is this machine's own address: give one that no machine has",
				text)
		case !slices.ContainsFunc(o.addresses.Internal, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }):
			return enroll.WrongOption(
				"--api-address %s: this machine has no address of that family (%v): give one with --node-ip", text,
				o.addresses.Internal)
		}
		o.apiAddresses = append(o.apiAddresses, addr)
	}
	return nil
}

// checkAPIAddresses checks them against the cluster's settings.
func (o *Options) checkAPIAddresses(s Settings) error {
	for _, addr := range o.apiAddresses {
		for what, networks := range map[string]interface{ Contains(netip.Addr) bool }{"pods": s.ClusterCIDRs,
			"services": s.ServiceCIDRs} {
			if networks.Contains(addr) {
				return enroll.WrongOption(
					"--api-address %s is among the addresses of %s: give one of the servers' network", addr, what)
			}
		}
	}
	return nil
}

// apiAddress is the first address of --api-address; the zero Addr without one.
func (o *Options) apiAddress() netip.Addr {
	if len(o.apiAddresses) == 0 {
		return netip.Addr{}
	}
	return o.apiAddresses[0]
}

// startEdge starts what answers for addresses that are no machine's own. It needs the store and
// gossip, and no API. It stops before gossip does, which Processes relies on.
func (s *server) startEdge(ctx context.Context) error {
	o, logger := s.options, s.logger.With("part", "addresses")
	s.holder = hold.NewHolder(hold.Boot)
	processes := liveness.NewProcesses(s.pool, o.Name)
	s.grants = hold.NewLeader(hold.LeaderConfig{
		Confirm: s.store.ConfirmTerm, Demands: s.demands, Gone: processes.Gone, Clock: hold.Boot, Logger: logger,
		Granted: s.balanced.granted,
	})
	node := hold.NewNode(hold.NodeConfig{Holder: s.holder, Dial: s.dialGrants, Clock: hold.Boot, Logger: logger})
	announcer := announce.New(
		announce.Config{Holder: s.holder, Own: o.addresses.All(), Conflict: s.conflicts.note, Logger: logger})
	for _, c := range announcer.Collectors() {
		if err := legacyregistry.Registerer().Register(c); err != nil {
			return err
		}
	}
	listener := s.mux.Listener(protoHold)
	s.holding = s.newHolding()
	run := []func(context.Context) error{processes.Run, node.Run, announcer.Run, s.leadGrants, s.endHolding,
		func(ctx context.Context) error {
			return s.serveGrants(ctx, listener)
		}}
	if len(o.apiAddresses) > 0 {
		run = append(run, func(ctx context.Context) error {
			return redirect.Run(ctx,
				redirect.Config{Table: redirect.TableOfAPI, Of: "the API's address", To: o.addresses.Internal,
					Wanted: redirect.Held(s.holder.Held, o.apiAddresses, o.APIPort), Logger: logger})
		})
	}
	life, end := context.WithCancel(context.Background())
	s.edgeLife = life
	return s.stack.Start(ctx, lifecycle.Component{Name: "addresses", Run: func(ctx context.Context) error {
		defer context.AfterFunc(ctx, end)()
		defer end()
		return lifecycle.All(ctx, run...)
	}})
}

// demands returns the addresses that nodes are to answer for. Those of the API belong to the
// leader. Those of Services are known when the informers of the API server are synced.
func (s *server) demands() (out []hold.Demand, partial bool, changed <-chan struct{}) {
	var servers []string
	for _, m := range s.store.Members() {
		servers = append(servers, m.Name)
	}
	for _, addr := range s.options.apiAddresses {
		out = append(out, hold.Demand{Addr: addr, Eligible: []string{s.options.Name}, Possible: servers})
	}
	ofServices, changed, err := s.balanced.get()
	for _, d := range ofServices {
		out = append(out, d.Demand)
	}
	return out, err != nil, changed
}

// answered returns which node answers for which address, on the leader.
func (s *server) answered() []clusterstatus.AnsweredAddress {
	if s.grants == nil {
		return nil
	}
	grants := s.grants.Grants()
	if grants == nil {
		return nil
	}
	var out []clusterstatus.AnsweredAddress
	for _, addr := range s.options.apiAddresses {
		out = append(out, clusterstatus.AnsweredAddress{Address: addr.String(), Node: grants[addr]})
	}
	ofServices, _, _ := s.balanced.get()
	for _, d := range ofServices {
		for _, of := range d.Services {
			out = append(out,
				clusterstatus.AnsweredAddress{Address: d.Addr.String(), Service: of.Namespace + "/" + of.Name,
					Node: grants[d.Addr]})
		}
	}
	return out
}

// leadGrants grants addresses in each term in which this server leads.
func (s *server) leadGrants(ctx context.Context) error {
	for {
		leading, term, err := s.store.AwaitLeadership(ctx)
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

// serveGrants serves the other servers.
func (s *server) serveGrants(ctx context.Context, listener net.Listener) error {
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
			s.logger.Debug("a session for addresses has ended", "node", peer.PeerName(), "err", err)
		})
	}
}

// leaderPoll is how often a server looks whether another one leads. It is a look into memory.
const leaderPoll = 50 * time.Millisecond

// dialGrants opens a link to the leader that this server knows, which may be itself.
func (s *server) dialGrants(ctx context.Context) (hold.Link, <-chan struct{}, error) {
	leader, ok := s.store.Leader()
	if !ok {
		return nil, nil, errors.New("no leader is known")
	}
	var link hold.Link
	over := make(chan struct{})
	if leader.Self {
		near, far := net.Pipe()
		link = hold.NewLink(near)
		go func() { // ends with the link
			if err := s.grants.Serve(ctx, s.options.Name, hold.NewLink(far)); err != nil {
				s.logger.Debug("this server's own session for addresses has ended", "err", err)
			}
		}()
	} else {
		conn, err := s.mux.Dial(ctx, leader.Address, protoHold)
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
			if now, ok := s.store.Leader(); ok && now.ID != leader.ID {
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
