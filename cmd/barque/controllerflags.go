package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/barque/barque/controllers"
)

// addControllerFlags adds the flags of kube-controller-manager that choose controllers and tune
// them. How many objects each works on at once goes to workers, by the name of the flag.
func addControllerFlags(c *cobra.Command, s *controllers.Settings, workers *map[string]*int) {
	*s = controllers.DefaultSettings()
	flags, hpa := c.Flags(), &s.Autoscaling
	flags.StringSliceVar(&s.Controllers, "controllers", s.Controllers, "controllers to run: a name switches one on, -name one off, and * all others; give it to all servers. All are: "+strings.Join(controllers.Names(), ", "))
	flags.IntVar(&s.NodeMaskBits, "node-cidr-mask-size", s.NodeMaskBits, "length of the prefix of a node's block of IPv4 pod addresses; give it to all servers")
	flags.IntVar(&s.NodeMaskBits6, "node-cidr-mask-size-ipv6", s.NodeMaskBits6, "length of the prefix of a node's block of IPv6 pod addresses; give it to all servers")
	flags.IntVar(&s.FinishedPods, "terminated-pod-gc-threshold", s.FinishedPods, "how many finished pods stay before the oldest are deleted; 0 is all")
	flags.DurationVar(&s.ForceDetachAfter, "force-detach-after", s.ForceDetachAfter, "after how long a volume that no pod needs is detached from a node that is not ready and may still use it; 0 is never: then only the taint node.kubernetes.io/out-of-service does it")
	flags.DurationVar(&hpa.SyncPeriod, "horizontal-pod-autoscaler-sync-period", hpa.SyncPeriod, "how often each HorizontalPodAutoscaler is looked at")
	flags.DurationVar(&hpa.DownscaleStabilization, "horizontal-pod-autoscaler-downscale-stabilization", hpa.DownscaleStabilization, "how long a recommendation to have more replicas holds, where the autoscaler does not say it")
	flags.DurationVar(&hpa.CPUInitialization, "horizontal-pod-autoscaler-cpu-initialization-period", hpa.CPUInitialization, "how long after its start what an unready pod uses of CPU does not count")
	flags.DurationVar(&hpa.InitialReadinessDelay, "horizontal-pod-autoscaler-initial-readiness-delay", hpa.InitialReadinessDelay, "how long after its start a pod that becomes unready counts as one that was never ready")
	flags.Float64Var(&hpa.Tolerance, "horizontal-pod-autoscaler-tolerance", hpa.Tolerance, "by how much the ratio of usage and target may differ from 1 before anything is scaled, where the autoscaler does not say it")
	*workers = map[string]*int{}
	for _, f := range controllers.WorkerFlags() {
		(*workers)[f.Flag] = flags.Int(f.Flag, f.Default, "how many objects the "+f.Controller+" works on at once")
	}
}

// completeControllers takes over the numbers of workers and checks the rest. Whether a node's block
// fits the cluster's range is known later: a server that joins gets that range from the others.
func completeControllers(s *controllers.Settings, workers map[string]*int) error {
	for flag, n := range workers {
		s.Workers[flag] = *n
	}
	if len(workers) == 0 { // an agent
		return nil
	}
	return s.Check(nil)
}
