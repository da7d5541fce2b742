package node

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

// TestHangingDiskIsAnAilment hangs the disk of a leader, which must say so until it is well, and no
// longer.
func TestHangingDiskIsAnAilment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		leader := s.leader(-1)
		ill := s.nodes[leader]
		if err := ill.Ailment(); err != nil {
			t.Fatal(err)
		}
		s.disks[leader].hang()
		written := ill.raft.Barrier(0)
		s.await("it says so", func() bool {
			err := ill.Ailment()
			return errors.Is(err, logstore.ErrHangs) && errors.Is(err, kv.ErrUnavailable)
		})
		s.await("another leads, who is well", func() bool { return s.nodes[s.leader(leader)].Ailment() == nil })
		s.disks[leader].recover()
		s.await("it is well again", func() bool { return ill.Ailment() == nil })
		if err := written.Error(); err == nil {
			t.Error("it has committed what it wrote to a disk that hung, and another one led")
		}
	})
}
