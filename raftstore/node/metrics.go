package node

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/logstore"
)

// metrics of a node. Without a registerer they are kept and not shown.
type metrics struct {
	registerer prometheus.Registerer
	registered []prometheus.Collector

	batch     prometheus.Histogram
	commit    prometheus.Histogram
	readIndex prometheus.Histogram
	logStore  *prometheus.HistogramVec // by operation
	handOvers prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 16) // 0.1 ms to 3.3 s
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "barque", Subsystem: "store", Name: name, Help: help, Buckets: buckets,
		})
	}
	return &metrics{
		registerer: registerer,
		batch: histogram("entry_requests", "Requests gathered into one log entry.",
			prometheus.ExponentialBuckets(1, 2, 11)),
		commit:    histogram("commit_seconds", "Time from proposing a log entry until it is applied, on the leader.", seconds),
		readIndex: histogram("read_index_seconds", "Time to confirm up to where a linearizable read must see.", seconds),
		handOvers: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "barque", Subsystem: "store", Name: "disk_hand_overs_total",
			Help: "How often this server handed leadership over because its disk was slow or full.",
		}),
		logStore: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "barque", Subsystem: "store", Name: "log_store_seconds", Buckets: seconds,
			Help: "Time of a write to the log's disk: operation is append of entries, truncate, or vote (a term or a vote).",
		}, []string{"operation"}),
	}
}

// observeLog takes the time of a write to the log.
func (m *metrics) observeLog(op logstore.Operation, took time.Duration) {
	m.logStore.WithLabelValues(string(op)).Observe(took.Seconds())
}

// show registers everything, once the node runs.
func (m *metrics) show(n *Node) error {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "barque", Subsystem: "store", Name: name, Help: help,
		}, read)
	}
	return m.register(
		m.batch, m.commit, m.readIndex, m.logStore, m.handOvers,
		gauge("revision", "Newest revision that this server has.", func() float64 { return float64(n.state.Revision()) }),
		gauge("keys", "Keys in the store.", func() float64 { return float64(n.state.Latest().Len()) }),
		gauge("state_bytes", "Bytes of all keys and values, with an overhead for each key: what the limit is for.",
			func() float64 { return float64(n.state.Latest().Bytes()) }),
		gauge("state_limit_bytes", "How large state_bytes may become before new keys are refused; 0 is no limit.",
			func() float64 { return float64(n.stateLimit()) }),
		gauge("space_alarm", "How full the store is: 0 enough room, 1 low, 2 full, so that new keys are refused.",
			func() float64 { return float64(n.space.Load()) }),
		gauge("history_bytes", "Memory that history keeps beside the newest items.", func() float64 { return float64(n.state.Stats().HistoryBytes) }),
		gauge("watchers", "Open watchers.", func() float64 { return float64(n.state.Stats().Watchers) }),
		gauge("applied_index", "Newest log entry whose effects are visible.", func() float64 { return float64(n.fsm.Applied().Index) }),
		gauge("queue_length", "Requests that wait to be proposed.", func() float64 { return float64(len(n.proposer.queue)) }),
		gauge("log_store_hangs", "Whether a write to the log hangs, so that this server does not lead: 1 or 0.", func() float64 {
			if n.storage.log.Disk().Check() != nil {
				return 1
			}
			return 0
		}),
		gauge("disk_full", "Whether the disk is full, so that this server runs on its reserve and refuses writes as a leader: 1 or 0.", func() float64 {
			if n.storage.reserve.exhausted() {
				return 1
			}
			return 0
		}),
		gauge("is_leader", "Whether this server leads: 1 or 0.", func() float64 {
			if n.raft.State() == raft.Leader {
				return 1
			}
			return 0
		}),
	)
}

func (m *metrics) register(all ...prometheus.Collector) error {
	if m.registerer == nil {
		return nil
	}
	for _, c := range all {
		if err := m.registerer.Register(c); err != nil {
			m.unregister()
			return fmt.Errorf("register the metrics of the store: %w", err)
		}
		m.registered = append(m.registered, c)
	}
	return nil
}

func (m *metrics) unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
	m.registered = nil
}
