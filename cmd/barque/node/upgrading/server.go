// Package upgrading connects a server and an agent with upgrades of the cluster: the orders that a
// node takes, the archives that a server has, and the leader's view of the cluster.
package upgrading

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/upgrade"
	"github.com/barque/barque/upgrade/part"
)

// Server is a server's part in upgrades. Make completes it.
type Server struct {
	*options.Options
	Store     *raftstore.Server
	Pool      *gossip.Pool
	IDs       *credentials.Server
	Informers func() informers.SharedInformerFactory
	Agents    func() []string // with a Node
	IsServer  func(name string) bool
	Rotations func() []string // that are under way
	Leads     func() bool
	// Fenced returns a configuration for the leader's client, fenced by the term of lead.
	Fenced func(lead context.Context) *rest.Config
	// Record records an act of the leader in the audit log.
	Record func(path string, annotations map[string]string)
	Logger *slog.Logger

	Node    *part.Node
	Objects *upgrade.Objects // after Follow
}

// archiveHeader bounds the wait for the answer of a server that has an archive.
const archiveHeader = 30 * time.Second

// archiveClient returns a client for archives at servers, which may take long to read.
func archiveClient(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: archiveHeader}}
}

// Make makes the part of this server's own node.
func (s *Server) Make() *Server {
	s.Node = part.NewNode(part.Config{Name: s.Name, DataDir: s.DataDir, Keeps: true, Keys: s.ReleaseKeys,
		Client:      func() *http.Client { return archiveClient(s.IDs.CallTLS()) },
		StoreFormat: raftstore.StoreFormat, Again: s.StartAgain, Logger: s.Logger})
	return s
}

// AgentNode makes the part of an agent, and the handlers of its orders.
func AgentNode(
	o *options.Options, config func() *tls.Config, logger *slog.Logger,
) (*part.Node, map[string]http.Handler) {
	node := part.NewNode(part.Config{Name: o.Name, DataDir: o.DataDir, Keys: o.ReleaseKeys,
		Client: func() *http.Client { return archiveClient(config()) }, Again: o.StartAgain, Logger: logger})
	return node, map[string]http.Handler{part.NodePath: node}
}

// Follow makes the informer of Upgrades. The leader makes them, and every server shows them.
func (s *Server) Follow(config *rest.Config) (err error) {
	s.Objects, err = upgrade.NewObjects(config, s.Logger)
	return err
}

// AddHandlers adds the handlers of orders by the leader, and of archives.
func (s *Server) AddHandlers(handlers map[string]http.Handler) {
	releases := part.ReleasesIn(s.DataDir)
	upload := &part.Upload{Self: s.Name, Releases: releases, Keys: s.ReleaseKeys}
	archives := extra.MastersAndServers(http.MethodGet, releases.Serve)
	changes := extra.MastersChange(http.HandlerFunc(upload.Files))
	handlers[part.FilesPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			archives.ServeHTTP(w, r)
			return
		}
		changes.ServeHTTP(w, r)
	})
	handlers[part.NodePath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !extra.IsServer(r) {
			http.Error(w, "this is for servers of the cluster only", http.StatusForbidden)
			return
		}
		s.Node.ServeHTTP(w, r)
	})
}

// ForAgents serves archives to agents, which show their certificates.
func (s *Server) ForAgents(agent func(*http.Request) (string, error)) http.Handler {
	releases := part.ReleasesIn(s.DataDir)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := agent(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		httpserver.Authenticate(r.Context())
		releases.Serve(w, r)
	})
}

// Lead makes the steps of upgrades, in a term of this server.
func (s *Server) Lead(ctx context.Context, _ kubernetes.Interface) error {
	client, err := dynamic.NewForConfig(s.Fenced(ctx))
	if err != nil {
		return err
	}
	runtime.Started(ctx)
	leader := &upgrade.Leader{Self: s.Name, Objects: s.Objects, Logger: s.Logger, Cluster: cluster{s}}
	return leader.Run(ctx, client)
}

// Status is the leader's view of an upgrade; nil elsewhere.
func (s *Server) Status() *clusterstatus.UpgradeStatus {
	if !s.Leads() || s.Objects == nil {
		return nil
	}
	o := s.Objects.Last()
	if o == nil {
		return nil
	}
	failed := o.Status.Phase == upgrade.Failed || o.Status.Phase == upgrade.Incomplete
	return &clusterstatus.UpgradeStatus{Name: o.Name, Version: o.Spec.Version, Phase: string(o.Status.Phase),
		Message: o.Status.Message, Text: o.Text(), Done: o.Status.Done, Total: o.Status.Total, Failed: failed}
}
