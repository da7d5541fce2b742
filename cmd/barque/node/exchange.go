package node

import (
	"context"
	"crypto"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/raftstore"
)

// startExchange follows what the cluster says of its CAs.
func (s *server) startExchange(ctx context.Context) error {
	s.exchange = exchange.New(exchange.Config{
		Cluster: s.record.Cluster.ID, Trust: s.ids.Trust, Shelf: caShelf{s.store}, Home: s.ids.Home,
		Fetch: s.ids.FetchKey, Members: s.exchangeMembers, Changed: s.pool.Changed,
		Now: time.Now, Logger: s.logger.With("part", "ca"),
	})
	return s.stack.Start(ctx, lifecycle.Component{Name: "CAs", Run: s.exchange.Run})
}

// exchangeMembers are all nodes that the exchange of the CA has to do with.
func (s *server) exchangeMembers() ([]exchange.Member, error) {
	nodes := s.api.Informers().Core().V1().Nodes()
	if !nodes.Informer().HasSynced() {
		return nil, join.ErrNotYet
	}
	list, err := nodes.Lister().List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	var servers []string
	for _, m := range s.store.Members() {
		servers = append(servers, m.Name)
	}
	made := map[string]time.Time{}
	for _, n := range list {
		if isServers(n) || runsBarque(n) || isMember(n, s.pool.Member) { // others are foreign nodes
			made[n.Name] = n.CreationTimestamp.Time
		}
	}
	return credentials.ExchangeMembers(time.Now(), servers, made, s.pool.Members()), nil
}

// isServer tells whether a server of that name is a member of the store.
func (s *server) isServer(name string) bool {
	return slices.ContainsFunc(s.store.Members(), func(m raftstore.Member) bool { return m.Name == name })
}

// accountKeys are those of service accounts' tokens, at this moment.
func (s *server) accountKeys() (sign crypto.Signer, others []crypto.PublicKey) {
	return s.ids.Trust.AccountKeys(time.Now())
}
