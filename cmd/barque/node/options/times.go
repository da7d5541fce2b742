package options

import (
	"errors"
	"fmt"
	"time"

	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/controllers/nodelifecycle"
)

// Times configure failure detection and eviction, as in Kubernetes' node controller.
type Times struct {
	// Fast makes this server probe all nodes, so that it detects a dead one within seconds.
	Fast bool

	MonitorPeriod time.Duration // interval of checks of nodes
	MonitorGrace  time.Duration // without life until Unknown
	StartupGrace  time.Duration // the same for a node without any sign of life yet
	GoodbyeGrace  time.Duration // the same for a node that said good-bye

	// Default tolerations of pods: how many seconds they stay on a node that is not ready, or
	// unreachable.
	NotReadySeconds, UnreachableSeconds int64

	EvictionRate          float32 // evicted nodes a second, per zone; 0 is none
	SecondaryEvictionRate float32 // the same in a large zone with a large unhealthy share
	LargeZone             int     // above how many nodes a zone is large
	UnhealthyShare        float32 // which share of a zone is large, of at least three nodes
}

// DefaultTimes returns Kubernetes' defaults. Kubernetes has no good-bye.
func DefaultTimes() Times {
	return Times{
		MonitorPeriod: 5 * time.Second, MonitorGrace: 40 * time.Second, StartupGrace: 60 * time.Second,
		GoodbyeGrace:    40 * time.Second,
		NotReadySeconds: 300, UnreachableSeconds: 300,
		EvictionRate: 0.1, SecondaryEvictionRate: 0.01, LargeZone: 50, UnhealthyShare: 0.55,
	}
}

// Fast failure detection changes the defaults of MonitorPeriod and MonitorGrace. It probes each
// node once a second (package pulse). A node becomes Unknown when it is silent for the grace period
// and then for fastConfirm after a last probe. That is four and a half seconds at most. A process
// that pauses for less than the grace period keeps its state.
const (
	fastMonitorPeriod = time.Second
	fastMonitorGrace  = 3 * time.Second

	fastConfirm = 500 * time.Millisecond
)

// The flags of the times that depend on each other.
const (
	FlagFast    = "fast-failure-detection"
	FlagPeriod  = "node-monitor-period"
	FlagGrace   = "node-monitor-grace-period"
	FlagStartup = "node-startup-grace-period"
	FlagGoodbye = "node-goodbye-grace-period"
)

// Complete sets defaults that depend on another flag, and validates all. given reports whether a
// flag was given.
func (t *Times) Complete(given func(flag string) bool) error {
	if t.Fast && !given(FlagPeriod) {
		t.MonitorPeriod = fastMonitorPeriod
	}
	if t.Fast && !given(FlagGrace) {
		t.MonitorGrace = fastMonitorGrace
	}
	if !given(FlagStartup) {
		t.StartupGrace = max(t.StartupGrace, t.MonitorGrace)
	}
	if !given(FlagGoodbye) {
		t.GoodbyeGrace = max(t.GoodbyeGrace, t.MonitorGrace)
	}
	return t.check()
}

// check validates the times.
func (t Times) check() error {
	for flag, d := range map[string]time.Duration{
		FlagPeriod: t.MonitorPeriod, FlagGrace: t.MonitorGrace, FlagStartup: t.StartupGrace,
		FlagGoodbye: t.GoodbyeGrace,
	} {
		if d <= 0 {
			return fmt.Errorf("--%s %s: want a time such as 5s", flag, d)
		}
	}
	switch {
	case t.NotReadySeconds < 0 || t.UnreachableSeconds < 0:
		return errors.New(
			"--default-not-ready-toleration-seconds and --default-unreachable-toleration-seconds cannot be negative")
	case t.EvictionRate < 0 || t.SecondaryEvictionRate < 0:
		return errors.New(
			"--node-eviction-rate and --secondary-node-eviction-rate cannot be negative; 0 evicts nothing")
	case t.LargeZone < 0:
		return errors.New("--large-cluster-size-threshold cannot be negative")
	case t.UnhealthyShare <= 0 || t.UnhealthyShare > 1:
		return fmt.Errorf("--unhealthy-zone-threshold %g: want a share above 0, 1 at most", t.UnhealthyShare)
	}
	return nil
}

// ForNodes returns the times for the node controller, for which 0 is the default and -1 is none.
func (t Times) ForNodes() nodelifecycle.Settings {
	s := nodelifecycle.Settings{
		Period: t.MonitorPeriod, Grace: t.MonitorGrace, StartupGrace: t.StartupGrace, GoodbyeGrace: t.GoodbyeGrace,
		EvictionRate: rate(t.EvictionRate), SecondaryEvictionRate: rate(t.SecondaryEvictionRate),
		LargeZone: t.LargeZone, UnhealthyShare: float64(t.UnhealthyShare),
	}
	if s.LargeZone == 0 {
		s.LargeZone = -1
	}
	if t.Fast {
		s.ConfirmTimeout = fastConfirm
	}
	return s
}

func rate(perSecond float32) float64 {
	if perSecond == 0 {
		return -1
	}
	return float64(perSecond)
}

func (t Times) Tolerations() *apiserver.TolerationSeconds {
	return &apiserver.TolerationSeconds{NotReady: t.NotReadySeconds, Unreachable: t.UnreachableSeconds}
}
