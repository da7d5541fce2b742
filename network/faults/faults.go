// Package faults detects external faults of a machine's network, and reports them by events on the
// Node: a full table of tracked connections, an address of the node that is on no link, changed
// addresses, nftables rules that another program has changed, an address that another machine
// claims. They appear in `kubectl describe node`, and `barque cluster doctor` lists them (Of). It
// repairs nothing: package network does, or the kernel, or a person.
package faults

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The reasons of the events on a Node.
const (
	ConnectionsFull = "ConnectionTableFull"
	ConnectionsRoom = "ConnectionTableHasRoom"
	AddressMissing  = "NodeAddressMissing"
	AddressBack     = "NodeAddressBack"
	AddressChanged  = "NodeAddressChanged"
	RulesChanged    = "NetworkRulesChanged"
	AddressConflict = "AddressConflict"
)

// Component is the source of the events.
const Component = "barque-network"

// Tell makes an event on this Node.
type Tell func(kind, reason, message string)

// Watcher remembers the faults of this machine. It reports each at its begin, repeatedly while it
// lasts, and at its end. Its methods may be called from anywhere.
type Watcher struct {
	tell Tell
	now  func() time.Time

	mu          sync.Mutex
	connections fault
	address     fault
	rules       map[string]time.Time // the last report about each table
}

// fault is the state of one possible fault.
type fault struct {
	since time.Time // zero while it is not there
	told  time.Time // last
}

// repeatAfter is the interval of reports of a lasting fault: events are kept for an hour.
const repeatAfter = 20 * time.Minute

// NewWatcher returns one without faults.
func NewWatcher(tell Tell) *Watcher {
	return &Watcher{tell: tell, now: time.Now, rules: map[string]time.Time{}}
}

// due reports whether the present fault is to be reported now. The caller holds the watcher's
// mutex.
func (f *fault) due(now time.Time) bool {
	if f.since.IsZero() {
		f.since = now
	}
	if !f.told.IsZero() && now.Sub(f.told) < repeatAfter {
		return false
	}
	f.told = now
	return true
}

// ends tells for how long the fault was there; 0 when it was not. The watcher's mutex is held.
func (f *fault) ends(now time.Time) time.Duration {
	if f.since.IsZero() {
		return 0
	}
	lasted := max(now.Sub(f.since), 1)
	*f = fault{}
	return lasted
}

// Connections takes how full the table of tracked connections is.
func (w *Watcher) Connections(c Connections) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	switch {
	case c.Full():
		if w.connections.due(now) {
			w.tell(corev1.EventTypeWarning, ConnectionsFull,
				c.String()+": new connections are dropped when the table is full")
		}
	case c.HasRoom():
		if lasted := w.connections.ends(now); lasted > 0 {
			w.tell(corev1.EventTypeNormal, ConnectionsRoom,
				fmt.Sprintf("%s, after %s with a table that was full or nearly so", c, text(lasted)))
		}
	}
}

// Address takes the fault of the links that have the node's addresses.
func (w *Watcher) Address(missing error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if missing == nil {
		if lasted := w.address.ends(now); lasted > 0 {
			w.tell(corev1.EventTypeNormal, AddressBack,
				fmt.Sprintf("the node's addresses are on links that are up again, after %s without", text(lasted)))
		}
		return
	}
	if w.address.due(now) {
		w.tell(corev1.EventTypeWarning, AddressMissing, missing.Error())
	}
}

// rulesPause is the time in which changes of one table are reported once. The kernel reports each
// rule, and another program may continue forever.
const rulesPause = time.Minute

// Rules takes the name of a table that another program has changed or removed.
func (w *Watcher) Rules(table string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if last, told := w.rules[table]; told && now.Sub(last) < rulesPause {
		return
	}
	w.rules[table] = now
	w.tell(corev1.EventTypeWarning, RulesChanged,
		fmt.Sprintf("another program changed or removed the nftables table %q of Barque, which writes it again", table))
}

