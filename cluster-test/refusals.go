package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/barque/barque/devcluster"
)

// refusedMetric counts the requests of the controllers and the scheduler that the API refuses for
// want of a right.
const refusedMetric = "barque_control_plane_refused_total{"

// refusals reports which rights the controllers or the scheduler lacked while the test ran, by the
// servers that answer. A controller without a right does its work in part, which a test of
// something else need not notice.
func (c *Cluster) refusals(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if c.Client == nil {
		return nil
	}
	servers, err := c.Servers(ctx)
	if !devcluster.IsCluster(c.Dir) {
		return nil // the test has taken the cluster down
	}
	if err != nil {
		return fmt.Errorf("look for rights that the control plane lacks: %w", err)
	}
	var lacks []error
	for _, s := range servers {
		r := c.KubectlResult(ctx, "", "get", "--raw", "/metrics", "--server",
			"https://"+net.JoinHostPort(s.Address, apiPort))
		if r.Error != nil {
			continue // it was stopped
		}
		for line := range strings.Lines(r.Out) {
			if strings.HasPrefix(line, refusedMetric) {
				lacks = append(lacks,
					fmt.Errorf("server %s refused its control plane a right: %s", s.Name, strings.TrimSpace(line)))
			}
		}
	}
	return errors.Join(lacks...)
}
