package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

// program is one of other authors, as these ship it.
type program struct {
	name     string
	module   string // Go module that it and its manifests come from
	version  string // of the module
	scenario string // one sentence of the page, which ends in the fact
	images   []workshop.Image
	npm      string            // a package of npm that the scenario runs on this machine, NAME@VERSION; "" for none
	tools    []workshop.Source // programs of the module that the scenario runs on this machine

	// namespaces are those of its pods. All of them are Ready before a fact is looked at.
	namespaces []string
	// install installs it and waits for nothing.
	install func(ctx context.Context, s *site) error
	// begin starts work that outlives the round, before the leader is killed or the machines
	// restart; nil when there is none.
	begin func(ctx context.Context, s *site, r round) error
	// fact makes something new of the round and returns nil when the program has done its work.
	fact func(ctx context.Context, s *site, r round) error
	// leave removes objects that would be in the way of other programs; nil when there are none.
	leave func(ctx context.Context, s *site) error
}

// order is the workshop's order for it.
func (p program) order() workshop.Order {
	return workshop.Order{Name: p.name, Module: p.module, Version: p.version, Images: p.images, NPM: p.npm,
		Tools: p.tools}
}

// round is a time at which the fact must hold.
type round string

const (
	installed round = "installed"
	killed    round = "killed"    // the leader is killed when it begins, and started again meanwhile
	restarted round = "restarted" // all machines have lost power and are back
)

var rounds = []round{installed, killed, restarted}

// past is the rounds up to this one.
func (r round) past() []string {
	var out []string
	for _, other := range rounds[:slices.Index(rounds, r)+1] {
		out = append(out, string(other))
	}
	return out
}

// replicas are those that a scenario scales to: up, and down.
func (r round) replicas() int {
	return map[round]int{installed: 2, killed: 4, restarted: 3}[r]
}

// recorded is nil when lines are the names of the rounds up to this one.
func (r round) recorded(by, lines string) error {
	if want := strings.Join(r.past(), "\n"); lines != want {
		return fmt.Errorf("%s has %q, want %q", by, lines, want)
	}
	return nil
}

// programs are all of them, in the order in which they are installed.
var programs = []program{
	helmItself,
	kubectl,
	debianKubectl,
	javaScript,
	python,
	patroni,
	rabbitMQ,
	etcd,
	haproxy,
	haproxyIngress,
	prometheus,
	metricsServer,
	kubeStateMetrics,
	sealedSecrets,
	metalLB,
	gatekeeper,
	certManager,
	prometheusOperator,
	cloudNativePG,
	keda,
	k9s,
	kwok,
	descheduler,
}
