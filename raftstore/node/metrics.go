package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

// metrics of a node, without those that are read when somebody asks (see gauges). Without a
// registerer they are kept and not shown. docs/metrics.md lists all of them.
type metrics struct {
	registerer prometheus.Registerer
	registered []prometheus.Collector

	requests   *prometheus.CounterVec // by outcome
	queueWait  prometheus.Histogram
	batch      prometheus.Histogram
	entryBytes prometheus.Histogram
	logStore   *prometheus.HistogramVec // by operation
	commit     prometheus.Histogram
	apply      prometheus.Histogram
	applied    prometheus.Counter
	forwards   *prometheus.HistogramVec // by call and result

	readIndex   prometheus.Histogram
	readers     prometheus.Histogram
	readsFailed prometheus.Counter

	elections, leaders, handOvers prometheus.Counter

	snapshot      prometheus.Histogram
	snapshotBytes prometheus.Gauge
	snapshotLast  prometheus.Gauge
	snapshots     *prometheus.CounterVec // by result
	restored      prometheus.Counter
}

const (
	namespace = "barque"
	subsystem = "store"
)

func newMetrics(registerer prometheus.Registerer) *metrics {
	seconds := prometheus.ExponentialBucketsRange(50e-6, 10, 18)
	long := prometheus.ExponentialBucketsRange(1e-3, 300, 18)
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	m := &metrics{
		registerer: registerer,
		requests: prometheus.NewCounterVec(counter("requests_total", "Requests to write that this server's callers made, by what became of each."),
			[]string{"outcome"}),
		queueWait: prometheus.NewHistogram(histogram("queue_wait_seconds", "Time that a request waited on the leader until it went into a log entry.", seconds)),
		batch: prometheus.NewHistogram(histogram("entry_requests", "Requests gathered into one log entry.",
			prometheus.ExponentialBuckets(1, 2, 11))),
		entryBytes: prometheus.NewHistogram(histogram("entry_bytes", "Size of a log entry.", prometheus.ExponentialBuckets(64, 4, 10))),
		logStore: prometheus.NewHistogramVec(histogram("log_store_seconds",
			"Time of a write to the log's disk: operation is append of entries, truncate, or vote (a term or a vote).", seconds), []string{"operation"}),
		commit:  prometheus.NewHistogram(histogram("commit_seconds", "Time from proposing a log entry until it is applied, on the leader.", seconds)),
		apply:   prometheus.NewHistogram(histogram("apply_seconds", "Time to apply the log entries that were committed together.", seconds)),
		applied: prometheus.NewCounter(counter("applied_entries_total", "Log entries that this server applied since it started.")),
		forwards: prometheus.NewHistogramVec(histogram("forward_seconds",
			"Time of a call to the leader, by call (write or read) and result (answered or failed).", seconds), []string{"call", "result"}),

		readIndex: prometheus.NewHistogram(histogram("read_index_seconds",
			"Time of one round that confirms up to where linearizable reads must see; it serves all that wait.", seconds)),
		readers:     prometheus.NewHistogram(histogram("read_index_readers", "Readers that one round served.", prometheus.ExponentialBuckets(1, 2, 13))),
		readsFailed: prometheus.NewCounter(counter("read_index_failures_total", "Rounds that found no leader, or no quorum, in time.")),

		elections: prometheus.NewCounter(counter("elections_total", "Times that this server stood for election.")),
		leaders:   prometheus.NewCounter(counter("leader_changes_total", "Times that this server saw another leader than before, the first included.")),
		handOvers: prometheus.NewCounter(counter("disk_hand_overs_total", "How often this server handed leadership over because its disk was full.")),

		snapshot:      prometheus.NewHistogram(histogram("snapshot_seconds", "Time to write a snapshot of the state.", long)),
		snapshotBytes: prometheus.NewGauge(gauge("snapshot_size_bytes", "Size of the newest snapshot that this server wrote since it started; 0 before the first.")),
		snapshotLast:  prometheus.NewGauge(gauge("snapshot_last_success_timestamp_seconds", "When the newest snapshot was written; 0 when there is none.")),
		snapshots: prometheus.NewCounterVec(counter("snapshots_total", "Snapshots that this server wrote, by result: written or failed."),
			[]string{"result"}),
		restored: prometheus.NewCounter(counter("snapshots_installed_total", "Snapshots that replaced this server's state since it started, as when it was far behind.")),
	}
	for _, outcome := range []string{"applied", "conflict", "fenced", "full", "refused", "unavailable", "overloaded", "unknown"} {
		m.requests.WithLabelValues(outcome)
	}
	for _, result := range []string{"written", "failed"} {
		m.snapshots.WithLabelValues(result)
	}
	return m
}

// outcomeName is the label of what became of a request.
func outcomeName(outcome command.Outcome, err error) string {
	switch {
	case errors.Is(err, kv.ErrUnknownOutcome):
		return "unknown"
	case errors.Is(err, kv.ErrOverloaded):
		return "overloaded"
	case err != nil:
		return "unavailable"
	}
	switch outcome.Code {
	case command.Applied:
		return "applied"
	case command.Conflict:
		return "conflict"
	case command.Fenced:
		return "fenced"
	case command.NoSpace:
		return "full"
	}
	return "refused"
}

// gathered takes note of an entry that is about to be proposed.
func (m *metrics) gathered(batch []*proposal, bytes int, now time.Time) {
	m.batch.Observe(float64(len(batch)))
	m.entryBytes.Observe(float64(bytes))
	for _, each := range batch {
		m.queueWait.Observe(now.Sub(each.since).Seconds())
	}
}

// forwarded takes note of a call to the leader.
func (m *metrics) forwarded(call string, began time.Time, err error) {
	result := "answered"
	if err != nil {
		result = "failed"
	}
	m.forwards.WithLabelValues(call, result).Observe(time.Since(began).Seconds())
}

// readRound takes note of a round for linearizable reads.
func (m *metrics) readRound(readers int, took time.Duration, err error) {
	m.readIndex.Observe(took.Seconds())
	m.readers.Observe(float64(readers))
	if err != nil {
		m.readsFailed.Inc()
	}
}

// wroteSnapshot takes note of a snapshot.
func (m *metrics) wroteSnapshot(took time.Duration, bytes int64, err error) {
	if err != nil {
		m.snapshots.WithLabelValues("failed").Inc()
		return
	}
	m.snapshots.WithLabelValues("written").Inc()
	m.snapshot.Observe(took.Seconds())
	m.snapshotBytes.Set(float64(bytes))
	m.snapshotLast.SetToCurrentTime()
}

// observeLog takes the time of a write to the log.
func (m *metrics) observeLog(op logstore.Operation, took time.Duration) {
	m.logStore.WithLabelValues(string(op)).Observe(took.Seconds())
}

// show registers everything, once the node runs.
func (m *metrics) show(n *Node) error {
	if taken := n.storage.start.SnapshotTaken; !taken.IsZero() {
		m.snapshotLast.Set(float64(taken.UnixMilli()) / 1000)
	}
	return m.register(
		m.requests, m.queueWait, m.batch, m.entryBytes, m.logStore, m.commit, m.apply, m.applied, m.forwards,
		m.readIndex, m.readers, m.readsFailed, m.elections, m.leaders, m.handOvers,
		m.snapshot, m.snapshotBytes, m.snapshotLast, m.snapshots, m.restored,
		gauges{n},
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
