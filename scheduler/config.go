package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/clock"

	"github.com/barque/barque/scheduler/devices"
	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins"
)

// Config configures a Scheduler. Only Informers is required.
type Config struct {
	// Informers is shared with the rest of the process. New requests informers of pods, nodes,
	// namespaces, services, PodDisruptionBudgets, volumes and devices. So it must be started after
	// New, and must not drop fields of these objects.
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	// Metrics is where the scheduler's metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
	// Profiles by scheduler name; the default profile alone when empty. All must sort the queue
	// by the same plugin: there is one queue.
	Profiles []framework.Spec
	// Registry has plugins beside the built-in ones; it may replace these.
	Registry framework.Registry
	// Extenders are servers that are asked beside the plugins of every profile.
	Extenders []configv1.Extender
	// Seed makes the choice among nodes of equal score repeatable; 0 draws one.
	Seed uint64
	// PercentageOfNodesToScore bounds the search for feasible nodes in clusters of more than 100. 0
	// adapts it to the size of the cluster.
	PercentageOfNodesToScore int
	// Parallelism is the number of goroutines for filters and scores; 0 means the number of Go's
	// processors, at most 16.
	Parallelism int
	// Writes bounds the concurrent API writes; 0 means 64.
	Writes int
	// Identity names this instance in events; usually the server's name.
	Identity string
	Clock    clock.Clock

	// How long failed pods wait; 0 means 1 s, 10 s and 5 min. See package queue.
	InitialBackoff, MaxBackoff, MaxUnschedulable time.Duration
	// OnStarted, if set, is called in each term when scheduling starts, with Run's context. It must
	// not block.
	OnStarted func(ctx context.Context)
	// AssumedTTL bounds how long a bound pod counts that the informer does not show; 0 means 5 min.
	AssumedTTL time.Duration
}

// Scheduler runs one leadership term after another.
type Scheduler struct {
	cfg     Config
	running atomic.Bool
	current atomic.Pointer[term] // nil between terms
	meters  *meters
}

// ErrRunning is returned by Run while another call of it has not returned.
var ErrRunning = errors.New("scheduler is already running: one term must end before the next begins")

// New checks the configuration and registers the informers that the scheduler reads.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Informers == nil {
		return nil, errors.New("scheduler needs an informer factory")
	}
	if cfg.PercentageOfNodesToScore < 0 || cfg.PercentageOfNodesToScore > 100 {
		return nil,
			fmt.Errorf("scheduler: percentage of nodes to score is %d, not within 0 to 100",
				cfg.PercentageOfNodesToScore)
	}
	cfg.setDefaults()
	names := map[string]bool{}
	for _, p := range cfg.Profiles {
		if err := p.Validate(cfg.Registry); err != nil {
			return nil, err
		}
		if names[p.SchedulerName] {
			return nil, fmt.Errorf("two scheduler profiles answer to %q", p.SchedulerName)
		}
		names[p.SchedulerName] = true
	}
	core := cfg.Informers.Core().V1()
	core.Pods().Informer()
	core.Nodes().Informer()
	core.Namespaces().Informer()
	core.Services().Informer()
	for _, s := range storageKinds(cfg.Informers) {
		s.informer()
	}
	devices.Request(cfg.Informers.Resource().V1())
	cfg.Informers.Policy().V1().PodDisruptionBudgets().Informer()
	s := &Scheduler{cfg: cfg}
	s.meters = newMeters(s.current.Load)
	if cfg.Metrics != nil {
		if err := s.meters.register(cfg.Metrics); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	registry := plugins.Registry()
	maps.Copy(registry, c.Registry)
	c.Registry = registry
	if len(c.Profiles) == 0 {
		c.Profiles = []framework.Spec{plugins.Default()}
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()
	}
	c.Parallelism = cmp.Or(c.Parallelism, min(runtime.GOMAXPROCS(0), 16))
	c.Writes = cmp.Or(c.Writes, 64)
	c.InitialBackoff = cmp.Or(c.InitialBackoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 10*time.Second)
	c.MaxUnschedulable = cmp.Or(c.MaxUnschedulable, 5*time.Minute)
	c.AssumedTTL = cmp.Or(c.AssumedTTL, 5*time.Minute)
}
