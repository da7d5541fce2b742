package addresses

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestConflicts: a conflict is remembered for an hour after it was last seen, once for each
// machine.
func TestConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Conflicts
		one, two := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{2, 0, 0, 0, 0, 2}
		addr := netip.MustParseAddr("192.0.2.1")
		c.note(addr, two, "eth0")
		c.note(addr, one, "eth0")
		c.note(addr, one, "eth0")
		if all := c.All(); len(all) != 2 || all[0].MAC != one.String() || all[0].Address != "192.0.2.1" {
			t.Errorf("%+v", all)
		}
		<-time.After(conflictsKept + time.Second)
		c.note(addr, two, "eth1")
		if all := c.All(); len(all) != 1 || all[0].Link != "eth1" {
			t.Errorf("an hour later: %+v", all)
		}
	})
}
