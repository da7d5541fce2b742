// Package addons wires what users hand to servers as files and charts: the definitions and
// informers of these objects, and the reader of a server's directory.
package addons

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/controllers"
	"github.com/barque/barque/controllers/helmcharts"
	"github.com/barque/barque/controllers/manifests"
	"github.com/barque/barque/controllers/manifests/files"
)

// Directories of a server's data directory for its users.
const (
	ManifestsDir = "manifests"
	ChartsDir    = "charts"
)

// filesUser describes the files of each server, whoever leads.
var filesUser = serviceaccount.MakeUsername(metav1.NamespaceSystem, "barque-manifest-files")

// Definitions are those of the custom resources.
func Definitions() [][]byte {
	return [][]byte{manifests.Definition, helmcharts.Definition, helmcharts.ConfigDefinition}
}

// API is this server's own.
type API interface {
	LoopbackConfig() *rest.Config
	LoopbackConfigAs(name string, groups ...string) *rest.Config
	Informers() informers.SharedInformerFactory
}

// Config of Addons.
type Config struct {
	DataDir, Server string
	API             API
	Servers         manifests.Servers
	Metrics         prometheus.Registerer
	Logger          *slog.Logger
}

// Addons are the parts of a server.
type Addons struct {
	Config
	custom  dynamicinformer.DynamicSharedInformerFactory
	metrics *helmcharts.Metrics
}

// New makes the informers, with the rights of the API server.
func New(c Config) (*Addons, error) {
	client, err := dynamic.NewForConfig(c.API.LoopbackConfig())
	if err != nil {
		return nil, fmt.Errorf("make a client of custom resources: %w", err)
	}
	c.Logger = c.Logger.With("part", "addons")
	a := &Addons{Config: c, custom: dynamicinformer.NewDynamicSharedInformerFactory(client, 0)}
	a.metrics, err = helmcharts.NewMetrics(c.Metrics)
	return a, err
}

// Controllers are the leader's needs.
func (a *Addons) Controllers() *controllers.Addons {
	return &controllers.Addons{Custom: a.custom, Servers: a.Servers, Self: a.Server,
		Charts: filepath.Join(a.DataDir, ChartsDir), Metrics: a.metrics}
}

// Run runs the informers, and brings the files of this server to the cluster, until ctx ends.
func (a *Addons) Run(ctx context.Context) error {
	// Nobody waits for these informers: a leader makes the definitions first.
	a.custom.Start(ctx.Done())
	config := a.API.LoopbackConfigAs(filesUser, rbac.GroupsOf(filesUser)...)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of manifests: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of manifests: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(a.DataDir, ChartsDir), 0o700); err != nil {
		a.Logger.Warn("there is no directory for archives of charts", "err", err)
	}
	reader, err := files.NewReader(files.Config{
		Dir: filepath.Join(a.DataDir, ManifestsDir), Server: a.Server,
		API:       files.Live{Client: client, Objects: objects, Server: a.Server},
		Manifests: a.custom.ForResource(manifests.Resource).Informer(),
		Secrets:   a.API.Informers().Core().V1().Secrets().Informer(), Logger: a.Logger,
	})
	if err != nil {
		// The server is worth more than its files.
		a.Logger.Error("the files of this server are not applied", "err", err)
		return nil
	}
	return reader.Run(ctx)
}
