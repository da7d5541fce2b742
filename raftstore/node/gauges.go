package node

import (
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/mvcc"
)

// gauges are the metrics that are read from a node when somebody asks. It implements
// prometheus.Collector.
type gauges struct{ n *Node }

// reading is all of them at one moment.
type reading struct {
	n     *Node
	view  *mvcc.View
	stats mvcc.Stats
	state raft.RaftState
}

var readings = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(r *reading) float64
}{
	{desc("queue_length", "Requests that wait to be proposed."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(len(r.n.proposer.queue)) }},
	{desc("queue_bytes", "Bytes of the requests that wait to be proposed."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.n.proposer.queued.Load()) }},

	{desc("revision", "Newest revision that this server has."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.view.Revision()) }},
	{desc("keys", "Keys in the store."), prometheus.GaugeValue, func(r *reading) float64 { return float64(r.view.Len()) }},
	{desc("state_bytes", "Bytes of all keys and values, with an overhead for each key: what the limit is for."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.view.Bytes()) }},
	{desc("state_limit_bytes", "How large state_bytes may become before new keys are refused; 0 is no limit."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.n.stateLimit()) }},

	{desc("history_revisions", "Revisions that history holds: watches and reads can go back that far."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.stats.Revisions) }},
	{desc("history_age_seconds", "Age of the oldest revision in history."), prometheus.GaugeValue, func(r *reading) float64 {
		if r.stats.Oldest == 0 {
			return 0
		}
		return max(0, float64(r.n.cfg.Now().UnixMilli()-r.stats.Oldest)/1000)
	}},
	{desc("history_bytes", "Memory that history keeps beside the newest items."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.stats.HistoryBytes) }},
	{desc("compacted_revision", "Newest revision that left history."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.stats.Compacted) }},

	{desc("watchers", "Open watchers."), prometheus.GaugeValue, func(r *reading) float64 { return float64(r.stats.Watchers) }},
	{desc("watch_events_total", "Events handed to watchers."), prometheus.CounterValue,
		func(r *reading) float64 { return float64(r.stats.Events) }},
	{desc("watch_compacted_total", "Watches that ended because history no longer held what came next: their readers were too slow."), prometheus.CounterValue,
		func(r *reading) float64 { return float64(r.stats.Expired) }},

	{desc("term", "Raft's term."), prometheus.GaugeValue, func(r *reading) float64 { return float64(r.n.raft.CurrentTerm()) }},
	{desc("last_index", "Newest entry in the log."), prometheus.GaugeValue, func(r *reading) float64 { return float64(r.n.raft.LastIndex()) }},
	{desc("commit_index", "Newest log entry that is known to be on a quorum."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.n.raft.CommitIndex()) }},
	{desc("applied_index", "Newest log entry whose effects are visible."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.n.fsm.Applied().Index) }},

	{desc("is_leader", "Whether this server leads: 1 or 0."), prometheus.GaugeValue, func(r *reading) float64 { return yes(r.state == raft.Leader) }},
	{desc("has_leader", "Whether this server knows a leader: 1 or 0."), prometheus.GaugeValue, func(r *reading) float64 {
		_, leader := r.n.leaderWithID()
		return yes(leader != "")
	}},
	{desc("voters", "Members that vote, as this server knows."), prometheus.GaugeValue, func(r *reading) float64 { return float64(r.n.voters()) }},
	{desc("silent_members", "Members that do not answer this server, while it leads."), prometheus.GaugeValue, func(r *reading) float64 {
		silent, _ := r.n.Silent()
		return float64(len(silent))
	}},

	{desc("space_alarm", "How full the store is: 0 enough room, 1 low, 2 full, so that new keys are refused."), prometheus.GaugeValue,
		func(r *reading) float64 { return float64(r.n.space.Load()) }},
	{desc("quarantined", "Whether this server serves nothing because its state differs from that of most servers: 1 or 0."), prometheus.GaugeValue,
		func(r *reading) float64 { return yes(r.n.quarantine.why() != "") }},
	{desc("log_store_hangs", "Whether a write to the log hangs, so that this server does not lead: 1 or 0."), prometheus.GaugeValue,
		func(r *reading) float64 { return yes(r.n.storage.log.Disk().Check() != nil) }},
	{desc("disk_full", "Whether the disk is full, so that this server runs on its reserve and refuses writes as a leader: 1 or 0."), prometheus.GaugeValue,
		func(r *reading) float64 { return yes(r.n.storage.reserve.exhausted()) }},
	{desc("log_store_failed", "Whether the last write to the log failed or hangs, as on a full disk: 1 or 0."), prometheus.GaugeValue,
		func(r *reading) float64 { return yes(r.n.storage.log.Err() != nil) }},
}

var watchLag = desc("watch_lag_revisions", "How many revisions there were that are newer than the one of which a watcher got its events, when it got them.")

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, nil, nil)
}

func yes(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	for _, each := range readings {
		to <- each.desc
	}
	to <- watchLag
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	r := &reading{n: g.n, view: g.n.state.Latest(), stats: g.n.state.Stats(), state: g.n.raft.State()}
	for _, each := range readings {
		to <- prometheus.MustNewConstMetric(each.desc, each.kind, each.read(r))
	}
	buckets, count := make(map[float64]uint64, mvcc.LagClasses), uint64(0)
	for i, n := range r.stats.Lag {
		if count += n; i < mvcc.LagClasses-1 {
			buckets[float64(uint64(1)<<i-1)] = count
		}
	}
	to <- prometheus.MustNewConstHistogram(watchLag, count, float64(r.stats.LagSum), buckets)
}
