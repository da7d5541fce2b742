package scheduler

import (
	"log/slog"
)

// Dump writes what the running term has in its queue and its cache to the log, for people who ask
// why a pod waits. A server that does not lead says so.
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
