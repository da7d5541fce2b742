package clustertest

import (
	"context"
	"errors"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/barque/barque/cluster-test/schedule"
)

// Main runs a program that makes clusters, until a signal asks it to end. The clusters are removed,
// also when a second signal ends it at once. The log of the clients' library is silenced: such
// programs break connections on purpose, and report what fails.
func Main(program string, run func(context.Context) error) {
	ReapIfAsked()
	klog.SetLogger(logr.Discard())
	schedule.Main(program, func(ctx context.Context) error { return errors.Join(run(ctx), Reap()) })
}
