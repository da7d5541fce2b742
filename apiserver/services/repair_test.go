package services

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/record"

	"github.com/barque/barque/apiserver/leaderterm"
	"github.com/barque/barque/raftstore"
)

// repairing is a server with a repair whose clock the test moves.
type repairing struct {
	*server
	repair *repair
	now    time.Time
	events *record.FakeRecorder
}

func newRepairing(t *testing.T, change ...func(*Config)) *repairing {
	t.Helper()
	r := &repairing{server: alone(t, change...), now: time.Unix(0, 0), events: record.NewFakeRecorder(100)}
	r.repair = &repair{a: r.Allocator, now: func() time.Time { return r.now }, recorder: r.events,
		logger: slog.New(slog.DiscardHandler)}
	return r
}

func (r *repairing) round(t *testing.T) {
	t.Helper()
	if err := r.repair.once(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// told are the reasons of the events so far.
func (r *repairing) told() []string {
	var out []string
	for len(r.events.Events) > 0 {
		out = append(out, strings.Fields(<-r.events.Events)[1])
	}
	slices.Sort(out)
	return out
}

func (r *repairing) commit(t *testing.T, ops ...raftstore.Op) {
	t.Helper()
	if _, err := r.backend.Commit(t.Context(), raftstore.Txn{Ops: ops}); err != nil {
		t.Fatal(err)
	}
}

func reservation(key, owner string) raftstore.Op {
	return raftstore.Op{Kind: raftstore.Put, Key: key, Value: []byte(owner)}
}

// old writes a Service as a server of an older version does: with reservations, and no IPAddress.
func (r *repairing) old(t *testing.T, s *corev1.Service) {
	t.Helper()
	s = r.defaulted(s)
	s.UID = types.UID("uid-" + s.Name)
	put, err := r.cfg.Services.Put(t.Context(), s.Namespace+"/"+s.Name, s)
	if err != nil {
		t.Fatal(err)
	}
	ops := []raftstore.Op{put}
	h := holdingsOf(s)
	for a := range h.addresses {
		ops = append(ops, reservation(addressKey(a), owner(s)))
	}
	for p := range h.ports {
		ops = append(ops, reservation(portKey(p), owner(s)))
	}
	r.commit(t, ops...)
}

// A cluster whose Services were made by an older version gets its IPAddress objects, and no address
// is given twice before or after.
func TestMigration(t *testing.T) {
	r := newRepairing(t, dualStack)
	r.old(t, service("web", typed(corev1.ServiceTypeNodePort), at("10.43.0.5"), ports(port("", 80, "", 30003))))
	r.old(t, service("both", at("10.43.0.6", "fd00:43::6")))
	r.old(t, service("headless", at("None")))
	r.old(t, service("gone", at("10.43.0.7")))
	for _, when := range []string{"before", "after"} {
		for _, ip := range []string{"10.43.0.5", "10.43.0.6"} {
			if _, err := r.create(t.Context(), service("again", at(ip))); err == nil {
				t.Errorf("%s: %s was given twice", when, ip)
			}
		}
		if when == "before" {
			// A Service that is deleted before the repair leaves nothing.
			if err := r.delete(t.Context(), "gone"); err != nil {
				t.Fatal(err)
			}
			r.round(t)
		}
		if told := r.told(); len(told) != 0 {
			t.Errorf("%s: events %v", when, told)
		}
	}
	if seen := r.wantConsistent(t); len(seen.addresses) != 3 || len(seen.services) != 3 {
		t.Errorf("%d IPAddresses of %d Services", len(seen.addresses), len(seen.services))
	}
	view, err := r.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.round(t) // has nothing to do
	after, err := r.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil || after.Revision() != view.Revision() {
		t.Errorf("a second round wrote: revision %d became %d, %v", view.Revision(), after.Revision(), err)
	}
}

func TestRepair(t *testing.T) {
	r := newRepairing(t)
	for _, s := range []*corev1.Service{
		service("a", typed(corev1.ServiceTypeNodePort), at("10.43.0.5"), ports(port("", 80, "", 30003))),
		service("b", at("10.43.0.6")),
		service("c", at("10.43.0.7")),
		service("d", at("10.43.0.8")),
	} {
		if _, err := r.create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	ip := func(name string, change func(*networkingv1.IPAddress)) raftstore.Op {
		a, _ := parseAddress(name)
		object := newIPAddress(a, service("nobody"))
		change(object)
		put, err := r.cfg.Addresses.Put(t.Context(), name, object)
		if err != nil {
			t.Fatal(err)
		}
		return put
	}
	managed := func(*networkingv1.IPAddress) {}
	r.commit(t,
		raftstore.Op{Kind: raftstore.Delete, Key: addressKey(mustAddress(t, "10.43.0.5"))},
		raftstore.Op{Kind: raftstore.Delete, Key: portKey(30003)},
		raftstore.Op{Kind: raftstore.Delete, Key: r.cfg.Addresses.Key("10.43.0.6")}, // by a user
		ip("10.43.0.7", managed), // another parent
		ip("10.43.0.8", func(o *networkingv1.IPAddress) { o.Spec.ParentRef.Name, o.Labels = "d", nil }),
		ip("10.43.0.9", managed), // an orphan
		ip("10.43.0.10", func(o *networkingv1.IPAddress) { o.Labels = nil }), // another owner's
		reservation(addressKey(mustAddress(t, "10.43.0.11")), "ns/dead/1"),
		reservation(portKey(30005), "ns/dead/1"),
	)
	if _, err := r.create(t.Context(), service("again", at("10.43.0.6"))); err == nil {
		t.Error("an address whose IPAddress a user has deleted was given twice")
	}
	r.round(t)
	if view, err := r.backend.View(t.Context(), raftstore.ViewOptions{}); err != nil {
		t.Fatal(err)
	} else if _, reserved := view.Get(portKey(30005)); !reserved {
		t.Error("a reservation was freed at first sight: its Service may be under way")
	}
	r.now = r.now.Add(leakAge - time.Second)
	r.round(t)
	if seen, err := r.backend.View(t.Context(), raftstore.ViewOptions{}); err != nil ||
		seen.Count("/barque/allocations/", "") != 5+2 {
		t.Errorf("%d reservations just before the leaks are old enough, %v", seen.Count("/barque/allocations/", ""),
			err)
	}
	r.now = r.now.Add(time.Second)
	r.round(t)
	if seen := r.wantConsistent(t); len(seen.addresses) != 4+1 {
		t.Errorf("%d IPAddresses", len(seen.addresses))
	}
	if told := r.told(); len(told) != 0 {
		t.Errorf("events %v for what nobody has to do anything about", told)
	}
}

func mustAddress(t *testing.T, text string) netip.Addr {
	t.Helper()
	a, ok := parseAddress(text)
	if !ok {
		t.Fatal(text)
	}
	return a
}

// A conflict that a person has to decide is reported, and left as it is.
func TestRepairTellsOfConflicts(t *testing.T) {
	r := newRepairing(t)
	r.old(t, service("a", typed(corev1.ServiceTypeNodePort), at("10.43.0.5"), ports(port("", 80, "", 30003))))
	r.old(t, service("b", typed(corev1.ServiceTypeNodePort), at("10.43.0.5"), ports(port("", 80, "", 30003))))
	r.old(t, service("outside", typed(corev1.ServiceTypeNodePort), at("10.99.0.5"), ports(port("", 80, "", 31003))))
	r.round(t)
	if told, want := r.told(),
		[]string{"ClusterIPAlreadyAllocated", "ClusterIPOutOfRange", "PortAlreadyAllocated",
			"PortOutOfRange"}; !slices.Equal(told, want) {
		t.Errorf("events %v, want %v", told, want)
	}
	// The one that goes leaves the other's reservation: b wrote it last.
	if err := r.delete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.create(t.Context(), service("again", at("10.43.0.5"))); err == nil {
		t.Error("the address of b was given twice")
	}
	r.round(t)
	if told, want := r.told(), []string{"ClusterIPOutOfRange", "PortOutOfRange"}; !slices.Equal(told, want) {
		t.Errorf("events %v, want %v", told, want)
	}
}

// A leader that has been deposed repairs nothing.
func TestRepairIsFenced(t *testing.T) {
	r := newRepairing(t) // always in term 1
	r.old(t, service("a", at("10.43.0.5")))
	if err := r.repair.once(leaderterm.With(context.Background(), 9)); err == nil {
		t.Error("a deposed leader repaired")
	}
	if list, err := r.ips.List(request.WithNamespace(t.Context(), ""), nil); err != nil ||
		len(list.(*networkingv1.IPAddressList).Items) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}
