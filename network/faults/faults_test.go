package faults

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

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
		after   time.Duration
		missing error
		want    string
	}{
		{0, nil, ""},
		{0, missing, AddressMissing + ": " + missing.Error()},
		{40 * time.Second, missing, ""},
		{2 * time.Second, nil,
			AddressBack + ": the node's addresses are on links that are up again, after 42s without"},
		{time.Second, nil, ""},
	} {
		r.now = r.now.Add(step.after)
		w.Address(step.missing)
		if got := strings.Join(r.events, " "); got != step.want {
			t.Errorf("step %d: told %q, want %q", i, got, step.want)
		}
		r.events = nil
	}
}

// TestRulesAreToldOnceAMinute: the kernel tells of each rule of a table that is flushed, and
// another program may go on for ever.
func TestRulesAreToldOnceAMinute(t *testing.T) {
	r := &told{now: time.Unix(1000, 0)}
	w := r.watcher()
	for range 119 {
		w.Rules("barque")
		w.Rules("barque-policy")
		r.now = r.now.Add(time.Second)
	}
	if got, want := r.take(), strings.Repeat(RulesChanged+" ", 4); got+" " != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// TestConflictEndsSoon: a conflict is reported once a minute, so five minutes without a report are
// its end.
func TestConflictEndsSoon(t *testing.T) {
	r := &told{now: time.Unix(1000, 0)}
	r.watcher().Conflict(netip.MustParseAddr("192.0.2.9"), net.HardwareAddr{2, 0, 0, 0, 0, 9}, "eth0")
	if want := AddressConflict +
		": another machine, 02:00:00:00:00:09, answers for 192.0.2.9 on eth0, which this node holds: clients may reach either"; len(r.events) != 1 || r.events[0] != want {
		t.Errorf("told %q, want %q", r.events, want)
	}
	for ago, lasts := range map[time.Duration]bool{4 * time.Minute: true, 6 * time.Minute: false} {
		found := Of(
			[]corev1.Event{
				{Reason: AddressConflict, InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "a1"},
					LastTimestamp: metav1.NewTime(r.now.Add(-ago))}}, r.now)
		if len(found) != 1 || (found[0].Mend != "") != lasts {
			t.Errorf("%v ago: %+v", ago, found)
		}
	}
}

// TestOf: the newest event of each node and kind counts, what is long over does not, and what lasts
// is told again.
func TestOf(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	event := func(node, reason string, ago time.Duration, count int32) corev1.Event {
		return corev1.Event{Reason: reason, Message: "message of " + reason, Count: count,
			InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node},
			FirstTimestamp: metav1.NewTime(now.Add(-2 * ago)), LastTimestamp: metav1.NewTime(now.Add(-ago))}
	}
	pod := event("a2", ConnectionsFull, time.Minute, 1)
	pod.InvolvedObject.Kind = "Pod"
	got := Of([]corev1.Event{
		event("a1", ConnectionsFull, 10*time.Minute, 1), event("a1", RulesChanged, time.Minute, 3),
		event("a2", ConnectionsFull, 10*time.Minute, 1), event("a2", ConnectionsRoom, 5*time.Minute, 1),
		event("a3", AddressBack, 10*time.Minute, 1), event("a3", AddressMissing, 5*time.Minute, 1),
		event("a4", ConnectionsFull, 2*time.Hour, 1), event("a4", "Rebooted", time.Minute, 1), pod,
		event("a5", AddressMissing, 5*time.Minute, 1), event("a5", AddressChanged, 4*time.Minute, 1), // started again
		// and not told again since: the node is gone, or was started again
		event("a6", ConnectionsFull, 30*time.Minute, 1),
		event("a7", RulesChanged, time.Minute, 1), event("a8", RulesChanged, 10*time.Minute, 3),
	}, now)
	want := []Fault{
		{"a1", ConnectionsFull, "node a1: message of ConnectionTableFull (2026-01-02T02:54:05Z)", MendConnections},
		{"a1", RulesChanged,
			"node a1: message of NetworkRulesChanged (2026-01-02T03:03:05Z, again and again since 2026-01-02T03:02:05Z)", mends[RulesChanged]},
		{"a2", ConnectionsRoom, "node a2: message of ConnectionTableHasRoom (2026-01-02T02:59:05Z)", ""},
		{"a3", AddressMissing, "node a3: message of NodeAddressMissing (2026-01-02T02:59:05Z)", mends[AddressMissing]},
		{"a5", AddressChanged, "node a5: message of NodeAddressChanged (2026-01-02T03:00:05Z)", ""},
		{"a6", ConnectionsFull, "node a6: message of ConnectionTableFull (2026-01-02T02:34:05Z)", ""},
		{"a7", RulesChanged, "node a7: message of NetworkRulesChanged (2026-01-02T03:03:05Z)", ""},
		{"a8", RulesChanged,
			"node a8: message of NetworkRulesChanged (2026-01-02T02:54:05Z, again and again since 2026-01-02T02:44:05Z)", ""},
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
		set := func(path, value string) error { return os.WriteFile(path, []byte(value), 0o644) }
		if err := MakeRoom(1, set); err != nil {
			t.Fatal(err)
		}
		established, err := readNumber(establishedFile)
		closeWait, err2 := readNumber(closeWaitFile)
		after, err3 := ReadConnections()
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		if established != step.wantEstablished || closeWait != step.wantCloseWait || after.Max < before.Max {
			t.Errorf("from %d s and %d s: %d s established, %d s in CLOSE_WAIT, table of %d after %d", step.established,
				step.closeWait, established, closeWait, after.Max, before.Max)
		}
	}
}

// unwilling is a sink that answers with an error.
type unwilling struct{ err error }

func (u unwilling) Create(*corev1.Event) (*corev1.Event, error)        { return nil, u.err }
func (u unwilling) Update(*corev1.Event) (*corev1.Event, error)        { return nil, u.err }
func (u unwilling) Patch(*corev1.Event, []byte) (*corev1.Event, error) { return nil, u.err }

// TestSinkHasEventsWrittenAgain: client-go gives up at each error that is an answer of the API.
func TestSinkHasEventsWrittenAgain(t *testing.T) {
	events := schema.GroupResource{Resource: "events"}
	for _, c := range []struct {
		err   error
		again bool
	}{
		{apierrors.NewServiceUnavailable("no leader"), true},
		{apierrors.NewTimeoutError("no answer", 1), true},
		{apierrors.NewServerTimeout(events, "create", 1), true},
		{apierrors.NewTooManyRequests("later", 1), true},
		{apierrors.NewForbidden(events, "a", nil), false},
		{apierrors.NewNotFound(events, "a"), false}, // of which it makes a new one
	} {
		_, made := Sink{unwilling{c.err}}.Create(nil)
		_, patched := Sink{unwilling{c.err}}.Patch(nil, nil)
		for _, err := range []error{made, patched} {
			var answer *apierrors.StatusError
			if again := !errors.As(err, &answer); err == nil || again != c.again || err.Error() != c.err.Error() {
				t.Errorf("%v: got %v, tried again: %t, want %t", c.err, err, again, c.again)
			}
		}
	}
}
