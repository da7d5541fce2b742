package raftstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// metered is a group of three whose metrics can be read.
type metered struct {
	*storetest.Cluster
	t          *testing.T
	registries [3]*prometheus.Registry
}

// newMetered starts the servers, whose leader stays if the heartbeat is long.
func newMetered(t *testing.T, heartbeat time.Duration) *metered {
	m := &metered{t: t}
	m.Cluster = storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
		m.registries[i] = prometheus.NewRegistry()
		cfg.Registerer = m.registries[i]
		cfg.Limits.HistoryBytes = 64 << 10
		cfg.Timeouts.Heartbeat, cfg.Timeouts.Lease = heartbeat, heartbeat
	})
	return m
}

func (m *metered) gather(server int) map[string]*dto.MetricFamily {
	m.t.Helper()
	families, err := m.registries[server].Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	byName := make(map[string]*dto.MetricFamily)
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

// value is the value of a metric of a server: the sum over its labels that hold all of with, and of
// a histogram the number of observations.
func (m *metered) value(server int, name string, with ...string) float64 {
	m.t.Helper()
	family := m.gather(server)["barque_store_"+name]
	if family == nil {
		m.t.Fatalf("server %d has no metric barque_store_%s", server, name)
	}
	sum := 0.0
	for _, each := range family.Metric {
		labels := fmt.Sprint(each.Label)
		matches := true
		for _, w := range with {
			matches = matches && strings.Contains(labels, `"`+w+`"`)
		}
		if matches {
			sum += each.GetCounter().GetValue() + each.GetGauge().GetValue() +
				float64(each.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// Every stage that a request goes through shows in a metric, on the server where it happens.
func TestEachStageShowsInAMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetered(t, 15*time.Second)
		leader, _ := m.Leader()
		follower := (leader + 1) % 3
		ctx := t.Context()

		watcher, err := m.Servers[follower].Watch(raftstore.WatchOptions{Prefix: "/"})
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Close()
		slow, err := m.Servers[follower].Watch(raftstore.WatchOptions{Prefix: "/"})
		if err != nil {
			t.Fatal(err)
		}
		defer slow.Close()

		put := func(through int, key string, size int) raftstore.Result {
			t.Helper()
			result, err := m.Servers[through].Commit(ctx,
				raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: make([]byte, size)}}})
			if err != nil {
				t.Fatal(err)
			}
			return result
		}
		put(leader, "/local", 1)
		put(follower, "/forwarded", 1)
		_, err = m.Servers[follower].Commit(ctx, raftstore.Txn{
			Require: []raftstore.Precondition{{Key: "/local"}},
			Ops:     []raftstore.Op{{Kind: raftstore.Put, Key: "/local"}},
		})
		if conflict := (*raftstore.ConflictError)(nil); !errors.As(err, &conflict) {
			t.Fatal(err)
		}
		if _, err := m.Servers[follower].View(ctx, raftstore.ViewOptions{}); err != nil {
			t.Fatal(err)
		}
		batch, err := watcher.Next(ctx)
		if err != nil || len(batch.Events) != 1 {
			t.Fatal(batch, err)
		}
		last := uint64(0)
		for i := range 100 { // more than history keeps
			last = put(leader, fmt.Sprint("/big", i%2), 8<<10).Revision
		}
		if _, err := m.Servers[follower].View(ctx, raftstore.ViewOptions{MinRevision: last}); err != nil {
			t.Fatal(err)
		}
		if _, err := slow.Next(ctx); !errors.Is(err, raftstore.ErrCompacted) {
			t.Fatalf("a watch that history has passed by: %v", err)
		}
		if err := m.Servers[leader].Snapshot(); err != nil {
			t.Fatal(err)
		}

		for _, want := range []struct {
			server int
			least  float64
			name   string
			with   []string
		}{
			{leader, 101, "requests_total", []string{"applied"}},
			{follower, 1, "requests_total", []string{"applied"}},
			{follower, 1, "requests_total", []string{"conflict"}},
			{leader, 103, "queue_wait_seconds", nil},
			{leader, 1, "entry_requests", nil},
			{leader, 1, "entry_bytes", nil},
			{leader, 1, "log_store_seconds", []string{"append"}},
			{follower, 1, "log_store_seconds", []string{"append"}},
			{leader, 1, "commit_seconds", nil},
			{leader, 1, "apply_seconds", nil},
			{follower, 1, "apply_seconds", nil},
			{follower, 1, "applied_entries_total", nil},
			{follower, 2, "forward_seconds", []string{"write", "answered"}},
			{follower, 1, "forward_seconds", []string{"read", "answered"}},
			{follower, 1, "read_index_seconds", nil},
			{follower, 1, "read_index_readers", nil},
			{follower, 2, "watchers", nil},
			{follower, 1, "watch_events_total", nil},
			{follower, 1, "watch_lag_revisions", nil},
			{follower, 1, "watch_compacted_total", nil},
			{follower, 1, "history_revisions", nil},
			{follower, 1, "history_bytes", nil},
			{follower, 1, "compacted_revision", nil},
			{leader, 1, "snapshots_total", []string{"written"}},
			{leader, 1, "snapshot_seconds", nil},
			{leader, 100, "snapshot_size_bytes", nil},
			{leader, 9e8, "snapshot_last_success_timestamp_seconds", nil},
			{leader, 1, "elections_total", nil},
			{leader, 1, "leader_changes_total", nil},
			{follower, 1, "leader_changes_total", nil},
			{leader, 1, "is_leader", nil},
			{follower, 1, "has_leader", nil},
			{follower, 3, "voters", nil},
			{leader, 1, "term", nil},
			{follower, 100, "last_index", nil},
			{follower, 100, "commit_index", nil},
			{follower, 100, "applied_index", nil},
			{follower, 100, "revision", nil},
			{follower, 4, "keys", nil},
			{follower, 16 << 10, "state_bytes", nil},
		} {
			// Some of it comes a moment after the answer, as when a follower hears of a commit.
			m.Await(
				fmt.Sprintf("%s %v of server %d is %v or more, is %v", want.name, want.with, want.server, want.least,
					m.value(want.server, want.name, want.with...)),
				func() bool { return m.value(want.server, want.name, want.with...) >= want.least })
		}
		for _, calm := range []string{"space_alarm", "quarantined", "log_store_hangs", "log_store_failed",
			"silent_members", "queue_length", "queue_bytes"} {
			m.Await(calm+" is 0", func() bool { return m.value(leader, calm) == 0 })
		}
	})
}

