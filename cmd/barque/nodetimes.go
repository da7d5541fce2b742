package main

import (
	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/node/options"
)

// addTimeFlags adds the times of failure detection, with the names that they have in Kubernetes,
// where it has them.
func addTimeFlags(c *cobra.Command, t *options.Times) {
	flags := c.Flags()
	flags.BoolVar(&t.Fast, options.FlagFast, t.Fast,
		"probe every node once a second, so that a dead one is Unknown in less than 5 s; give it to all servers")
	flags.DurationVar(&t.MonitorPeriod, options.FlagPeriod, t.MonitorPeriod,
		"interval at which the nodes' signs of life are checked (1s with --"+options.FlagFast+")")
	flags.DurationVar(&t.MonitorGrace, options.FlagGrace, t.MonitorGrace,
		"how long a node may show no life before it counts as Unknown (3s with --"+options.FlagFast+")")
	flags.DurationVar(&t.StartupGrace, options.FlagStartup, t.StartupGrace,
		"the same for a node without any sign of life since this server started; no less than --"+options.FlagGrace+
			" if not given")
	flags.DurationVar(&t.GoodbyeGrace, options.FlagGoodbye, t.GoodbyeGrace,
		"the same for a node that said good-bye, as a restarting one does; no less than --"+options.FlagGrace+
			" if not given")
	flags.Int64Var(&t.NotReadySeconds, "default-not-ready-toleration-seconds", t.NotReadySeconds,
		"how long pods without such a toleration stay on a node that is not ready")
	flags.Int64Var(&t.UnreachableSeconds, "default-unreachable-toleration-seconds", t.UnreachableSeconds,
		"how long pods without such a toleration stay on an unreachable node")
	flags.Float32Var(&t.EvictionRate, "node-eviction-rate", t.EvictionRate,
		"nodes a second, in each zone, from which pods are evicted; 0 is none")
	flags.Float32Var(&t.SecondaryEvictionRate, "secondary-node-eviction-rate", t.SecondaryEvictionRate,
		"the same in a large zone with a large unhealthy share; in a small zone it is 0 then")
	flags.IntVar(&t.LargeZone, "large-cluster-size-threshold", t.LargeZone, "above how many nodes a zone is large")
	flags.Float32Var(&t.UnhealthyShare, "unhealthy-zone-threshold", t.UnhealthyShare,
		"which share of a zone's nodes, three at least, is a large one")
}
