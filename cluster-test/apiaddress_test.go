package clustertest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/barque/barque/cluster-test/neighbours"
)

// apiAddress is an address that no machine of a dev cluster has. ARP needs no network in common.
var apiAddress = netip.MustParseAddr("198.18.0.10")

// from returns a condition: an address was answered for after now, by the node or by another one.
func from(t *testing.T, w *neighbours.Watcher, c *Cluster, node string, same bool) func(context.Context) error {
	began := time.Now()
	mac, err := c.MAC(node)
	if err != nil {
		t.Fatal(err)
	}
	return func(context.Context) error {
		got, at := w.Holder(apiAddress)
		if !at.After(began) {
			return fmt.Errorf("nobody has answered for %s", time.Since(began).Round(time.Millisecond))
		}
		if (got == mac) != same {
			return fmt.Errorf("%s answers", got)
		}
		return nil
	}
}

// TestOneServerAnswersForTheAPI kills, pauses and cuts off the leader, and takes leadership away
// from it. The new leader answers for the API's address each time, and no question is answered
// twice. A paused process finds questions waiting when it goes on.
func TestOneServerAnswersForTheAPI(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Servers: 3, ServerArgs: []string{"--api-address=" + apiAddress.String()}})
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	w, err := neighbours.Watch("bq-" + c.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.Ask(apiAddress)
	Eventually(t, deadline, "the leader answers", from(t, w, c, c.Leader(t), true))
	for _, fault := range []struct {
		does, undo []string
	}{
		{[]string{"kill"}, []string{"start"}},
		{[]string{"pause"}, []string{"resume"}},
		{[]string{"partition"}, []string{"heal"}},
		{[]string{"kill"}, []string{"start"}},
		{[]string{"stop"}, []string{"start"}},
	} {
		leader := c.Leader(t)
		Eventually(t, deadline, "the leader answers before the fault", from(t, w, c, leader, true))
		c.Dev(t, append(fault.does, leader)...)
		took := Eventually(t, deadline, "another server answers after "+fault.does[0], from(t, w, c, leader, false))
		t.Logf("%s of %s: another server answers after %s at most", fault.does[0], leader, took)
		if undo := fault.undo; undo[0] == "heal" {
			c.Dev(t, undo...)
		} else {
			c.Dev(t, append(undo, leader)...)
		}
		Eventually(t, deadline, "a whole cluster after "+fault.undo[0], c.Healthy)
		for _, what := range w.Faults() {
			t.Errorf("after %s: %s", fault.does[0], what)
		}
	}
	Eventually(t, deadline, "the status has the address", func(ctx context.Context) error {
		s, err := c.Status(ctx)
		if err == nil &&
			(len(s.Addresses) != 1 || s.Addresses[0].Node != s.Leader ||
				s.Addresses[0].Address != apiAddress.String()) {
			err = fmt.Errorf("it has %+v with the leader %q", s.Addresses, s.Leader)
		}
		return err
	})
}
