package main

import (
	"context"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
)

// program is one of other authors, as these ship it.
type program struct {
	name     string
	module   string // Go module that it and its manifests come from
	version  string // of the module
	scenario string // one sentence of the page, which ends in the fact
	images   []image
	npm      string   // a package of npm that the scenario runs on this machine, NAME@VERSION; "" for none
	tools    []source // programs of the module that the scenario runs on this machine

	// namespaces are those of its pods. All of them are Ready before a fact is looked at.
	namespaces []string
	// install installs it and waits for nothing.
	install func(ctx context.Context, s *site) error
	// begin starts what is to outlive the round, before the leader is killed or the machines
	// restart; nil when there is nothing.
	begin func(ctx context.Context, s *site, r round) error
	// fact makes something new of the round and returns nil when the program has done its work.
	fact func(ctx context.Context, s *site, r round) error
	// leave removes what would be in the way of other programs; nil when there is nothing.
	leave func(ctx context.Context, s *site) error
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

// image is one that the manifests name.
type image struct {
	name     string            // as the manifests have it
	binaries map[string]source // by path in the image
	files    map[string]string // files of the module, by path in the image
	scripts  map[string]string // likewise, as programs: modules have no permissions
	links    map[string]string // targets of symbolic links, by path in the image
	shell    bool              // the authors' image has a shell
	config   v1.Config
	// foreign has more of the image, such as Debian packages, where there is more.
	foreign func(ctx context.Context) (images.Foreign, error)
}

// source is a main package.
type source struct {
	pkg     string // path below the module, "." for its root
	module  string // another one than the program's; "" for that
	version string
	ldflags string // what the authors' own build sets, such as the version
	tags    string // likewise
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