// Conflict takes an address that this node holds, and for which another machine answers. The caller
// reports each once a minute while it lasts.
func (w *Watcher) Conflict(addr netip.Addr, mac net.HardwareAddr, link string) {
	w.tell(corev1.EventTypeWarning, AddressConflict,
		fmt.Sprintf("another machine, %s, answers for %s on %s, which this node holds: clients may reach either", mac,
			addr, link))
}

// Moved takes the addresses of the Node object, and those of this node.
func (w *Watcher) Moved(before, now []string) {
	w.tell(corev1.EventTypeNormal, AddressChanged,
		fmt.Sprintf("the node was at %s, and is at %s now", strings.Join(before, ", "), strings.Join(now, ", ")))
}

// text writes a duration for people, in seconds.
func text(d time.Duration) string { return max(d.Round(time.Second), time.Second).String() }

// Fault is a fault in the events on a Node, in one sentence.
type Fault struct {
	Node   string
	Reason string // of the event
	Text   string
	Mend   string // empty for a fault that is over
}

// recent is how long a fault that is over is worth a note.
const recent = time.Hour

// Of reads faults out of events on Nodes: of each Node and kind the newest one. Others are passed
// over. They come in the order of their Nodes.
func Of(events []corev1.Event, now time.Time) []Fault {
	type kind struct{ node, of string }
	newest := map[kind]*corev1.Event{}
	for i := range events {
		e := &events[i]
		of, known := kinds[e.Reason]
		if !known || e.InvolvedObject.Kind != "Node" || now.Sub(At(e)) > recent {
			continue
		}
		k := kind{e.InvolvedObject.Name, of}
		if have := newest[k]; have == nil || !At(e).Before(At(have)) {
			newest[k] = e
		}
	}
	var all []Fault
	for _, e := range newest {
		all = append(all, faultOf(e, now))
	}
	slices.SortFunc(all, func(a, b Fault) int { return strings.Compare(a.Node+"\x00"+a.Text, b.Node+"\x00"+b.Text) })
	return all
}

// kinds are the faults of the reasons.
var kinds = map[string]string{
	ConnectionsFull: "connections", ConnectionsRoom: "connections",
	AddressMissing: "address", AddressBack: "address", AddressChanged: "address",
	RulesChanged: "rules", AddressConflict: "conflict",
}

// mends are a person's remedies for lasting faults.
var mends = map[string]string{
	ConnectionsFull: MendConnections,
	AddressMissing:  "ip address; give the link its address again, or start Barque with the new one (--node-ip)",
	RulesChanged:    "keep that program from the tables of others, such as by `nft flush ruleset`",
	AddressConflict: MendConflict,
}

// MendConnections is the remedy for a full table of tracked connections.
const MendConnections = "sysctl -w net.netfilter.nf_conntrack_max=NUMBER with a larger one, or find who opens them: conntrack -L"

// MendConflict is the remedy for an address that another machine claims. It is no command: that
// machine is not of the cluster.
const MendConflict = "find the machine by its MAC and take the address from it; " +
	"or take the address out of its AddressPool, or from --api-address"

// A lasting fault is reported again after repeatAfter, and repeated changes of rules after
// rulesPause. Without another report the fault is over, or its node is gone.
const (
	overAfter         = repeatAfter + 5*time.Minute
	rulesOverAfter    = 5 * rulesPause
	conflictOverAfter = 5 * time.Minute
)

func faultOf(e *corev1.Event, now time.Time) Fault {
	f := Fault{Node: e.InvolvedObject.Name, Reason: e.Reason}
	age := now.Sub(At(e))
	lasts := age < overAfter
	switch e.Reason {
	case RulesChanged:
		lasts = e.Count > 1 && age < rulesOverAfter
	case AddressConflict:
		lasts = age < conflictOverAfter
	}
	if lasts {
		f.Mend = mends[e.Reason]
	}
	f.Text = fmt.Sprintf("node %s: %s (%s", f.Node, e.Message, At(e).UTC().Format(time.RFC3339))
	if e.Count > 1 {
		f.Text = fmt.Sprintf("%s, again and again since %s", f.Text, e.FirstTimestamp.UTC().Format(time.RFC3339))
	}
	f.Text += ")"
	return f
}

// At is when an event last happened.
func At(e *corev1.Event) time.Time {
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}
