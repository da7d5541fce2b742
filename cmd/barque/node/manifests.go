package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/controllers/helmcharts"
	"github.com/barque/barque/controllers/manifests"
	"github.com/barque/barque/controllers/manifests/files"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/edge/pool"
)

// Directories of a server's data directory for its users.
const (
	manifestsDir = "manifests"
	chartsDir    = "charts"
)

// filesUser describes the files of each server, whoever leads.
var filesUser = serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-manifest-files")

// definitions are the custom resources of every cluster.
func definitions() [][]byte {
	return [][]byte{pool.Definition, bgp.Definition, manifests.Definition, helmcharts.Definition,
		helmcharts.ConfigDefinition}
}

// customInformers makes the informers of custom resources, with the API server's rights.
func (s *server) customInformers() (dynamicinformer.DynamicSharedInformerFactory, error) {
	client, err := dynamic.NewForConfig(s.api.LoopbackConfig())
	if err != nil {
		return nil, fmt.Errorf("make a client of custom resources: %w", err)
	}
	s.custom = dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	return s.custom, nil
}

// readManifests brings the files of this server to the cluster until ctx ends.
func (s *server) readManifests(ctx context.Context) error {
	logger := s.logger.With("part", "manifests")
	config := s.api.LoopbackConfigAs(filesUser, rbac.GroupsOf(filesUser)...)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of manifests: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of manifests: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(s.options.DataDir, chartsDir), 0o700); err != nil {
		logger.Warn("there is no directory for archives of charts", "err", err)
	}
	reader, err := files.NewReader(files.Config{
		Dir: filepath.Join(s.options.DataDir, manifestsDir), Server: s.options.Name,
		API:       files.Live{Client: client, Objects: objects, Server: s.options.Name},
		Manifests: s.custom.ForResource(manifests.Resource).Informer(),
		Secrets:   s.api.Informers().Core().V1().Secrets().Informer(), Logger: logger,
	})
	if err != nil {
		// The server is worth more than its files.
		logger.Error("the files of this server are not applied", "err", err)
		return nil
	}
	return reader.Run(ctx)
}
