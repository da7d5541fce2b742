package status

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/mvcc"
)

// Source is the source of the gauges.
type Source interface{ Reading() Reading }

// Reading has all gauges of a server at one moment.
type Reading struct {
	QueueLength int   // requests that wait to be proposed
	QueueBytes  int64 // their bytes

	View       *mvcc.View
	Stats      mvcc.Stats
	StateLimit int64
	Now        time.Time

	Term, LastIndex, CommitIndex, AppliedIndex uint64

	Leads, HasLeader bool
	Voters, Silent   int

	Space                                      Level
	Quarantined, DiskHangs, DiskFull, LogFails bool
}

// gauges are the metrics that are read from a server when they are scraped. It implements
// prometheus.Collector.
type gauges struct{ source Source }

var readings = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(r *Reading) float64
}{
	{desc("queue_length", "Requests that wait to be proposed."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.QueueLength) }},
	{desc("queue_bytes", "Bytes of the requests that wait to be proposed."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.QueueBytes) }},

	{desc("revision", "Newest revision that this server has."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.View.Revision()) }},
	{desc("keys", "Keys in the store."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.View.Len()) }},
	{desc("state_bytes", "Bytes of all keys and values, with an overhead for each key: what the limit is for."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.View.Bytes()) }},
	{desc("state_limit_bytes", "How large state_bytes may become before new keys are refused; 0 is no limit."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.StateLimit) }},

	{desc("history_revisions", "Revisions that history holds: watches and reads can go back that far."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.Stats.Revisions) }},
	{desc("history_age_seconds", "Age of the oldest revision in history."), prometheus.GaugeValue,
		func(r *Reading) float64 {
			if r.Stats.Oldest == 0 {
				return 0
			}
			return max(0, float64(r.Now.UnixMilli()-r.Stats.Oldest)/1000)
		}},
	{desc("history_bytes", "Memory that history keeps beside the newest items."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.Stats.HistoryBytes) }},
	{desc("compacted_revision", "Newest revision that left history."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.Stats.Compacted) }},

	{desc("watchers", "Open watchers."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.Stats.Watchers) }},
	{desc("watch_events_total", "Events handed to watchers."), prometheus.CounterValue,
		func(r *Reading) float64 { return float64(r.Stats.Events) }},
	{desc("watch_compacted_total",
		"Watches that ended because history no longer held what came next: their readers were too slow."),
		prometheus.CounterValue,
		func(r *Reading) float64 { return float64(r.Stats.Expired) }},

	{desc("term", "Raft's term."), prometheus.GaugeValue, func(r *Reading) float64 { return float64(r.Term) }},
	{desc("last_index", "Newest entry in the log."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.LastIndex) }},
	{desc("commit_index", "Newest log entry that is known to be on a quorum."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.CommitIndex) }},
	{desc("applied_index", "Newest log entry whose effects are visible."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.AppliedIndex) }},

	{desc("is_leader", "Whether this server leads: 1 or 0."), prometheus.GaugeValue,
		func(r *Reading) float64 { return yes(r.Leads) }},
	{desc("has_leader", "Whether this server knows a leader: 1 or 0."), prometheus.GaugeValue,
		func(r *Reading) float64 { return yes(r.HasLeader) }},
	{desc("voters", "Members that vote, as this server knows."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.Voters) }},
	{desc("silent_members", "Members that do not answer this server, while it leads."), prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.Silent) }},

	{desc("space_alarm", "How full the store is: 0 enough room, 1 low, 2 full, so that new keys are refused."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return float64(r.Space) }},
	{desc("quarantined",
		"Whether this server serves nothing because its state differs from that of most servers: 1 or 0."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return yes(r.Quarantined) }},
	{desc("log_store_hangs", "Whether a write to the log hangs, so that this server does not lead: 1 or 0."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return yes(r.DiskHangs) }},
	{desc("disk_full",
		"Whether the disk is full, so that this server runs on its reserve and refuses writes as a leader: 1 or 0."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return yes(r.DiskFull) }},
	{desc("log_store_failed", "Whether the last write to the log failed or hangs, as on a full disk: 1 or 0."),
		prometheus.GaugeValue,
		func(r *Reading) float64 { return yes(r.LogFails) }},
}

var watchLag = desc("watch_lag_revisions",
	"How many revisions there were that are newer than the one of which a watcher got its events, when it got them.")

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
	r := g.source.Reading()
	for _, each := range readings {
		to <- prometheus.MustNewConstMetric(each.desc, each.kind, each.read(&r))
	}
	buckets, count := make(map[float64]uint64, mvcc.LagClasses), uint64(0)
	for i, n := range r.Stats.Lag {
		if count += n; i < mvcc.LagClasses-1 {
			buckets[float64(uint64(1)<<i-1)] = count
		}
	}
	to <- prometheus.MustNewConstHistogram(watchLag, count, float64(r.Stats.LagSum), buckets)
}