// The age of history is that of its oldest revision: on a store that has just begun, after hours in
// which nothing is written, after the write that ends them, and when history came with a snapshot,
// which knows of a silence half a minute at least.
func TestAgeOfHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64 // of this machine's clock, in nanoseconds
		var registry *prometheus.Registry
		c := storetest.NewCluster(t, 1, func(_ int, cfg *raftstore.Config) {
			cfg.InMemory, cfg.Dir = false, t.TempDir()
			cfg.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		})
		open := func() {
			registry = prometheus.NewRegistry()
			c.Configs[0].Registerer = registry
			c.Start(0)
			c.Leader()
		}
		put := func() {
			t.Helper()
			txn := raftstore.Txn{
				Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/k", Value: []byte(time.Now().String())}}}
			if _, err := c.Servers[0].Commit(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		check := func(when string, least, most time.Duration) {
			t.Helper()
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(families,
				func(f *dto.MetricFamily) bool { return f.GetName() == "barque_store_history_age_seconds" })
			age := time.Duration(families[i].Metric[0].GetGauge().GetValue() * float64(time.Second))
			// The commands carry milliseconds, and the test itself takes a while.
			if most += time.Since(began) + time.Second; age < least-time.Second || age > most {
				t.Errorf("%s: history is %v old, want from %v to %v", when, age, least, most)
			}
		}
		c.Stop(0)
		open() // with a registry of its own
		put()
		check("at the beginning", 0, 0)
		ahead.Store(int64(3 * time.Hour))
		check("after three hours", 3*time.Hour, 3*time.Hour)
		put()
		check("after the write that ended them", 3*time.Hour, 3*time.Hour)
		if err := c.Servers[0].Snapshot(); err != nil {
			t.Fatal(err)
		}
		c.Stop(0)
		open()
		check("after the start with a snapshot", 30*time.Second, 3*time.Hour)
		ahead.Store(int64(4 * time.Hour))
		check("an hour later", time.Hour+30*time.Second, 4*time.Hour)
	})
}

// The rounds of a server that finds no leader, and its requests, count as failed.
func TestFailuresShowInMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetered(t, time.Second)
		leader, _ := m.Leader()
		alone := (leader + 1) % 3
		m.Net.Isolate(storetest.Addr(alone))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() {
			_, err := m.Servers[alone].View(ctx, raftstore.ViewOptions{})
			done <- err
		}()
		m.Await("a round for reads has failed", func() bool { return m.value(alone, "read_index_failures_total") > 0 })
		cancel()
		if err := <-done; err == nil {
			t.Error("a read without a leader had an answer")
		}
		m.Await("the server knows of no leader", func() bool { return m.value(alone, "has_leader") == 0 })
		m.Await("who leads knows who is silent", func() bool { // another one may lead by now
			return m.value(leader, "silent_members")+m.value((leader+2)%3, "silent_members") == 1
		})
		m.Net.Heal()
	})
}

// All metrics have standard names and a help text, and docs/metrics.md says the same of them.
func TestMetricsAreNamedAndDocumented(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetered(t, 15*time.Second)
		leader, _ := m.Leader()
		follower := (leader + 1) % 3
		// labels come with use
		if _, err := m.Servers[follower].View(t.Context(), raftstore.ViewOptions{}); err != nil {
			t.Fatal(err)
		}
		is := make(map[string]string) // all but the name, in a row of the table
		var families []*dto.MetricFamily
		for name, f := range m.gather(follower) {
			families = append(families, f)
			var labels []string
			for _, l := range f.Metric[0].Label {
				labels = append(labels, "`"+l.GetName()+"`")
			}
			is[name] = fmt.Sprintf("%s | %s | %s", strings.ToLower(f.GetType().String()), strings.Join(labels, ", "),
				f.GetHelp())
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}

		page, err := os.ReadFile("../docs/metrics.md")
		if err != nil {
			t.Fatal(err)
		}
		says := make(map[string]string)
		for _, row := range regexp.MustCompile("(?m)^\\| `(barque_store_[a-z_]+)` \\| (.*) \\|$").FindAllStringSubmatch(
			string(page), -1) {
			says[row[1]] = row[2]
		}
		for name, row := range is {
			if says[name] != row {
				t.Errorf("docs/metrics.md says %q of it, want this row:\n| `%s` | %s |", says[name], name, row)
			}
		}
		for name := range says {
			if is[name] == "" {
				t.Errorf("docs/metrics.md names %s, which no server has", name)
			}
		}
	})
}
