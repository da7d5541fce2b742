package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/controllers/attachdetach"
	"github.com/barque/barque/controllers/hpa"
)

// Settings are the users' choices for the controllers. Each has the meaning and the default of the
// flag of kube-controller-manager that it names. DefaultSettings makes them.
type Settings struct {
	// Controllers are those that run (--controllers): a name enables one, a name after "-" disables
	// it, and "*" enables all others. The first entry about one counts. Default "*".
	Controllers []string
	// Workers has the number of concurrently reconciled objects for some controllers, by the name
	// of the flag (WorkerFlags).
	Workers map[string]int
	// NodeMaskBits is the prefix length of a node's block of pod addresses (--node-cidr-mask-size).
	// Default 24.
	NodeMaskBits int
	// NodeMaskBits6 is the same for its block of IPv6 addresses (--node-cidr-mask-size-ipv6).
	NodeMaskBits6 int
	// FinishedPods is how many finished pods the cluster keeps (--terminated-pod-gc-threshold); 0
	// is all. Default 12500.
	FinishedPods int
	// ForceDetachAfter is how long a node that is not ready keeps a volume that no pod needs there;
	// 0 is for ever (--disable-force-detach-on-timeout). Default 6 min, which upstream has fixed.
	ForceDetachAfter time.Duration
	// Autoscaling is for the HorizontalPodAutoscaler (--horizontal-pod-autoscaler-…).
	Autoscaling hpa.Settings
}

// DefaultSettings are the defaults of kube-controller-manager.
func DefaultSettings() Settings {
	s := Settings{Controllers: []string{"*"}, Workers: map[string]int{}, NodeMaskBits: 24, NodeMaskBits6: 64,
		FinishedPods: 12500, ForceDetachAfter: attachdetach.DefaultForceAfter, Autoscaling: hpa.DefaultSettings()}
	for _, f := range WorkerFlags() {
		s.Workers[f.Flag] = f.Default
	}
	return s
}

// WorkerFlag is a flag that says how many objects a controller works on at once.
type WorkerFlag struct {
	Controller, Flag string
	Default          int
}

// WorkerFlags returns all of them, in the order of the list.
func WorkerFlags() []WorkerFlag {
	var flags []WorkerFlag
	for e := range all() {
		if e.syncs != "" {
			flags = append(flags, WorkerFlag{e.id(), e.syncs, e.workers})
		}
	}
	return flags
}

// Names returns the name of each controller that users choose it by: that of
// kube-controller-manager, where it has it.
func Names() []string {
	var names []string
	for e := range all() {
		names = append(names, e.id())
	}
	return names
}

// all goes through the list.
func all() func(yield func(entry) bool) {
	return func(yield func(entry) bool) {
		for _, g := range groups {
			for _, e := range g.entries {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func (e entry) id() string {
	if len(e.upstream) > 0 {
		return e.upstream[0]
	}
	return e.name
}

// called reports whether a user may mean this controller by name.
func (e entry) called(name string) bool { return e.name == name || slices.Contains(e.upstream, name) }

// enabled reports whether the users want it.
func (s Settings) enabled(e entry) bool {
	rest := false
	for _, word := range s.Controllers {
		switch name, off := strings.CutPrefix(word, "-"); {
		case word == "*":
			rest = true
		case e.called(name):
			return !off
		}
	}
	return rest
}

func (s Settings) workers(e entry) int {
	if n := s.Workers[e.syncs]; n > 0 {
		return n
	}
	return e.workers
}

// Check returns an error about invalid settings. pods are the cluster's ranges of pod addresses.
func (s Settings) Check(pods []netip.Prefix) error {
	for _, word := range s.Controllers {
		if word == "*" {
			continue
		}
		name, known := strings.TrimPrefix(word, "-"), false
		for e := range all() {
			known = known || e.called(name)
		}
		if !known {
			return fmt.Errorf("--controllers: there is no controller %q; there are %s", name,
				strings.Join(Names(), ", "))
		}
	}
	for flag, n := range s.Workers {
		if n < 1 {
			return fmt.Errorf("--%s %d: want 1 at least", flag, n)
		}
	}
	if s.ForceDetachAfter < 0 {
		return fmt.Errorf("--force-detach-after %s: want 0 (never) at least", s.ForceDetachAfter)
	}
	for _, cidr := range pods {
		if low, high := cidr.Bits(), min(30, cidr.Bits()+16); cidr.Addr().Is4() &&
			(s.NodeMaskBits < low || s.NodeMaskBits > high) {
			return fmt.Errorf("--node-cidr-mask-size %d: want from %d to %d for the pods' range %s", s.NodeMaskBits,
				low, high, cidr)
		}
		if low, high := cidr.Bits(), min(122, cidr.Bits()+16); cidr.Addr().Is6() &&
			(s.NodeMaskBits6 < low || s.NodeMaskBits6 > high) {
			return fmt.Errorf("--node-cidr-mask-size-ipv6 %d: want from %d to %d for the pods' range %s",
				s.NodeMaskBits6, low, high, cidr)
		}
	}
	return s.Autoscaling.Check()
}
