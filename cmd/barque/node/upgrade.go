package node

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/controllers/runtime"
	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/upgrade"
	"github.com/barque/barque/upgrade/part"
)

// StoreFormat is the newest format of the store that this program reads.
const StoreFormat = raftstore.StoreFormat

// upgradeParts are a server's parts in upgrades of the cluster.
type upgradeParts struct {
	node    *part.Node
	objects *upgrade.Objects
}

// archiveHeader bounds the wait for the answer of a server that has an archive.
const archiveHeader = 30 * time.Second

// archiveClient returns a client for archives at servers, which may take long to read.
func archiveClient(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: archiveHeader}}
}

// upgradeNode returns this server's part in upgrades.
func (s *server) upgradeNode() *part.Node {
	o := s.options
	return part.NewNode(part.Config{Name: o.Name, DataDir: o.DataDir, Keeps: true, Keys: o.ReleaseKeys,
		Client: func() *http.Client { return archiveClient(s.ids.CallTLS()) }, StoreFormat: StoreFormat,
		Again: o.StartAgain, Logger: s.logger.With("part", "upgrade")})
}

// upgradeNode returns this agent's part in upgrades.
func (a *agent) upgradeNode() *part.Node {
	o := a.options
	return part.NewNode(part.Config{Name: o.Name, DataDir: o.DataDir, Keys: o.ReleaseKeys,
		Client: func() *http.Client { return archiveClient(a.ids.CallTLS()) }, Again: o.StartAgain,
		Logger: a.logger.With("part", "upgrade")})
}

// makeUpgrades makes the informer of Upgrades. The leader makes them, and every server shows them.
func (s *server) makeUpgrades() (err error) {
	s.upgrade.objects, err = upgrade.NewObjects(s.api.LoopbackConfig(), s.logger.With("part", "upgrade"))
	return err
}

// upgradeHandlers adds the handlers of orders by the leader, and of archives.
func (s *server) upgradeHandlers(handlers map[string]http.Handler) {
	releases := part.ReleasesIn(s.options.DataDir)
	upload := &part.Upload{Self: s.options.Name, Releases: releases, Keys: s.options.ReleaseKeys}
	archives := extra.MastersAndServers(http.MethodGet, releases.Serve)
	handlers[part.FilesPath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			archives.ServeHTTP(w, r)
			return
		}
		extra.MastersChange(http.HandlerFunc(upload.Files)).ServeHTTP(w, r)
	})
	handlers[part.NodePath] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !extra.IsServer(r) {
			http.Error(w, "this is for servers of the cluster only", http.StatusForbidden)
			return
		}
		s.upgrade.node.ServeHTTP(w, r)
	})
}

// archivesForAgents serves archives to agents, which show their certificates.
func (s *server) archivesForAgents(agent func(*http.Request) (string, error)) http.Handler {
	releases := part.ReleasesIn(s.options.DataDir)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := agent(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		httpserver.Authenticate(r.Context())
		releases.Serve(w, r)
	})
}

// ordersOf are the handlers of an agent's node for the leader's orders.
func ordersOf(node *part.Node) map[string]http.Handler {
	return map[string]http.Handler{part.NodePath: node}
}

// leadUpgrades makes the steps of upgrades, in a term of this server.
func (s *server) leadUpgrades(ctx context.Context, _ kubernetes.Interface) error {
	client, err := dynamic.NewForConfig(s.fenced(ctx, s.api.LoopbackConfig()))
	if err != nil {
		return err
	}
	runtime.Started(ctx)
	leader := &upgrade.Leader{Self: s.options.Name, Objects: s.upgrade.objects, Logger: s.logger.With("part", "upgrade"),
		Cluster: upgradeCluster{s}}
	return leader.Run(ctx, client)
}

// upgradeStatus is the leader's view of an upgrade; nil elsewhere.
func (s *server) upgradeStatus() *clusterstatus.UpgradeStatus {
	if !s.addresses.Leads() || s.upgrade.objects == nil {
		return nil
	}
	o := s.upgrade.objects.Last()
	if o == nil {
		return nil
	}
	return &clusterstatus.UpgradeStatus{Name: o.Name, Version: o.Spec.Version, Phase: string(o.Status.Phase),
		Message: o.Status.Message, Text: o.Text(), Done: o.Status.Done, Total: o.Status.Total,
		Failed: o.Status.Phase == upgrade.Failed || o.Status.Phase == upgrade.Incomplete}
}
