package scheduler

import (
	"log/slog"
)

// Dump logs the queue and the cache of the running term, so that an operator sees why a pod waits.
// A server that does not lead logs that.
func (s *Scheduler) Dump(log *slog.Logger) {
	t := s.current.Load()
	if t == nil {
		log.Info("this server does not schedule: it does not lead")
		return
	}
	for _, p := range t.queue.Waiting() {
		log.Info("in the scheduler's queue", "namespace", p.Namespace, "pod", p.Name, "queue", p.Queue,
			"attempts", p.Attempts, "rejectedBy", p.RejectedBy, "nominatedNode", t.nominees.Node(p.UID))
	}
	for _, n := range t.cache.Nodes() {
		log.Info("in the scheduler's cache", "node", n.Name, "pods", n.Pods, "assumed", n.Assumed,
			"milliCPU", n.Requested.MilliCPU, "ofMilliCPU", n.Allocatable.MilliCPU,
			"memory", n.Requested.Memory, "ofMemory", n.Allocatable.Memory)
	}
}
