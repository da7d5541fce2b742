package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/barque/barque/controllers"
)

// addControllerFlags adds the flags of kube-controller-manager that select and tune controllers.
// The numbers of concurrent workers go to workers, by the flag's name.
func addControllerFlags(c *cobra.Command, s *controllers.Settings, workers *map[string]*int) {
	*s = controllers.DefaultSettings()
	flags, hpa := c.Flags(), &s.Autoscaling
	flags.StringSliceVar(&s.Controllers, "controllers", s.Controllers,
		"controllers to run: a name switches one on, -name one off, and * all others; give it to all servers. All are: "+strings.Join(controllers.Names(), ", "))
	flags.IntVar(&s.NodeMaskBits, "node-cidr-mask-size", s.NodeMaskBits,
		"length of the prefix of a node's block of IPv4 pod addresses; give it to all servers")
	flags.IntVar(&s.NodeMaskBits6, "node-cidr-mask-size-ipv6", s.NodeMaskBits6,
		"length of the prefix of a node's block of IPv6 pod addresses; give it to all servers")
	flags.IntVar(&s.FinishedPods, "terminated-pod-gc-threshold", s.FinishedPods,
		"how many finished pods stay before the oldest are deleted; 0 is all")
	flags.DurationVar(&s.ForceDetachAfter, "force-detach-after", s.ForceDetachAfter,
		"time after which a volume that no pod needs is detached from a node that is not ready and may still use it; 0 is never: only the taint node.kubernetes.io/out-of-service detaches it")
	flags.DurationVar(&hpa.SyncPeriod, "horizontal-pod-autoscaler-sync-period", hpa.SyncPeriod,
		"interval at which each HorizontalPodAutoscaler is evaluated")
	flags.DurationVar(&hpa.DownscaleStabilization, "horizontal-pod-autoscaler-downscale-stabilization",
		hpa.DownscaleStabilization, "how long a higher recommended replica count holds, unless the autoscaler sets it")
	flags.DurationVar(&hpa.CPUInitialization, "horizontal-pod-autoscaler-cpu-initialization-period",
		hpa.CPUInitialization, "time after a pod's start in which the CPU usage of an unready pod is ignored")
	flags.DurationVar(&hpa.InitialReadinessDelay, "horizontal-pod-autoscaler-initial-readiness-delay",
		hpa.InitialReadinessDelay, "time after a pod's start in which a pod that becomes unready counts as never ready")
	flags.Float64Var(&hpa.Tolerance, "horizontal-pod-autoscaler-tolerance", hpa.Tolerance,
		"deviation of the ratio of usage to target from 1 that triggers no scaling, unless the autoscaler sets it")
	*workers = map[string]*int{}
	for _, f := range controllers.WorkerFlags() {
		(*workers)[f.Flag] = flags.Int(f.Flag, f.Default, "how many objects the "+f.Controller+" works on at once")
	}
}

// completeControllers sets the numbers of workers and validates the rest. It cannot check a node's
// block against the cluster's range: a joining server gets that range from the other servers.
func completeControllers(s *controllers.Settings, workers map[string]*int) error {
	for flag, n := range workers {
		s.Workers[flag] = *n
	}
	if len(workers) == 0 { // an agent
		return nil
	}
	return s.Check(nil)
}
