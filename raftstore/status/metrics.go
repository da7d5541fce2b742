package status

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

// Metrics of a node, without the gauges that are read when scraped. Without a registerer they are
// counted and not exported. docs/metrics.md lists all of them.
type Metrics struct {
	registerer prometheus.Registerer
	registered []prometheus.Collector

	Requests   *prometheus.CounterVec // by outcome
	QueueWait  prometheus.Histogram
	batch      prometheus.Histogram
	entryBytes prometheus.Histogram
	logStore   *prometheus.HistogramVec // by operation
	Commit     prometheus.Histogram
	apply      prometheus.Histogram
	applied    prometheus.Counter
	forwards   *prometheus.HistogramVec // by call and result

	readIndex   prometheus.Histogram
	readers     prometheus.Histogram
	readsFailed prometheus.Counter

	Elections, Leaders, HandOvers prometheus.Counter

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

func NewMetrics(registerer prometheus.Registerer) *Metrics {
	seconds := prometheus.ExponentialBucketsRange(50e-6, 10, 18)
	long := prometheus.ExponentialBucketsRange(1e-3, 300, 18)
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
			Buckets: buckets}
	}
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}
	}
	m := &Metrics{
		registerer: registerer,
		Requests: prometheus.NewCounterVec(
			counter("requests_total", "Requests to write that this server's callers made, by what became of each."),
			[]string{"outcome"}),
		QueueWait: prometheus.NewHistogram(
			histogram("queue_wait_seconds", "Time that a request waited on the leader until it went into a log entry.",
				seconds)),
		batch: prometheus.NewHistogram(histogram("entry_requests", "Requests gathered into one log entry.",
			prometheus.ExponentialBuckets(1, 2, 11))),
		entryBytes: prometheus.NewHistogram(
			histogram("entry_bytes", "Size of a log entry.", prometheus.ExponentialBuckets(64, 4, 10))),
		logStore: prometheus.NewHistogramVec(histogram("log_store_seconds",
			"Time of a write to the log's disk: operation is append of entries, truncate, or vote (a term or a vote).",
			seconds), []string{"operation"}),
		Commit: prometheus.NewHistogram(
			histogram("commit_seconds", "Time from proposing a log entry until it is applied, on the leader.",
				seconds)),
		apply: prometheus.NewHistogram(
			histogram("apply_seconds", "Time to apply the log entries that were committed together.", seconds)),
		applied: prometheus.NewCounter(
			counter("applied_entries_total", "Log entries that this server applied since it started.")),
		forwards: prometheus.NewHistogramVec(histogram("forward_seconds",
			"Time of a call to the leader, by call (write or read) and result (answered or failed).", seconds),
			[]string{"call", "result"}),

		readIndex: prometheus.NewHistogram(histogram("read_index_seconds",
			"Time of one round that confirms up to where linearizable reads must see; it serves all that wait.",
			seconds)),
		readers: prometheus.NewHistogram(
			histogram("read_index_readers", "Readers that one round served.", prometheus.ExponentialBuckets(1, 2, 13))),
		readsFailed: prometheus.NewCounter(
			counter("read_index_failures_total", "Rounds that found no leader, or no quorum, in time.")),

		Elections: prometheus.NewCounter(counter("elections_total", "Times that this server has campaigned.")),
		Leaders: prometheus.NewCounter(
			counter("leader_changes_total",
				"Times that this server saw another leader than before, the first included.")),
		HandOvers: prometheus.NewCounter(
			counter("disk_hand_overs_total",
				"How often this server handed leadership over because its disk was full.")),

		snapshot: prometheus.NewHistogram(
			histogram("snapshot_seconds", "Time to write a snapshot of the state.", long)),
		snapshotBytes: prometheus.NewGauge(
			gauge("snapshot_size_bytes",
				"Size of the newest snapshot that this server wrote since it started; 0 before the first.")),
		snapshotLast: prometheus.NewGauge(
			gauge("snapshot_last_success_timestamp_seconds",
				"When the newest snapshot was written; 0 when there is none.")),
		snapshots: prometheus.NewCounterVec(
			counter("snapshots_total", "Snapshots that this server wrote, by result: written or failed."),
			[]string{"result"}),
		restored: prometheus.NewCounter(
			counter("snapshots_installed_total",
				"Snapshots that replaced this server's state since it started, as when it was far behind.")),
	}
	for _, outcome := range []string{"applied", "conflict", "fenced", "full", "refused", "unavailable", "overloaded",
		"unknown"} {
		m.Requests.WithLabelValues(outcome)
	}
	for _, result := range []string{"written", "failed"} {
		m.snapshots.WithLabelValues(result)
	}
	return m
}

// OutcomeName is the label of a request's outcome.
func OutcomeName(outcome command.Outcome, err error) string {
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

// Gathered takes note of an entry of so many requests that is about to be proposed.
func (m *Metrics) Gathered(requests, bytes int) {
	m.batch.Observe(float64(requests))
	m.entryBytes.Observe(float64(bytes))
}

// Forwarded takes note of a call to the leader.
func (m *Metrics) Forwarded(call string, began time.Time, err error) {
	result := "answered"
	if err != nil {
		result = "failed"
	}
	m.forwards.WithLabelValues(call, result).Observe(time.Since(began).Seconds())
}

// ReadRound takes note of a round for linearizable reads.
func (m *Metrics) ReadRound(readers int, took time.Duration, err error) {
	m.readIndex.Observe(took.Seconds())
	m.readers.Observe(float64(readers))
	if err != nil {
		m.readsFailed.Inc()
	}
}

// wroteSnapshot takes note of a snapshot.
func (m *Metrics) wroteSnapshot(took time.Duration, bytes int64, err error) {
	if err != nil {
		m.snapshots.WithLabelValues("failed").Inc()
		return
	}
	m.snapshots.WithLabelValues("written").Inc()
	m.snapshot.Observe(took.Seconds())
	m.snapshotBytes.Set(float64(bytes))
	m.snapshotLast.SetToCurrentTime()
}

// ObserveLog takes the time of a write to the log.
func (m *Metrics) ObserveLog(op logstore.Operation, took time.Duration) {
	m.logStore.WithLabelValues(string(op)).Observe(took.Seconds())
}

// Show registers everything, once the server runs. taken is the time of the newest snapshot on
// disk; zero without one.
func (m *Metrics) Show(source Source, taken time.Time) error {
	if !taken.IsZero() {
		m.snapshotLast.Set(float64(taken.UnixMilli()) / 1000)
	}
	return m.register(
		m.Requests, m.QueueWait, m.batch, m.entryBytes, m.logStore, m.Commit, m.apply, m.applied, m.forwards,
		m.readIndex, m.readers, m.readsFailed, m.Elections, m.Leaders, m.HandOvers,
		m.snapshot, m.snapshotBytes, m.snapshotLast, m.snapshots, m.restored,
		gauges{source},
	)
}

func (m *Metrics) register(all ...prometheus.Collector) error {
	if m.registerer == nil {
		return nil
	}
	for _, c := range all {
		if err := m.registerer.Register(c); err != nil {
			m.Unregister()
			return fmt.Errorf("register the metrics of the store: %w", err)
		}
		m.registered = append(m.registered, c)
	}
	return nil
}

func (m *Metrics) Unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
	m.registered = nil
}
