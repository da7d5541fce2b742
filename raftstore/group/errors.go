package group

import (
	"fmt"

	"github.com/barque/barque/raftstore/kv"
)

// ErrDiskStuck is the error of writes that are refused while the leader's disk is full and no other
// server can lead.
var ErrDiskStuck = fmt.Errorf(
	"%w: it runs on its reserve and takes only what deletes, and no other server can lead in its place: none that answers has room; make room on the volume of the store, or delete something",
	kv.ErrDiskFull)

// ErrNoLeader is the error of a leader's operations while no leader is known.
var ErrNoLeader = fmt.Errorf("%w: the servers have no leader at the moment", kv.ErrUnavailable)
