package faults

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/apart"
)

// told is a watcher's record.
type told struct {
	events []string // "reason: message"
	now    time.Time
}

func (r *told) watcher() *Watcher {
	w := NewWatcher(func(_, reason, message string) { r.events = append(r.events, reason+": "+message) })
	w.now = func() time.Time { return r.now }
	return w
}

// take returns the reasons of the events since the last call.
func (r *told) take() string {
	var reasons []string
	for _, e := range r.events {
		reason, _, _ := strings.Cut(e, ":")
		reasons = append(reasons, reason)
	}
	r.events = nil
	return strings.Join(reasons, " ")
}

func TestConnectionsAreToldOnceAndWhenThereIsRoom(t *testing.T) {
	r := &told{now: time.Unix(1000, 0)}
	w := r.watcher()
	for i, step := range []struct {
		after time.Duration
		count int
		want  string
	}{
		{0, 0, ""},
		{0, 89, ""},
		{0, 90, ConnectionsFull},
		{time.Minute, 100, ""},
		{time.Minute, 85, ""}, // neither full nor with room
		{20 * time.Minute, 95, ConnectionsFull},
		{time.Minute, 80, ConnectionsRoom},
		{time.Minute, 80, ""},
		{time.Minute, 90, ConnectionsFull}, // another time
	} {
		r.now = r.now.Add(step.after)
		w.Connections(Connections{Count: step.count, Max: 100})
		if got := r.take(); got != step.want {
			t.Errorf("step %d, %d of 100: told %q, want %q", i, step.count, got, step.want)
		}
	}
	w = r.watcher()
	w.Connections(Connections{Count: 1 << 20}) // without a bound
	if got := r.take(); got != "" {
		t.Errorf("without a bound: told %q", got)
	}
}

func TestAddressIsToldWhileMissingAndWhenBack(t *testing.T) {
	r := &told{now: time.Unix(1000, 0)}
	w := r.watcher()
	missing := errors.New("no link of this machine has the node's address 192.0.2.1")
	for i, step := range []struct {
		after, gone time.Duration
		missing     error
		want        string
	}{
		{0, 0, nil, ""},
		{0, 0, missing, AddressMissing + ": " + missing.Error()},
		{40 * time.Second, 40 * time.Second, missing, ""},
		{2 * time.Second, 0, nil, AddressBack + ": the node's addresses are on links that are up again, after 42s without"},
		{time.Second, 0, nil, ""},
	} {
		r.now = r.now.Add(step.after)
		if gone := w.Address(step.missing); gone != step.gone {
			t.Errorf("step %d: missing for %v, want %v", i, gone, step.gone)
		}
		if got := strings.Join(r.events, " "); got != step.want {
			t.Errorf("step %d: told %q, want %q", i, got, step.want)
		}
		r.events = nil
	}
}

// TestRulesAreToldOncePerChange: the kernel tells of each rule of a table that is flushed.
func TestRulesAreToldOncePerChange(t *testing.T) {
	r := &told{now: time.Unix(1000, 0)}
	w := r.watcher()
	for range 25 {
		w.Rules("barque")
		w.Rules("barque-policy")
		r.now = r.now.Add(time.Millisecond)
	}
	r.now = r.now.Add(time.Minute)
	w.Rules("barque")
	if got, want := r.take(), strings.Repeat(RulesChanged+" ", 3); got+" " != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// TestOf: the newest event of each node and kind counts, and what is long over does not.
func TestOf(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := func(node, reason string, ago time.Duration, count int32) corev1.Event {
		return corev1.Event{Reason: reason, Message: "message of " + reason, Count: count, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node},
			FirstTimestamp: metav1.NewTime(now.Add(-2 * ago)), LastTimestamp: metav1.NewTime(now.Add(-ago))}
	}
	pod := event("a2", ConnectionsFull, time.Minute, 1)
	pod.InvolvedObject.Kind = "Pod"
	got := Of([]corev1.Event{
		event("a1", ConnectionsFull, 10*time.Minute, 1), event("a1", RulesChanged, time.Minute, 3),
		event("a2", ConnectionsFull, 10*time.Minute, 1), event("a2", ConnectionsRoom, 5*time.Minute, 1),
		event("a3", AddressBack, 10*time.Minute, 1), event("a3", AddressMissing, 5*time.Minute, 1),
		event("a4", ConnectionsFull, 2*time.Hour, 1), event("a4", "Rebooted", time.Minute, 1), pod,
	}, now)
	want := []Fault{
		{"a1", ConnectionsFull, "node a1: message of ConnectionTableFull (2026-01-02T02:54:05Z)", MendConnections},
		{"a1", RulesChanged, "node a1: message of NetworkRulesChanged (2026-01-02T03:03:05Z, 3 times since 2026-01-02T03:02:05Z)", ""},
		{"a2", ConnectionsRoom, "node a2: message of ConnectionTableHasRoom (2026-01-02T02:59:05Z)", ""},
		{"a3", AddressMissing, "node a3: message of NodeAddressMissing (2026-01-02T02:59:05Z)", mends[AddressMissing]},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestMakeRoom: what is set already stays when it is better, and the size of the table is not this
// namespace's to change.
func TestMakeRoom(t *testing.T) {
	if !apart.Run(t, apart.Network, time.Minute, "settings of the kernel's table of connections") {
		return
	}
	write := func(path string, n int) {
		if err := os.WriteFile(path, []byte(strconv.Itoa(n)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct{ established, closeWait, wantEstablished, wantCloseWait int }{
		{432000, 60, 86400, 3600},
		{600, 7200, 600, 7200},
	} {
		write(establishedFile, step.established)
		write(closeWaitFile, step.closeWait)
		before, err := ReadConnections()
		if err != nil {
			t.Fatal(err)
		}
		if err := MakeRoom(1); err != nil {
			t.Fatal(err)
		}
		established, err := readNumber(establishedFile)
		closeWait, err2 := readNumber(closeWaitFile)
		after, err3 := ReadConnections()
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		if established != step.wantEstablished || closeWait != step.wantCloseWait || after.Max < before.Max {
			t.Errorf("from %d s and %d s: %d s established, %d s in CLOSE_WAIT, table of %d after %d", step.established, step.closeWait, established, closeWait, after.Max, before.Max)
		}
	}
}
